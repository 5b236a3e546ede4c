"""Keeps other writers out of a source topic while the topic is copied back, by deny ACLs (decision 21).

The seal of `closing` would refuse the copy back, too. So where the source has an authorizer, each other principal that
may write the topic is denied by name.

A  The entries are in the topic's record before they are created, and until no broker of the source has an entry.
   An equal ACL that exists already is somebody else's: such an ACL is not in the record, and stays.
B  Entries are created for promoted topics alone. A rollback waits for entries that are on their way (`arriving`). After
   the last check before its flip, a rollback deletes them, and every broker has to show it (`lift`). An un-fence has
   them created anew.
C  A way back that has ended leaves the entries until the source is closed, or until that is known not to happen.
D  A controller that was taken for dead may create entries once more. So it reads the state log to the end before the
   creation and after the creation, and deletes what nobody wants any more. For some time after a lift the source is
   looked at, and such entries are deleted (`_SWEPT_MS`).
E  kmigrate's own principals are never denied: the controller's, and those that the mirrors report. Where a name is
   unknown, or an ACL cannot be denied by name, nobody is denied, and the record says why. Should the entries stop
   kmigrate all the same, or a mirror start under a name that is denied, they are lifted at once.
F  No entry is created for a link that is being deleted: `link delete` deletes those of the record.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from kmigrate.cluster.acls import read_acls, wait_at_all_brokers
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.rights import read_rights
from kmigrate.errors import BrokerRefused, KmigrateError, Refused, Unreachable
from kmigrate.model.acls import Acl, deny_entries
from kmigrate.model.grants import CLUSTER_NAME
from kmigrate.model.lifecycle import ROLLING_BACK, TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import DeniedWriters, LinkRecord, TopicRecord
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.model.rights import Standing
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections

__all__ = ["WriterDenier", "denials", "entries_of", "lift", "lifted", "mirror_principals", "refuse_unliftable"]

_LOOK_S = 0.5
_AGAIN_S = 60.0
"""Seconds between two looks for writers to deny, where none could be denied at the first look."""
_SWEEP_S = 5.0
_SWEPT_MS = 600_000
"""Time after a lift in which the source is looked at for entries that have come back (D)."""
_PROOF_S = 10.0
_log = logging.getLogger("kmigrate.controller")


async def denials(source: ClusterClient, topics: Collection[str], mirrors: Set[str]) -> dict[str, DeniedWriters] | None:
    """Return by topic the principals to deny, or why nobody can be denied; None for a source without an authorizer.

    `mirrors`: the principals of the link's mirrors at the source.
    """
    who = source.settings.security.principal
    spared = {who, *mirrors}
    try:
        rules = await read_acls(source)
        if rules is None:
            return None
        rights = await read_rights(source, (), ())
    except Unreachable:
        raise
    except KmigrateError as error:
        return dict.fromkeys(topics, DeniedWriters(open=error.what))
    if unnamed := sorted(each for each in spared if not each.startswith("User:")):
        return dict.fromkeys(topics, DeniedWriters(open=f"the name of {unnamed[0]} is not known"))
    if rights.standing("CLUSTER", "ALTER", CLUSTER_NAME) is not Standing.GRANTED:
        return dict.fromkeys(topics, DeniedWriters(open=f"{who} is not known to have ALTER on the cluster"))
    return {topic: _denied(deny_entries(rules, topic, spared)) for topic in topics}


def mirror_principals(log: StateLog, link: str) -> frozenset[str]:
    """Return the principals at the source of a link's running mirrors."""
    names = {mirror.writes_as for mirror in log.alive(MirrorPresence) if mirror.link == link}
    return frozenset(names - {""})


def _denied(found: tuple[Acl, ...] | str) -> DeniedWriters:
    if isinstance(found, str):
        return DeniedWriters(open=found)
    return DeniedWriters(found, in_force=not found)


async def lift(source: ClusterClient, admin: Admin, entries: Collection[Acl], deadline: float) -> None:
    """Delete deny entries, and wait until no broker of the source has any of the entries."""
    refusal: BrokerRefused | None = None
    try:
        await admin.delete_acls(entries)
    except BrokerRefused as refused:  # a person may have deleted the entries by hand
        refusal, deadline = refused, monotonic()

    def still(node: int) -> KmigrateError:
        return refusal or Refused("writers-still-denied", f"broker {node} of the source still has the deny entries")

    await wait_at_all_brokers(source, frozenset(entries).isdisjoint, still, deadline)


