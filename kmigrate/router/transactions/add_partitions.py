"""Adds partitions to a transaction at the target for one client connection: at once, or with a first batch
(`shared.deferred_partitions`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from kmigrate.protocol.api import ApiKey, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code
from kmigrate.router.shared.deferred_partitions import Holder
from kmigrate.router.shared.state import ClientLink, SharedState
from kmigrate.router.transactions.request import TxnRequest
from kmigrate.router.wire.transactions import partition_codes, partitions_answer, partitions_of, partitions_request

__all__ = ["AddPartitionsHandler"]

_ADD = entity(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "request")


@dataclass(slots=True, eq=False)
class AddPartitionsHandler:
    """Handles AddPartitionsToTxn for the target."""

    _shared: SharedState
    _client: ClientLink
    _gone: bool = False

    def add(self, txn: TxnRequest) -> None:
        """Ask the target about each partition that may be late, then pass on the other partitions (A)."""
        late, table = self._shared.deferred, self._shared.table
        asked = {
            (topic, index)
            for topic, partitions in partitions_of(txn.request).items()
            for index in partitions
            if late.may_be(table, txn.holder, topic, index)
        }
        if not asked:
            self._without((), txn)
            return
        answers: dict[tuple[str, int], bool | None] = {}

        def told(key: tuple[str, int], known: bool | None) -> None:
            answers[key] = known
            if len(answers) < len(asked):
                return
            if None not in answers.values():
                self._without([key for key, known in answers.items() if not known], txn)
            elif not self._gone:
                txn.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        for key in sorted(asked):
            self._shared.conversations.start(self._shared.has_written(*key, txn.producer_id)).then(partial(told, key))

    @property
    def owes(self) -> bool:
        """True if this connection's client was told that a late partition is in before it is (D)."""
        return self._shared.deferred.owes(self)

    def closed(self) -> None:
        self._gone = True
        self._shared.deferred.left(self)

    def join(self, holder: Holder, topic: str, partition: int, then: Callable[[int], None]) -> None:
        """Add a late partition to a transaction whose first batch for the partition came on this connection (B)."""

        def told(frame: bytearray) -> None:
            code = partition_codes(read_answer(_ADD, frame))[(topic, partition)]
            if code == Code.NOT_COORDINATOR:
                self._shared.backend.join_at_target(holder, topic, partition).then(then)
            else:
                then(code)

        frame = frame_request(partitions_request(_ADD, holder, {topic: (partition,)}), 0, None)
        self._client.to_target([frame], 0, told)

    def _without(self, late: Collection[tuple[str, int]], txn: TxnRequest) -> None:
        """Pass on the partitions that are not late, and tell the client that all are in (A, D)."""
        if self._gone:
            return
        if not late or self._shared.table.finished:
            self._client.to_target([txn.frame], txn.head.correlation_id, txn.reply)
            return
        self._shared.deferred.owe(txn.name, self, late)
        wanted = partitions_of(txn.request)
        rest = {t: left for t, parts in wanted.items() if (left := tuple(i for i in parts if (t, i) not in late))}
        if not rest:
            txn.fail(0)
            return

        def told(frame: bytearray) -> None:
            codes = partition_codes(txn.read(frame))
            txn.reply(partitions_answer(txn.head, txn.request, codes, 0))

        message = partitions_request(type(txn.request), txn.holder, rest)
        frame = frame_request(message, txn.head.correlation_id, txn.head.client_id)
        self._client.to_target([frame], txn.head.correlation_id, told)
