"""The steps of a rehearsal, from the first record of its link to the removal of everything."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from kmigrate.cluster.client import LATEST
from kmigrate.cluster.requests import Key
from kmigrate.errors import Failed, KmigrateError, Refused, WaitTimedOut
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import Action, LinkRecord, PromoteTerms, RollbackTerms, TopicRecord
from kmigrate.model.rehearsals import group_of
from kmigrate.model.reports import ReportedKind, ReportRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import TaskOwner
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan
from kmigrate.workflow.base.running import mirror_runs, no_mirror
from kmigrate.workflow.rehearsal.cleaning import clean
from kmigrate.workflow.rehearsal.contents import Contents, read_contents
from kmigrate.workflow.rehearsal.feed import Feed
from kmigrate.workflow.rehearsal.outcome import MovedGroup, Rehearsed, RehearsedTopic, Switch
from kmigrate.workflow.rehearsal.plan import RehearsalPlan
from kmigrate.workflow.rehearsal.reader import Reader
from kmigrate.workflow.rehearsal.running import announce, beat

__all__ = ["REMOVED", "RehearsalTerms", "rehearse"]

REMOVED = "the real topics and groups are untouched, and what the rehearsal has made is removed"
"""The state after a rehearsal that did not end well."""
_LEFT = "rehearsal-left"
_AGAIN_S = 0.5
_CLEAN_S = 20.0
"""Seconds for which a failed removal is tried again; the controller goes on afterwards."""
_TIME_LIFTS = frozenset(
    {
        "direct-writers",
        "member-on-source",
        "members-on-source",
        "not-mirroring",
        "router-unheard",
        "target-behind-group",
        "topic-not-settled",
        "unknown-group",
        "unknown-topic",
    }
)
"""Refusals that time alone lifts: for example, the controller has yet to put a promoted topic's configs back."""
_REPORT_S = 20.0
"""Seconds within which a controller writes the report of a promote or rollback."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RehearsalTerms:
    """What the caller of a rehearsal asks for."""

    traffic_s: float
    """Seconds of traffic before the promote, and again before the rollback."""
    timeout_s: float
    """Longest time of each step."""
    process_wait_s: float
    """Longest wait for a mirror process."""
    who: str


async def rehearse(connections: Connections, planned: RehearsalPlan, terms: RehearsalTerms, say: Say) -> Rehearsed:
    """Carry a rehearsal out, and remove everything at the end, also after an error or a cancellation."""
    try:
        async with _link(connections, planned, say) as link:
            return await _Rehearsal(connections, planned, link, terms, say).run()
    except KmigrateError as error:
        if error.ref != _LEFT:
            error.still_true = REMOVED
            if planned.name in error.next_step:  # advice about shadow topics, which are gone
                error.next_step = "mend the cause, then repeat the rehearsal"
        raise


@asynccontextmanager
async def _link(connections: Connections, planned: RehearsalPlan, say: Say) -> AsyncIterator[LinkRecord]:
    """Store the rehearsal's link, with a heartbeat, before anything is made; remove everything at the end."""
    log, instance = connections.log, secrets.token_hex(4)
    link = LinkRecord(
        planned.name,
        secrets.token_hex(8),
        planned.link.source,
        planned.link.target,
        now_ms(),
        settings=planned.link.settings,
    )
    await announce(log, link.name, instance)  # before the link: a controller removes a link without a heartbeat
    tasks = TaskOwner()
    tasks.start(beat(log, link.name, instance), "heartbeat")
    try:
        await log.append(lambda state: link if state.link(link.name) is None else None)
        try:
            yield link
        finally:
            say("removing what the rehearsal has made")
            await _cleaned(connections, link)
    finally:
        await tasks.close()


async def _cleaned(connections: Connections, link: LinkRecord) -> None:
    """Remove everything; try again for a while, because a busy cluster may refuse a deletion for a moment."""
    tries = Backoff(_AGAIN_S, 4.0, within_s=_CLEAN_S)
    try:
        while True:
            try:
                await clean(connections, link)
                return
            except KmigrateError as error:
                await tries.pause(error)
    except KmigrateError as error:
        raise Failed(
            _LEFT,
            f"not all that rehearsal {link.name} has made is removed: {error.what}",
            still_true="the real topics and groups are untouched; a running controller goes on removing the rest",
            next_step="kmigrate rehearse --clean",
        ) from error


