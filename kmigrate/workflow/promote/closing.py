"""Closes the source topic after its flip, so that a late writer is refused instead of acknowledged.

A  The source topic gets `max.message.bytes` of the size of a transaction marker (`CLOSED_SIZE`). The broker refuses
   every larger batch with MESSAGE_TOO_LARGE. Markers still pass, so a late transactional writer is refused and aborts,
   and its transaction ends as usual (`sealing`, E: a refused marker).
B  A lone record with ten bytes of key and value is as small as a marker: the broker takes it, `late_writes` names it.
C  The record has the topic's own value before the seal is on; `promote --no-seal` and `link delete` put it back.
D  Where the source does not let kmigrate alter the topic, the record says so, and only the watch is left.
E  A seal that stands in for silent routers (`sealing`) comes off first.
F  No topic is closed for a link that is being deleted: nobody would know the topic's own value any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.append import Takes
from kmigrate.errors import BrokerRefused, KmigrateError
from kmigrate.model.records import CLOSED_SIZE, Closed, SourceAccess, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import Code
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.promote.size_limit import SizeLimit, put_back_size_limit

__all__ = ["SourceCloser", "closed_topics", "reopen"]

_LOOK_S = 0.5
_AT_ONCE = 20
_PAUSE_S = 0.02
_PROOF_S = 30.0
_DENIED = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_VERSION,
        Code.INVALID_CONFIG,
        Code.INVALID_REQUEST,
        Code.POLICY_VIOLATION,
    }
)
"""Codes by which a cluster refuses the alteration for good."""


@dataclass(slots=True)
class SourceCloser:
    """Closes and opens the source topics of promoted topics, as their records demand."""

    connections: Connections
    troubles: dict[str, str] = field(default_factory=dict)
    """Reasons by record why a topic is not closed or opened yet; the controller tries again."""

    async def run(self) -> None:
        """Close and open topics at every change of the state log, until cancelled."""
        while True:
            await self.look()
            await self.connections.log.changed(_LOOK_S)

    async def look(self) -> None:
        due = self.connections.log.state.topics_that(_due)
        for key in self.troubles.keys() - {record.key for record in due}:
            del self.troubles[key]
        for at in range(0, len(due), _AT_ONCE):
            await together(*map(self._try, due[at : at + _AT_ONCE]))
        if self.troubles:
            await sleep(_LOOK_S)

    async def _try(self, record: TopicRecord) -> None:
        link = self.connections.log.state.link(record.link)
        if link is None or (record.late.seal and self._is_leaving(self.connections.log.state, record)):
            return
        try:
            limit = SizeLimit(*await self.connections.source(link), record)
            await (self._close(limit) if record.late.seal else self._open(limit))
        except KmigrateError as error:
            self.troubles[record.key] = f"tried again: {error.summary}"

    async def _close(self, limit: SizeLimit) -> None:
        record, closed = limit.record, limit.record.closed
        if closed is None:
            try:
                closed = Closed(await limit.tried(CLOSED_SIZE))
            except BrokerRefused as refused:
                if refused.code not in _DENIED:
                    raise
                await self._write(record, Closed("", denied=refused.summary))
                return
            if not await self._write(record, closed):
                return
        await limit.put(CLOSED_SIZE)
        if self._is_leaving(self.connections.log.state, record):
            await limit.put_back(closed.before)
            return
        await self._shown(limit, Takes.NOTHING)
        await self._write(replace(record, closed=closed), replace(closed, proven=True))

    async def _open(self, limit: SizeLimit) -> None:
        closed = limit.record.closed
        if closed is not None and not closed.denied:
            await limit.put_back(closed.before)
            await self._shown(limit, Takes.WRITES)
        await self._write(limit.record, None)

    @staticmethod
    async def _shown(limit: SizeLimit, wanted: Takes) -> None:
        if limit.record.topic not in limit.source.metadata.topics:
            await limit.source.refresh([limit.record.topic])
        with suppress(BrokerRefused):  # without the right to WRITE kmigrate cannot ask; the config is set all the same
            await limit.shown(wanted, monotonic() + _PROOF_S, _PAUSE_S)

    @staticmethod
    def _is_leaving(state: State, record: TopicRecord) -> bool:
        """Return whether the link of a topic is deleted, or being deleted (F)."""
        link = state.link(record.link)
        return link is None or bool(link.deleting_ms)

    async def _write(self, record: TopicRecord, closed: Closed | None) -> bool:
        """Write the seal's state, unless the topic's record has changed."""

        def decide(state: State) -> TopicRecord | None:
            now = state.topic(record.link, record.topic)
            if now is None or now.closed != record.closed or not now.at_target:
                return None
            return None if closed is not None and self._is_leaving(state, record) else replace(now, closed=closed)

        state = await self.connections.log.append(decide)
        now = state.topic(record.link, record.topic)
        return now is not None and now.closed == closed


async def reopen(admin: Admin, record: TopicRecord) -> None:
    """Give a closed source topic back its own size limit."""
    if record.closed is not None:
        await put_back_size_limit(admin, record.topic, record.closed.before)


def _due(record: TopicRecord) -> bool:
    """Return whether a promoted topic's source has to be closed or opened (E)."""
    return record.seal is None and record.source_access in (SourceAccess.CLOSING, SourceAccess.OPENING)


def closed_topics(records: Iterable[TopicRecord]) -> list[TopicRecord]:
    """Return the topics with a limit on the source that is to be put back."""
    return [record for record in records if record.closed is not None and not record.closed.denied]