async def refuse_unliftable(source: ClusterClient, record: TopicRecord) -> None:
    """Refuse a rollback, before its fence, where the source no longer lets kmigrate delete the deny entries."""
    if record.denied is None or not record.denied.may_exist:
        return
    rights = await read_rights(source, (), ())
    if rights.standing("CLUSTER", "ALTER", CLUSTER_NAME) is Standing.MISSING:
        rules = await read_acls(source)
        if rules is None or rules.isdisjoint(record.denied.entries):
            return
        name, who = source.settings.name, source.settings.security.principal
        raise Refused(
            "writers-still-denied",
            f"{record.denied.names} may not write {record.topic} at {name}, and {who} may not change that: it "
            "lacks ALTER on the cluster",
            next_step=f"grant {who} ALTER on the cluster, or delete the ACLs by hand; then repeat",
        )


class _Step(Enum):
    """The next step with the deny entries of a topic."""

    CHOOSE = auto()
    ARRIVE = auto()
    LEAVE = auto()
    SPARE = auto()
    SWEEP = auto()
    FORGET = auto()


def _concerns(record: TopicRecord) -> bool:
    """Return whether a topic may need deny entries, or has had some."""
    wanted = record.phase is TopicPhase.PROMOTED and record.copied_back
    return wanted or (record.denied is not None and bool(record.denied.entries))


def _step(state: State, record: TopicRecord, at_ms: int, mirrors: Set[str]) -> _Step | None:
    link, denied = state.link(record.link), record.denied
    if link is None or link.deleting_ms or is_rehearsal(record.link):
        return None
    if record.phase in ROLLING_BACK and record.copied_back:
        return _Step.ARRIVE if denied is not None and denied.arriving else None
    if record.phase is TopicPhase.PROMOTED and record.copied_back and link.settings.deny_writers:
        if denied is None or denied.lifted_ms or denied.open:
            return _Step.CHOOSE
        if any(entry.principal in mirrors for entry in denied.entries):
            return _Step.SPARE  # a mirror has started under a name that is denied
        return _Step.ARRIVE if denied.arriving else None
    if denied is None:
        return None
    if denied.may_exist:
        return _Step.LEAVE if record.copied_back or _is_closed(record) else None
    if not denied.lifted_ms:
        return None
    if at_ms - denied.lifted_ms < _SWEPT_MS:
        return _Step.SWEEP
    return _Step.FORGET if record.phase is TopicPhase.MIRRORING else None


def _is_closed(record: TopicRecord) -> bool:
    """Return whether the source of a topic without a way back is closed, or is known to stay open (C)."""
    if not record.at_target or (not record.late.seal and record.closed is None):
        return True
    return record.late.seal and record.closed is not None and (record.closed.proven or bool(record.closed.denied))


