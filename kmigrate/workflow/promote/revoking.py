"""Makes the source refuse late transactional requests, in place of routers that do not answer (decision 10).

Before a topic is sealed, the identities under which routers write the topic in transactions are revoked at the source
(`sealing`, E). An identity is a transactional id with its producer id and epoch. Revoking raises the epoch, so the
coordinator refuses the older epoch. The raise writes nothing to the topic, because no identity has a transaction open.

A  Routers write identities into the state log before use. Behind the fence they have read of it, and begin nothing.
B  The raise makes the source forget how the last transaction ended, and a client whose response was lost may ask again.
   So the id's record has the end before. The record counts once the source is known to refuse the identity (`proven`):
   until then a transaction may slip in and end.
C  A transaction that has slipped in and is still open is aborted by the raise. Nothing of it may be written elsewhere:
   the record marks the identity `cut off`, because the client may not know.
D  Any process repeats half-done work, and no epoch is raised twice. A client that comes back gets another identity.
E  Before Kafka 3.0 a coordinator tells of no transaction: an abort is sent under the identity. The abort changes
   nothing about an ended transaction, and its error code says how that ended. A transaction that the abort may have
   aborted counts as cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import (
    NO_MORE,
    Identity,
    end_transaction,
    id_state,
    raise_epoch,
    refuse_unwritable_id,
    tells_transactions,
)
from kmigrate.errors import BrokerRefused, Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import LastEnd, Revoked, TopicRecord, TransactionRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import Code, row
from kmigrate.state.log import StateLog

__all__ = ["Revoker", "begun"]

_PAUSE_S = 0.005
_AT_ONCE = 50
"""Ids that are asked about at the same time."""
_CUT_OFF = Revoked(LastEnd.CUT_OFF)


@dataclass(slots=True)
class Revoker:
    """Takes back identities of transactional ids at a link's source."""

    log: StateLog
    source: ClusterClient
    tells: bool | None = None
    """True from Kafka 3.0 on: coordinators tell of transactions; None: not asked yet."""

    async def refuse_denied(self, record: TopicRecord) -> None:
        """Refuse where the source would not let kmigrate revoke; the question changes nothing."""
        for some in _batches(_writers(self.log.state, record)):
            await together(*(refuse_unwritable_id(self.source, writer.name) for writer in some))

    async def revoke(self, record: TopicRecord, deadline: float) -> bool:
        """Revoke until the source refuses every identity that may write a topic in transactions (A).

        An identity is revoked once it has no transaction open: routers that go on stop one identity after the other.
        After a lifted fence no further identity is touched; returns False then.
        """
        while writers := [each for each in _writers(self.log.state, record) if each.in_force]:
            if not _fenced(self.log.state, record):
                return False
            await self._all(record, writers, deadline)
        return True

    async def finish(self, record: TopicRecord, deadline: float) -> None:
        """Finish every revocation that any process has begun (D)."""
        while writers := begun(self.log.state, record):
            await self._all(record, writers, deadline)

    async def _all(self, record: TopicRecord, writers: Sequence[TransactionRecord], deadline: float) -> None:
        """Revoke all identities that can be revoked now."""
        if self.tells is None:
            self.tells = await tells_transactions(self.source)
        ready = writers if self.tells else await self._with_none_open(writers)
        if not ready:
            await _pause(deadline, ", ".join(writer.name for writer in writers))
        for some in _batches(ready):
            await together(*(self._revoke(record, writer, deadline) for writer in some))

    async def _with_none_open(self, writers: Sequence[TransactionRecord]) -> Sequence[TransactionRecord]:
        """Return the writers without an open transaction in any log of any topic: an abort would end it (E)."""
        state = self.log.state
        records = [each for writer in writers for each in _records_of(state, writer)]
        topics = {(each.link, topic) for each in records for topic in each.topics}
        found = filter(None, (state.topic(link, topic) for link, topic in sorted(topics)))
        keys = [key for topic in found for key in topic.topic_partitions]
        described = (await self.source.describe_producers(keys)).values()
        open_ = {p.producer_id for _, producers in described for p in producers if p.txn_start_offset >= 0}
        return [writer for writer in writers if writer.source_id not in open_]

    async def _revoke(self, record: TopicRecord, writer: TransactionRecord, deadline: float) -> None:
        identity = (writer.name, writer.source_id, writer.source_epoch)
        while True:
            now = self.log.state.transaction(writer.link, writer.name)
            if now is None or not _same(now, writer):
                return  # the id has another writer by now, and is looked at anew
            look = self._described if self.tells else self._aborted
            known = await look(now, identity, deadline)
            await self._write(record, writer, known)
            now = self.log.state.transaction(writer.link, writer.name)
            if known.proven or now is None or now.revoked is None or not _same(now, writer):
                return
            code = await raise_epoch(self.source, identity)
            if not code or code in NO_MORE:
                await self._write(record, writer, replace(_CUT_OFF if code else known, proven=True))
                return
            if not row(code).retriable:
                raise BrokerRefused("broker-refused", f"{writer.name}: InitProducerId: {row(code).name}", code=code)
            # a transaction has slipped in, and ends by its client, a time-out or the next look
            await _pause(deadline, writer.name)

    async def _described(self, record: TransactionRecord, identity: Identity, deadline: float) -> Revoked:
        """Wait until an identity has no transaction open; return how its last transaction ended."""
        name, *pair = identity
        while (now := await id_state(self.source, name)) is not None and now.is_open:
            await _pause(deadline, name)
        if now is None:
            # the source has forgotten the id, and how its last transaction ended
            return Revoked(LastEnd.COMMITTED, proven=True)
        if [now.producer_id, now.epoch] == pair:
            return Revoked(LastEnd.ABORTED if now.aborted else LastEnd.COMMITTED)
        if record.revoked is not None and now.is_empty:
            return replace(record.revoked, proven=True)
        # a transaction was aborted, by the raised epoch or by the coordinator at its time-out
        return replace(_CUT_OFF, proven=True)

    async def _aborted(self, record: TransactionRecord, identity: Identity, deadline: float) -> Revoked:
        """Return how the last transaction ended, for a coordinator before Kafka 3.0, by sending an abort (E)."""
        while (code := await end_transaction(self.source, identity, committed=False)) and row(code).retriable:
            await _pause(deadline, identity[0])
        if code == Code.INVALID_TXN_STATE:
            return Revoked(LastEnd.COMMITTED)
        if code in NO_MORE and record.revoked is not None:
            return record.revoked  # the next raise of the epoch tells whether only the epoch was raised
        return _CUT_OFF

    async def _write(self, record: TopicRecord, writer: TransactionRecord, revoked: Revoked) -> None:
        """Write the revocation into the records of all links to which the source has given this identity.

        A cut-off identity stays so. A first revocation needs the same fence, which somebody may have lifted since.
        """
        for each in _records_of(self.log.state, writer):

            def decide(state: State, each: TransactionRecord = each) -> TransactionRecord | None:
                now = state.transaction(each.link, each.name)
                if now is None or not _same(now, each) or not now.in_force:
                    return None
                if now.revoked is None and not _fenced(state, record):
                    return None
                wanted = replace(revoked, last_end=LastEnd.CUT_OFF) if now.cut_off else revoked
                return None if now.revoked == wanted else replace(now, revoked=wanted)

            await self.log.append(decide)