class _Rehearsal:
    """One rehearsal: the clients, and the steps in order."""

    def __init__(
        self, connections: Connections, planned: RehearsalPlan, link: LinkRecord, terms: RehearsalTerms, say: Say
    ) -> None:
        self._connections, self._log = connections, connections.log
        self._planned, self._link, self._terms, self._say = planned, link, terms, say
        self._shadows = {shadow.name: shadow for shadow in planned.shadows}
        source = connections.settings_of(link.source.name)
        self._feed = Feed(planned.shadows, source)
        self._said: Sequence[Finding] = ()
        """Findings of the promote of the shadow topics."""
        self._no_rollback: dict[str, str] = {}
        self._reader = Reader(group_of(link.name), list(self._shadows), source)

    async def run(self) -> Rehearsed:
        await self._create()
        self._feed.start()
        self._reader.start()
        try:
            await self._mirror()
            await self._roll()
            await self._promote()
            await self._roll_back()
        finally:
            await self._reader.stop()
            await self._feed.stop()
        self._check()
        return await self._outcome()

    def _check(self) -> None:
        self._feed.check()
        self._reader.check()

    async def _create(self) -> None:
        self._say("creating the shadow topics")
        source, admin = await self._connections.source(self._link)
        for shape in self._planned.shapes:
            await admin.create_topic(shape.name, shape.partitions, shape.replicas, shape.configs)
        tries = Backoff(0.2, 1.0, within_s=self._terms.timeout_s)
        while not self._shadows.keys() <= (await source.refresh(list(self._shadows))).topics.keys():
            await tries.pause(WaitTimedOut("rehearsal-slow", "the brokers do not know the shadow topics yet"))

    async def _mirror(self) -> None:
        self._say("waiting for a mirror of the rehearsal's link")
        if not await self._until(lambda: mirror_runs(self._log, self._link.name), self._terms.process_wait_s):
            raise WaitTimedOut(
                "no-mirror-running",
                f"{no_mirror(self._link.name)}, for {self._terms.process_wait_s:g} s",
                next_step="kmigrate run, or kmigrate mirror run without --link: a mirror that is bound to another link "
                "does not take up the link of the rehearsal",
            )
        names = list(self._shadows)
        await self._carried(lambda: verbs.mirror_topics(self._connections, self._link.name, names, "earliest", "auto"))
        await self._wait("mirroring the shadow topics", {TopicPhase.MIRRORING})
        group = group_of(self._link.name)
        await self._carried(lambda: verbs.mirror_groups(self._connections, self._link.name, [group], mode="auto"))

    async def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        deadline = monotonic() + within_s
        while not holds():
            if monotonic() > deadline:
                return False
            self._check()
            await self._log.changed(_AGAIN_S)
        return True

    async def _roll(self) -> None:
        self._say("rolling the rehearsal's clients to the routers")
        routers = [each.bootstrap for each in self._log.alive(RouterPresence) if each.bootstrap]
        at_routers = _at(self._connections.target.settings, routers)
        await self._reader.move(at_routers, self._terms.timeout_s)
        await self._feed.move(at_routers, self._terms.timeout_s)
        await self._traffic()

    async def _traffic(self) -> None:
        self._say(f"traffic for {self._terms.traffic_s:g} s")
        await sleep(self._terms.traffic_s)
        self._check()

    async def _promote(self) -> None:
        link, names, group = self._link.name, list(self._shadows), group_of(self._link.name)
        self._say("promoting the group")
        await self._carried(lambda: verbs.promote_groups(self._connections, link, [group], who=self._terms.who))
        await verbs.wait_groups(self._connections, link, [group], self._terms.timeout_s)
        self._say("promoting the shadow topics")
        settings = self._link.settings
        terms = PromoteTerms(
            now_ms(),
            settings.lag_threshold,
            settings.pending_timeout_s,
            settings.fence_timeout_s,
            way_back=True,
            asked_by=self._terms.who,
        )
        window = settings.straggler_window_s
        promoted = await self._carried(
            lambda: verbs.promote_topics(
                self._connections, link, names, terms, straggler_window_s=window, wait_s=window + 1
            )
        )
        self._said = promoted.findings
        await self._wait("promoting the shadow topics", {TopicPhase.PROMOTED})
        await self._traffic()

    async def _roll_back(self) -> None:
        """Roll back the shadow topics that have a way back."""
        link, settings = self._link.name, self._link.settings
        self._no_rollback = {record.topic: why for record in self._records() if (why := self._no_way_back(record))}
        names = [name for name in self._shadows if name not in self._no_rollback]
        if not names:
            return
        self._say("rolling the shadow topics back")
        terms = RollbackTerms(now_ms(), settings.lag_threshold, settings.pending_timeout_s, settings.fence_timeout_s)
        await self._carried(lambda: verbs.roll_back_topics(self._connections, link, names, terms, who=self._terms.who))
        await verbs.wait_rolled_back(self._connections, link, names, self._terms.timeout_s)
        await self._traffic()

    def _no_way_back(self, record: TopicRecord) -> str:
        """Return why a shadow topic cannot be rolled back, as the plan of its promote said, or its record says."""
        way = record.way_back
        if way is not None and way.open:
            return ""
        said = [each.what for each in self._said if each.ref == "no-way-back" and f" {record.topic} " in each.what]
        return way.ended if way is not None else next(iter(said), "the promote opened no way back")

    def _records(self) -> list[TopicRecord]:
        records = [self._log.state.topic(self._link.name, name) for name in self._shadows]
        return [record for record in records if record is not None]

    async def _wait(self, what: str, phases: set[TopicPhase]) -> None:
        def say(state: State) -> None:
            records = (state.topic(self._link.name, name) for name in self._shadows)
            self._say(f"{what}: " + ", ".join(f"{each.topic} is {each.phase}" for each in records if each is not None))

        await verbs.wait_topics(
            self._connections, self._link.name, list(self._shadows), phases, self._terms.timeout_s, say
        )
        self._check()

    async def _carried(self, look: Callable[[], Awaitable[verbs.Proposal]]) -> Plan:
        """Carry a verb out; look again while time alone lifts each refusal."""
        tries = Backoff(_AGAIN_S, within_s=self._terms.timeout_s)
        while True:
            self._check()
            try:
                return await (await look()).carry_out()
            except Refused as refused:
                if not _time_lifts(refused):
                    raise
                await tries.pause(refused)

    async def _outcome(self) -> Rehearsed:
        promotes = await self._reports(Action.PROMOTE, list(self._shadows))
        rolled_back = [name for name in self._shadows if name not in self._no_rollback]
        rollbacks = await self._reports(Action.ROLLBACK, rolled_back)
        self._say("comparing both clusters")
        compared = await self._compare()
        topics = tuple(
            RehearsedTopic(
                shadow.topic,
                name,
                shadow.partitions,
                self._feed.copied(shadow.topic),
                self._feed.synthetic(shadow.topic),
                Switch.of(promotes[name]),
                Switch.of(rollbacks[name]) if name in rollbacks else None,
                self._no_rollback.get(name, ""),
                sum(compared[name, p].records for p in range(shadow.partitions)),
                sum(self._feed.acknowledged[name, p].records for p in range(shadow.partitions)),
                tuple(p for p in range(shadow.partitions) if not compared[name, p].equal),
            )
            for name, shadow in self._shadows.items()
        )
        read = self._reader
        moved = MovedGroup(group_of(self._link.name), read.records, read.read_again, read.skipped)
        return Rehearsed(self._link.name, topics, moved)

    async def _reports(self, action: Action, names: Sequence[str]) -> dict[str, ReportRecord]:
        """Return the reports of the promotes or rollbacks of shadow topics, which the controller writes."""

        def found(state: State) -> dict[str, ReportRecord] | None:
            reports = {
                name: report
                for name in names
                for report in state.reports_of(self._link.name, ReportedKind.TOPIC, name)
                if report.action == action
            }
            return reports if len(reports) == len(names) else None

        return await self._log.wait(found, _REPORT_S, f"the report of each {action}")

    async def _compare(self) -> dict[Key, _Compared]:
        """Compare both clusters below the offset that both reach, and the written log with the acknowledged records."""
        source, _ = await self._connections.source(self._link)
        keys = list(self._feed.acknowledged)
        ends = [
            await cluster.list_offsets(dict.fromkeys(keys, LATEST)) for cluster in (source, self._connections.target)
        ]
        both = {key: min(side[key].offset for side in ends) for key in keys}
        compacted = {name for name, shadow in self._shadows.items() if shadow.compacted}
        read: list[dict[Key, Contents]] = []
        for cluster, side in zip((source, self._connections.target), ends, strict=True):
            to = {key: end.offset for key, end in side.items()}
            read.append(
                await asyncio.to_thread(read_contents, cluster.settings, to, both, compacted, self._terms.timeout_s)
            )
        at_target = {record.topic: record.at_target for record in self._records()}
        return {key: self._judged(key, read[0][key], read[1][key], at_target[key[0]]) for key in keys}

    def _judged(self, key: Key, source: Contents, target: Contents, at_target: bool) -> _Compared:
        written = (target if at_target else source).whole
        acknowledged = self._feed.acknowledged[key]
        equal = source.shared.fingerprint == target.shared.fingerprint
        return _Compared(equal and written.fingerprint == acknowledged.fingerprint, written.records)


@dataclass(frozen=True, slots=True)
class _Compared:
    """The comparison of a partition, and the number of records in its written log."""

    equal: bool
    records: int


def _time_lifts(refused: Refused) -> bool:
    """Return whether time alone lifts each of the refusals."""
    return {each["ref"] for each in refused.findings if each["level"] == "refuse"} | {refused.ref} <= _TIME_LIFTS


def _at(settings: ClusterSettings, addresses: Sequence[str]) -> ClusterSettings:
    """Return the settings of the target with the addresses of routers, where clients log in as at the target."""
    parts = (address.rpartition(":") for address in addresses)
    return replace(settings, bootstrap=tuple((host, int(port)) for host, _, port in parts))