@dataclass(slots=True)
class WriterDenier:
    """Creates and deletes the deny entries of promoted topics, as their records demand."""

    connections: Connections
    troubles: dict[str, str] = field(default_factory=dict)
    """Reasons by record why entries are not created or deleted yet; the controller tries again."""
    _looked: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Fence epochs and times of the last looks for writers to deny, by record."""
    _swept: dict[str, float] = field(default_factory=dict)
    """Times of the last looks for entries that have come back, by link."""

    async def run(self) -> None:
        """Create and delete entries at every change of the state log, until cancelled."""
        while True:
            await self.look()
            await self.connections.log.changed(_LOOK_S)

    async def look(self) -> None:
        """Take the next step with each topic."""
        log = self.connections.log
        state, at_ms = log.state, log.now_ms()
        mirrors = {link.name: mirror_principals(log, link.name) for link in state.links()}
        due: dict[tuple[str, _Step], list[TopicRecord]] = {}
        for record in state.topics_that(_concerns):
            step = _step(state, record, at_ms, mirrors.get(record.link, frozenset()))
            if step is not None and self._is_time(record, step):
                due.setdefault((record.link, step), []).append(record)
        taken = {record.key for records in due.values() for record in records}
        self.troubles = {key: why for key, why in self.troubles.items() if key in taken}
        await together(*(self._try(link, step, records) for (link, step), records in due.items()))
        if self.troubles:
            await sleep(_LOOK_S)

    def _is_time(self, record: TopicRecord, step: _Step) -> bool:
        if step is _Step.CHOOSE:
            looked = self._looked.get(record.key)
            return looked is None or looked[0] != record.fence_epoch or monotonic() - looked[1] >= _AGAIN_S
        if step is _Step.SWEEP:
            return monotonic() - self._swept.get(record.link, -_SWEEP_S) >= _SWEEP_S
        return True

    async def _try(self, name: str, step: _Step, records: Sequence[TopicRecord]) -> None:
        link = self.connections.log.state.link(name)
        if link is None:
            return
        try:
            await self._take(link, step, records)
        except KmigrateError as error:
            self.troubles |= dict.fromkeys((each.key for each in records), f"tried again: {error.summary}")
        else:
            for record in records:
                self.troubles.pop(record.key, None)

    async def _take(self, link: LinkRecord, step: _Step, records: Sequence[TopicRecord]) -> None:
        source, admin = await self.connections.source(link)
        match step:
            case _Step.CHOOSE:
                await self._choose(source, records)
            case _Step.ARRIVE:
                await self._arrive(link, source, admin, records)
            case _Step.LEAVE:
                await self._let_in(source, admin, records, step)
            case _Step.SPARE:
                mirrors = ", ".join(sorted(mirror_principals(self.connections.log, link.name)))
                await self._let_in(source, admin, records, step, f"a mirror logs in as {mirrors}")
            case _Step.SWEEP:
                await self._sweep(link, source, admin, records)
            case _Step.FORGET:
                for record in records:
                    await self._write(record, _Step.FORGET, None)

    async def _choose(self, source: ClusterClient, records: Sequence[TopicRecord]) -> None:
        mirrors = mirror_principals(self.connections.log, records[0].link)
        found = await denials(source, [record.topic for record in records], mirrors)
        for record in records:
            self._looked[record.key] = record.fence_epoch, monotonic()
            if found is not None and found[record.topic] != record.denied:
                await self._write(record, _Step.CHOOSE, found[record.topic])

    async def _arrive(
        self, link: LinkRecord, source: ClusterClient, admin: Admin, records: Sequence[TopicRecord]
    ) -> None:
        state = await self.connections.log.read_to_end()
        wanted = [each for each in records if self._is_at(state, each, _Step.ARRIVE)]
        await admin.create_acls(entries_of(wanted))
        state = await self.connections.log.read_to_end()
        await admin.delete_acls(entries_of([each for each in wanted if _is_unwanted(state, link, each)]))
        wanted = [each for each in wanted if self._is_at(state, each, _Step.ARRIVE)]
        if not wanted:
            return

        def missing(node: int) -> KmigrateError:
            return Refused("writers-not-denied", f"broker {node} of the source does not have the deny entries yet")

        await wait_at_all_brokers(source, frozenset(entries_of(wanted)).issubset, missing, monotonic() + _PROOF_S)
        rights = await read_rights(source, [each.topic for each in wanted], ())
        stopped = [each for each in wanted if rights.standing("TOPIC", "WRITE", each.topic) is Standing.MISSING]
        for record in wanted:
            if record not in stopped:
                await self._write(record, _Step.ARRIVE, replace(record.denied or DeniedWriters(), in_force=True))
        if stopped:
            why = f"the deny entries stopped {source.settings.security.principal}, too"
            await self._let_in(source, admin, stopped, _Step.ARRIVE, why)

    async def _let_in(
        self, source: ClusterClient, admin: Admin, records: Sequence[TopicRecord], step: _Step, why: str = ""
    ) -> None:
        """Delete the entries of topics; `why` keeps the topics open until a later look for writers to deny."""
        await lift(source, admin, entries_of(records), monotonic() + _PROOF_S)
        for record in records:
            after = DeniedWriters(open=why) if why else lifted(record.denied, self.connections.log.now_ms())
            await self._write(record, step, after)

    async def _sweep(
        self, link: LinkRecord, source: ClusterClient, admin: Admin, records: Sequence[TopicRecord]
    ) -> None:
        self._swept[link.name] = monotonic()
        back = (await read_acls(source) or frozenset()).intersection(entries_of(records))
        if back:
            named = "; ".join(map(str, sorted(back)))
            _log.warning("deny entries have come back on %s, and are deleted: %s", link.source.name, named)
            await admin.delete_acls(sorted(back))

    def _is_at(self, state: State, record: TopicRecord, step: _Step) -> bool:
        """Return whether a topic still has the same entries, and the same next step."""
        now = state.topic(record.link, record.topic)
        if now is None or now.denied != record.denied:
            return False
        log = self.connections.log
        return _step(state, now, log.now_ms(), mirror_principals(log, now.link)) is step

    async def _write(self, record: TopicRecord, step: _Step, denied: DeniedWriters | None) -> None:
        """Write what has become of the entries, unless the topic's next step is another by now."""

        def decide(state: State) -> TopicRecord | None:
            now = state.topic(record.link, record.topic)
            return replace(now, denied=denied) if now is not None and self._is_at(state, record, step) else None

        await self.connections.log.append(decide)


def lifted(denied: DeniedWriters | None, at_ms: int) -> DeniedWriters | None:
    """Return entries that are proven to be gone; None where there were none."""
    if denied is None or not denied.entries:
        return None
    return replace(denied, in_force=False, lifted_ms=denied.lifted_ms or at_ms)


def entries_of(records: Collection[TopicRecord]) -> list[Acl]:
    """Return the deny entries that the records of topics name."""
    return sorted({entry for record in records if record.denied is not None for entry in record.denied.entries})


def _is_unwanted(state: State, link: LinkRecord, record: TopicRecord) -> bool:
    """Return whether nobody but us would delete the entries that were just created (D, F)."""
    current, now = state.link(link.name), state.topic(record.link, record.topic)
    if current is None or current.deleting_ms or now is None:
        return True
    return now.denied is None or not now.denied.may_exist
