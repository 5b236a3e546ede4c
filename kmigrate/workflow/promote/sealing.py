"""A fence that the source broker holds, in place of routers that do not answer (decision 10).

A silent router may have stopped just before a write, or its bytes may lie in the socket of a broker that stands still.
No clock says when that is over (V2). So `max.message.bytes=1` seals the topic on the source, which then refuses every
append, whoever sends the append (V4).

A  A topic is sealed for each router that has not acknowledged this fence with nothing in flight, and was silent for
   `silent_s` or left without notice (`StrayRecord`). The time only ends the wait: safety rests on the broker.
B  The seal, with the value to put back, is in the topic's record before the seal is on the broker. The seal leaves the
   record only when every leader takes writes again, so the next process finds the seal.
C  The barrier is read after the leader of each partition has shown that the seal is in force (`cluster.append`).
D  After an un-fence the seal is taken off at once. After a flip the seal stays until each of its routers has
   acknowledged the fence, has left with notice, or was declared dead.
E  A coordinator whose marker meets the seal never ends that transaction, not even after the seal is gone, and the
   transactional id is lost (tried on 3.9.1). So the topic is sealed when open transactions have ended and the
   identities are revoked (`revoking`). After the proof of the seal, kmigrate asks for open transactions once more. A
   late request of an id that is new to the topic may have begun one: then the seal comes off until that has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.append import Takes, ask_to_append
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import open_writers
from kmigrate.errors import BrokerRefused, KmigrateError, Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import SEALED_SIZE, Seal, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.retry import Backoff
from kmigrate.state.log import StateLog
from kmigrate.workflow.promote.revoking import Revoker, begun
from kmigrate.workflow.promote.size_limit import SizeLimit

__all__ = ["Sealer", "acknowledged", "may_come_off", "strays"]

_PAUSE_S = 0.005
_AGAIN_S = 1.0
_OPENS_S = 30.0


def acknowledged(log: StateLog, record: TopicRecord, instance: str) -> bool:
    """Return True if a router acknowledged the newest fence, nothing in flight; only a newer record lets it forward."""
    presence, _ = log.presence.get(f"router/{instance}", (None, 0.0))
    ack = presence.fences.get(record.key) if isinstance(presence, RouterPresence) else None
    return ack is not None and ack.epoch == record.fence_epoch and ack.in_flight == 0


def strays(state: State) -> dict[str, str]:
    """Return the instances that left without notice, with their names."""
    return {instance: stray.name for stray in state.strays() for instance in stray.instances}


def may_come_off(log: StateLog, record: TopicRecord) -> bool:
    """Return True if a topic's seal has done its work (rule D)."""
    if record.seal is None:
        return False
    if not record.at_target:
        return record.phase in (TopicPhase.MIRRORING, TopicPhase.PROMOTE_PENDING)
    present = {router.instance for router in log.state.routers()} | strays(log.state).keys()
    return all(
        acknowledged(log, record, instance) or present.isdisjoint((instance, f"stray/{name}"))
        for instance, name in record.seal.routers.items()
    )


@contextmanager
def _rights_named(record: TopicRecord, routers: Mapping[str, str]) -> Iterator[None]:
    """Have the refusal of a seal name the routers that the seal is for, and both ways on."""
    try:
        yield
    except BrokerRefused as refused:
        names = sorted(set(routers.values()))
        commands = ", ".join(f"kmigrate router forget {name} --dead" for name in names)
        grant = f"{refused.next_step}; or, if" if refused.next_step else "if"
        raise BrokerRefused(
            refused.ref,
            f"{refused.what}. Topic {record.topic} has to be sealed on the source, because a process of router "
            f"{', '.join(names)} is silent or left without a word, and may live",
            code=refused.code,
            still_true=refused.still_true,
            next_step=f"{grant} no such process runs any more: {commands}",
        ) from refused


