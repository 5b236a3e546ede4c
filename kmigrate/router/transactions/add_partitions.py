"""Adds partitions to a client's transaction at the target: at once, or with a first batch (`deferred_partitions`)."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.protocol.api import ApiKey, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code
from kmigrate.router.shared.conversation import Conversation, together
from kmigrate.router.shared.deferred_partitions import ProducerIdentity
from kmigrate.router.shared.state import Buffer, ClientLink, SharedState
from kmigrate.router.transactions.request import TxnRequest
from kmigrate.router.wire.transactions import partition_codes, partitions_answer, partitions_of, partitions_request

__all__ = ["AddPartitionsHandler"]

_ADD = entity(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "request")


@dataclass(slots=True, eq=False)
class AddPartitionsHandler:
    """Handles AddPartitionsToTxn for the target."""

    _shared: SharedState
    _client: ClientLink

    def add(self, txn: TxnRequest) -> Conversation[Buffer]:
        """Ask the target about partitions that may be deferred (A), pass on the others, and report all as in (D)."""
        deferred, wanted = self._shared.deferred, partitions_of(txn.request)
        unclear = sorted(
            (topic, index)
            for topic, partitions in wanted.items()
            for index in set(partitions)
            if deferred.may_be(self._shared.table, txn.producer, topic, index)
        )
        written = yield from together(self._shared.has_written(*key, txn.producer_id) for key in unclear)
        if None in written:
            return txn.answer(Code.COORDINATOR_LOAD_IN_PROGRESS)
        later = {key for key, has_records in zip(unclear, written, strict=True) if not has_records}
        if not later or self._shared.table.finished:
            return (yield from txn.to_target(self._client))
        deferred.promise(txn.name, self, later)
        rest = {
            topic: now
            for topic, partitions in wanted.items()
            if (now := tuple(index for index in partitions if (topic, index) not in later))
        }
        if not rest:
            return txn.answer(Code.NONE)
        message = partitions_request(type(txn.request), txn.producer, rest)
        frame = frame_request(message, txn.head.correlation_id, txn.head.client_id)
        codes = partition_codes(txn.read((yield from self._client.ask_target([frame], txn.head.correlation_id))))
        return partitions_answer(txn.head, txn.request, codes, Code.NONE)

    def join(self, producer: ProducerIdentity, topic: str, partition: int) -> Conversation[int]:
        """Add a deferred partition to a transaction whose first batch for the partition came on this connection (B)."""
        frame = frame_request(partitions_request(_ADD, producer, {topic: (partition,)}), 0, None)
        answer = read_answer(_ADD, (yield from self._client.ask_target([frame], 0)))
        code = partition_codes(answer)[(topic, partition)]
        if code == Code.NOT_COORDINATOR:
            return (yield from self._shared.backend.join_at_target(producer, topic, partition))
        return code
