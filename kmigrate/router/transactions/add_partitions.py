"""Adds partitions and groups to a client's transaction at the target.

A partition is added at once, or with a first batch (`deferred_partitions`). Requests for topics that can be rolled back
are counted until they are answered: a rollback waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kmigrate.protocol.api import ApiKey, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code
from kmigrate.router.shared.conversation import Conversation, Future, together
from kmigrate.router.shared.deferred_partitions import ProducerIdentity
from kmigrate.router.shared.state import Buffer, ClientLink, Outcome, SharedState
from kmigrate.router.transactions.request import TxnRequest
from kmigrate.router.wire.transactions import partition_codes, partitions_answer, partitions_of, partitions_request

__all__ = ["AddPartitionsHandler"]

_ADD = entity(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "request")


@dataclass(slots=True, eq=False)
class AddPartitionsHandler:
    """Handles AddPartitionsToTxn and AddOffsetsToTxn for the target."""

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
            return (yield from self._ask(txn.frame, txn.head.correlation_id, wanted))
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
        codes = partition_codes(txn.read((yield from self._ask(frame, txn.head.correlation_id, rest))))
        return partitions_answer(txn.head, txn.request, codes, Code.NONE)

    def add_group(self, txn: TxnRequest, topics: Iterable[str]) -> Conversation[Buffer]:
        """Pass a group on to the target; the request counts at the topics that the transactional id writes."""
        return (yield from self._ask(txn.frame, txn.head.correlation_id, topics))

    def join(self, producer: ProducerIdentity, topic: str, partition: int) -> Conversation[int]:
        """Add a deferred partition to a transaction whose first batch for the partition came on this connection (B)."""
        frame = frame_request(partitions_request(_ADD, producer, {topic: (partition,)}), 0, None)
        answer = read_answer(_ADD, (yield from self._ask(frame, 0, (topic,))))
        code = partition_codes(answer)[(topic, partition)]
        return code if code != Code.NOT_COORDINATOR else (yield from self._join(producer, topic, partition))

    def _ask(self, frame: Buffer, correlation: int, topics: Iterable[str]) -> Future[bytearray]:
        """Send a request to the target; the client's connection is closed if its fate is unknown."""
        keys = self._enter(topics)
        if not keys:
            return self._client.ask_target([frame], correlation)
        answer = Future[bytearray]()

        def done(outcome: Outcome) -> None:
            self._shared.entered(keys)
            if outcome.frame is not None:
                answer.set(outcome.frame)

        self._client.write_to_target([frame], correlation, done)
        return answer

    def _join(self, producer: ProducerIdentity, topic: str, partition: int) -> Future[int]:
        keys, joined = self._enter((topic,)), Future[int]()

        def done(code: int) -> None:
            self._shared.entered(keys)
            joined.set(code)

        self._shared.backend.join_at_target(producer, topic, partition).then(done)
        return joined

    def _enter(self, topics: Iterable[str]) -> list[str]:
        """Count a request for the topics that can be rolled back, and return the keys of these topics."""
        routes = (self._shared.table.topics.get(topic) for topic in topics)
        keys = [route.key for route in routes if route is not None and route.copied_back]
        self._shared.forwards.entering.update(keys)
        return keys
