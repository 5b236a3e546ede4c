"""Keeps transactional ids alive on the target while all their transactions are at the source (V8), and drops dead ids.

A coordinator forgets an id that is not used for `transactional.id.expiration.ms` (seven days by default), and its
client would fail at the promote. So after a quarter of that time the controller ends an empty transaction under the id.
Every topic of the id must be mirrored, and none being promoted: from the flip on only the client uses the id.

An id that the source has forgotten is not kept alive. An id forgotten by both clusters leaves the state log: without
writes the id couples nothing (Streams and Flink keep naming new ids). A later client is a new holder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from kmigrate.cluster.transactions import begin_and_abort, last_begun
from kmigrate.errors import Failed, KmigrateError
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TransactionRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import row
from kmigrate.workflow.base.connections import Connections

__all__ = ["IdKeeper"]

_log = logging.getLogger("kmigrate.controller")
_EXPIRATION = "transactional.id.expiration.ms"
_USUAL_EXPIRATION_MS = 7 * 24 * 3600 * 1000
_SHARE = 4
_LEAST_S, _MOST_S = 1.0, 3600.0


@dataclass(slots=True)
class IdKeeper:
    """Keeps the ids of one controller's links alive; `look` goes once over all ids."""

    connections: Connections
    _since: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """First sight (monotonic) of each identity; a client that has just come begins a transaction of its own."""

    async def run(self) -> None:
        """Look at all ids again and again, often enough, until cancelled."""
        while True:
            pause = _LEAST_S
            try:
                idle_s = await self._idle_s()
                pause = max(_LEAST_S, min(_MOST_S, idle_s / _SHARE))
                await self.look(idle_s)
            except KmigrateError as error:
                _log.warning("transactional ids of routed producers: %s", error.what)
            # an unforeseen error is logged, and the next round looks at the ids all the same
            except Exception as error:
                _log.error("transactional ids of routed producers", exc_info=error)
            await sleep(pause)

    async def _idle_s(self) -> float:
        """Return the idle time in seconds after which the controller uses an id."""
        target = self.connections.target
        if not target.metadata.brokers:
            await target.refresh([])
        entry = await self.connections.target_admin.broker_config(min(target.metadata.brokers), _EXPIRATION)
        return int(entry.value if entry is not None and entry.value else _USUAL_EXPIRATION_MS) / 1000 / _SHARE

    async def look(self, idle_s: float) -> None:
        state = self.connections.log.state
        identities = {(t.key, t.producer_id, t.epoch): t for t in state.transactions()}
        self._since = {identity: self._since.get(identity, monotonic()) for identity in identities}
        mirrored = _mirrored(state)
        for identity, transaction in identities.items():
            if monotonic() - self._since[identity] < idle_s:
                continue
            try:
                begun = await last_begun(self.connections.target, transaction.name)
                if begun is None:
                    await self._forget(transaction)
                elif mirrored(transaction) and self.connections.log.now_ms() - begun >= idle_s * 1000:
                    await self._use(transaction)
            except KmigrateError as error:
                _log.warning("transactional id %s: %s", transaction.name, error.what)

    async def _forget(self, transaction: TransactionRecord) -> None:
        """Drop an id that the target has forgotten, unless the source still knows the id or the id has a new holder."""
        if not await self._gone_at_source(transaction):
            return  # the id's promote reports the loss
        key = transaction.key
        await self.connections.log.append(lambda state: (key, None) if state.records.get(key) == transaction else None)

    async def _use(self, transaction: TransactionRecord) -> None:
        if await self._gone_at_source(transaction) or not _mirrored(await self.connections.log.read_to_end())(
            transaction
        ):
            # A promote may have begun, also during a standstill: a transaction that is open then is the client's.
            return
        code = await begin_and_abort(
            self.connections.target, transaction.name, (transaction.producer_id, transaction.epoch)
        )
        if code and not row(code).retriable:
            raise Failed("id-not-kept", f"{transaction.name} cannot be kept alive on the target: {row(code).name}")

    async def _gone_at_source(self, transaction: TransactionRecord) -> bool:
        """Return True if the source has forgotten the id; a source that does not answer counts as knowing the id."""
        link = self.connections.log.state.link(transaction.link)
        if link is None:
            return False
        try:
            source, _ = await self.connections.source(link)
            return await last_begun(source, transaction.name) is None
        except KmigrateError:
            return False


def _mirrored(state: State) -> Callable[[TransactionRecord], bool]:
    """Return a test for ids whose topics are all mirrored and not being promoted."""
    phases = {(topic.link, topic.topic): topic.phase for topic in state.topics()}
    links = {link for (link, _), phase in phases.items() if phase is TopicPhase.MIRRORING}

    def mirrored(record: TransactionRecord) -> bool:
        of_topics = (phases.get((record.link, topic), TopicPhase.MIRRORING) for topic in record.topics)
        return record.link in links and all(phase is TopicPhase.MIRRORING for phase in of_topics)

    return mirrored