@dataclass(slots=True)
class Sealer:
    """Puts seals on a source's topics and takes them off."""

    log: StateLog
    source: ClusterClient
    admin: Admin
    silent_s: float = 5.0
    revoker: Revoker = field(init=False)
    _began: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.revoker = Revoker(self.log, self.source)

    def given_up(self, instance: str) -> bool:
        """Return True if a registered router has been silent for so long that no promote waits any more (rule A)."""
        if instance in {presence.instance for presence in self.log.alive(RouterPresence, self.silent_s)}:
            return False
        return f"router/{instance}" in self.log.presence or monotonic() - self._began > self.silent_s

    def unheard(self, record: TopicRecord) -> dict[str, str]:
        """Return the routers that a fence is sealed for: names by instance."""
        found = strays(self.log.state)
        found.update({r.instance: r.name for r in self.log.state.routers() if self.given_up(r.instance)})
        return {one: name for one, name in found.items() if not acknowledged(self.log, record, one)}

    async def put_on(self, record: TopicRecord, routers: Mapping[str, str], deadline: float) -> bool:
        """Seal a fenced topic and prove the seal (rules B, C, E); False where the record must be read again first."""
        with _rights_named(record, routers):
            return await self._put_on(record, routers, deadline)

    async def try_rights(self, record: TopicRecord, routers: Mapping[str, str]) -> None:
        """Raise BrokerRefused where the source does not let kmigrate seal the topic; change nothing."""
        with _rights_named(record, routers):
            await self._own_limit(record)

    async def _put_on(self, record: TopicRecord, routers: Mapping[str, str], deadline: float) -> bool:
        known = record.seal
        if known is None or not routers.keys() <= known.routers.keys():
            before = known.before if known is not None else await self._own_limit(record)
            names = {**(known.routers if known is not None else {}), **routers}
            await self._write(record, Seal(before, names))
            return False
        limit = SizeLimit(self.source, self.admin, record)
        await self._none_left(record, await self._open(record), deadline)
        while True:
            if not await self.revoker.revoke(record, deadline):
                return False
            while begun_late := await self._open(record):
                await self._none_left(record, begun_late, deadline)
            await limit.put(SEALED_SIZE)
            await self.log.read_to_end()
            now = self.log.state.topic(record.link, record.topic)
            if now is None or now.seal is None:  # another controller has lifted the fence meanwhile
                await limit.put_back(known.before)
                return False
            await limit.shown(Takes.NOTHING, deadline, _PAUSE_S)
            if not await self._open(record):
                return True
            await limit.put_back(known.before)

    async def _open(self, record: TopicRecord) -> dict[str, frozenset[int]]:
        """Return the transactions that are open on the topic, through routers or past them."""
        return await open_writers(self.source, record.topic, record.partitions)

    async def _none_left(self, record: TopicRecord, seen: Mapping[str, frozenset[int]], deadline: float) -> None:
        """Wait until no transaction in `seen` is open; a cut-off router begins others until all ids are revoked."""
        names = sorted(seen)
        tries = Backoff(_PAUSE_S, within_s=deadline - monotonic())
        while names:
            what = f"{', '.join(names)} has a transaction open on {record.topic} at the source"
            await tries.pause(Refused("open-transaction", what))
            now = await self._open(record)
            names = [name for name in names if seen[name] & now.get(name, frozenset())]

    async def take_off(self, record: TopicRecord) -> None:
        """Have the source take writes again; the next look tries again where the source does not answer."""
        if record.seal is None:
            return
        limit = SizeLimit(self.source, self.admin, record)
        try:
            await limit.put_back(record.seal.before)
            await limit.shown(Takes.WRITES, monotonic() + _OPENS_S, _PAUSE_S)
            await self.revoker.finish(record, monotonic() + _OPENS_S)
        except KmigrateError:
            await sleep(_AGAIN_S)
            raise
        await self._write(record, None)

    async def _own_limit(self, record: TopicRecord) -> str:
        """Return the topic's own limit after a trial of the seal; a refusal of the trial leaves nothing to undo."""
        await self.source.refresh([record.topic])
        await self.revoker.refuse_denied(record)
        await ask_to_append(self.source, record.topic, range(record.partitions))
        return await SizeLimit(self.source, self.admin, record).tried(SEALED_SIZE)

    async def _write(self, record: TopicRecord, seal: Seal | None) -> None:
        def decide(state: State) -> Record | None:
            now = state.topic(record.link, record.topic)
            if now is None or now.seal != record.seal or (seal is not None and now != record):
                return None
            if seal is None and begun(state, record):
                return None  # a controller that was taken for dead still revokes: that must end first
            return replace(now, seal=seal)

        await self.log.append(decide)