def _writers(state: State, record: TopicRecord) -> list[TransactionRecord]:
    return [each for each in state.transactions(record.link) if record.topic in each.topics and each.at_source]


def begun(state: State, record: TopicRecord) -> list[TransactionRecord]:
    """Return the writers of a topic whose revocation has begun and is not proven."""
    return [each for each in _writers(state, record) if each.revoked is not None and each.in_force]


def _fenced(state: State, record: TopicRecord) -> bool:
    """Return True if a topic is still under the fence that the topic is sealed for."""
    now = state.topic(record.link, record.topic)
    if now is None or now.seal is None:
        return False
    return now.phase is TopicPhase.FENCING and now.fence_epoch == record.fence_epoch


def _same(one: TransactionRecord | None, other: TransactionRecord) -> bool:
    """Return True if both records hold the same identity at the source."""
    return one is not None and (one.source_id, one.source_epoch) == (other.source_id, other.source_epoch)


def _records_of(state: State, writer: TransactionRecord) -> list[TransactionRecord]:
    """Return the records of an identity in all links with the same source, where an id has one writer."""
    home = state.link(writer.link)
    links = [each.name for each in state.links() if home is not None and each.source.is_same(home.source)]
    found = (state.transaction(link, writer.name) for link in links)
    return [each for each in found if each is not None and _same(each, writer)]


def _batches(writers: Sequence[TransactionRecord]) -> Iterator[Sequence[TransactionRecord]]:
    return (writers[at : at + _AT_ONCE] for at in range(0, len(writers), _AT_ONCE))


async def _pause(deadline: float, names: str) -> None:
    if monotonic() > deadline:
        raise Refused("open-transaction", f"{names} has a transaction open at the source")
    await sleep(_PAUSE_S)
