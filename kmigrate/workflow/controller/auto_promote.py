"""Asks for the promote of a group by itself once the group's last direct member has left, where a person wants that.

A group is due when members wait or follow at routers, and the source has had no direct member for a while. The state
log and the routers' reports choose the groups to ask the source about, so thousands of other groups cost nothing. The
guards are those of `group promote`; a finding that a person should read before a yes is left to a person.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.groups import describe_groups
from kmigrate.errors import Failed, KmigrateError
from kmigrate.model.lifecycle import GroupMode, GroupPhase
from kmigrate.model.members import member_mark
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LinkRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import every
from kmigrate.net.tasks import together
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.groups.membership import named_members
from kmigrate.workflow.groups.uncopied import uncopied
from kmigrate.workflow.verbs.groups import judged_promote, promote_groups, unpromoted_topics

__all__ = ["AutoPromote", "AutoSettings"]

_PROMOTES_AT_ONCE = 10
"""Maximum number of groups whose guards are asked at the same time."""
_LONGEST_PAUSE_S = 1800.0
_KNOWN_BEFORE = frozenset({"broker-setting"})
"""Warnings that `group mirror` has shown: no new reason to ask a person."""

_logger = logging.getLogger("kmigrate.controller")


@dataclass(frozen=True, slots=True)
class AutoSettings:
    """Timing of automatic promotes."""

    interval_s: float = 2.0
    settle_s: float = 30.0
    """Time without a direct member after which a group is promoted: a member that restarts may come back."""


@dataclass(slots=True)
class _Watched:
    """What this controller has seen of one group."""

    quiet_since: float | None = None
    """Start of the time without a direct member; None while there is a direct member."""
    due: float = 0.0
    """Time before which the group is not tried again."""
    given_up_ms: int = 0
    """`since_ms` of the record after the last promote that was given up."""
    pause_s: float = 0.0


@dataclass(slots=True)
class AutoPromote:
    """Looks round by round at the mirrored groups with `auto`, and asks for the promote of each group that is due."""

    connections: Connections
    settings: AutoSettings = field(default_factory=AutoSettings)
    reasons: dict[str, str] = field(default_factory=dict)
    """Reasons why groups with members at routers are not promoted yet, by the key of the group's record."""
    _watched: dict[str, _Watched] = field(default_factory=dict)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        try:
            async for _ in every(self.settings.interval_s):
                await self.look()
        finally:
            self.reasons.clear()

    async def look(self) -> None:
        """Look once at all groups; a link whose source does not answer keeps its groups mirrored."""
        log = self.connections.log
        reasons: dict[str, str] = {}
        routers = log.alive(RouterPresence)
        waiting = _groups_at_routers(routers)
        candidates = {link.name: _candidates(log.state, link, waiting) for link in log.state.links()}
        self._forget_others(log.state, {record.key for records in candidates.values() for record in records})
        for link in log.state.links():
            records = candidates[link.name]
            try:
                reasons |= await self._look_at(link, records, routers)
            except KmigrateError as error:
                reasons |= {record.key: error.what for record in records}
        self.reasons.clear()
        self.reasons.update(reasons)

    def _forget_others(self, state: State, candidates: Collection[str]) -> None:
        """Forget groups that nobody promotes any more; a group without members at routers begins its wait anew."""
        open_keys = {each.key for each in state.groups_that(_is_open)}
        self._watched = {key: each for key, each in self._watched.items() if key in open_keys}
        for key, each in self._watched.items():
            if key not in candidates:
                each.quiet_since = None

    async def _look_at(
        self, link: LinkRecord, records: Collection[GroupRecord], routers: Collection[RouterPresence]
    ) -> dict[str, str]:
        """Ask the source about the groups, promote those that are due, and return why the others are not."""
        reasons = self._coupled_groups(link, records)
        asked = [record for record in records if record.key not in reasons]
        if not asked:
            return reasons
        source, _ = await self.connections.source(link)
        described = await describe_groups(source, [record.group for record in asked])
        turn = asyncio.Semaphore(_PROMOTES_AT_ONCE)

        async def judge(record: GroupRecord) -> None:
            async with turn:
                state = described[record.group]
                if isinstance(state, Failed):
                    reasons[record.key] = state.what
                    return
                direct = _direct_members(record, state.members, routers)
                if reason := await self._judge(link, record, direct):
                    reasons[record.key] = reason

        await together(*map(judge, asked))
        return reasons

    def _coupled_groups(self, link: LinkRecord, records: Collection[GroupRecord]) -> dict[str, str]:
        """Return why groups of transactions are not promoted, by the key of the group's record."""
        state = self.connections.log.state
        coupled = {group for each in state.couplings(link.name) for group in each.groups}
        return {
            record.key: _coupled(record, topics)
            for record in records
            if record.group in coupled and (topics := unpromoted_topics(state, record))
        }

    async def _judge(self, link: LinkRecord, record: GroupRecord, direct: list[GroupMember]) -> str:
        """Ask for the promote where the group is due; return why the group is not promoted, or ''."""
        seen, now = self._watched.setdefault(record.key, _Watched()), monotonic()
        if direct:
            seen.quiet_since = None
            return f"{len(direct)} member(s) on the source: {named_members(direct)}"
        if seen.quiet_since is None:
            seen.quiet_since = now
        self._note_given_up(record, seen, now)
        left = max(seen.quiet_since + self.settings.settle_s, seen.due) - now
        if left > 0:
            again = f" after: {record.reason}" if record.reason else ""
            return f"promoted in {left:.0f} s unless a member comes back to the source{again}"
        try:
            reason = await self._ask(link, record)
        except KmigrateError as error:
            reason = error.what
        seen.due = monotonic() + self.settings.settle_s
        return reason

    def _note_given_up(self, record: GroupRecord, seen: _Watched, now: float) -> None:
        """Wait longer after each promote that was given up: each try stops the members for a moment."""
        if record.reason and record.since_ms != seen.given_up_ms:
            seen.given_up_ms = record.since_ms
            seen.pause_s = min(max(2 * seen.pause_s, self.settings.settle_s), _LONGEST_PAUSE_S)
            seen.due = now + seen.pause_s

    async def _ask(self, link: LinkRecord, record: GroupRecord) -> str:
        """Write the intent unless something is against the promote; return what is, or ''; a guard raises Refused."""
        positions = Positions(self.connections.target, self.connections.log)
        behind = await uncopied(self.connections, link, [record.group], positions)
        left = [each.left for each in behind]
        if None in left or sum(filter(None, left)) > link.settings.lag_threshold:
            return str(behind[0])
        proposal = await promote_groups(self.connections, link.name, [record.group])
        if against := [each for each in proposal.plan.findings if _asks_a_person(each)]:
            return f"a person has to decide ({advised('group promote', link.name, record.group)}): {against[0].what}"
        await self.connections.log.append(lambda state: _asked(state, record, self.connections.log.now_ms))
        _logger.info("group %s: promote asked, because no member is left on the source", record.group)
        return ""


def _groups_at_routers(routers: Collection[RouterPresence]) -> Mapping[GroupMode, frozenset[str]]:
    """Return the groups with members that wait at routers, and the groups with members that follow through routers."""
    return {
        GroupMode.HOLD: frozenset(group for router in routers for group in router.waiting or ()),
        GroupMode.FOLLOW: frozenset(
            group for router in routers for group, report in router.groups.items() if report.members
        ),
    }


def _direct_members(
    record: GroupRecord, members: Collection[GroupMember], routers: Collection[RouterPresence]
) -> list[GroupMember]:
    """Return the members on the source that no router carries; of a group that holds, a router carries none."""
    if record.mode is GroupMode.HOLD:
        return list(members)
    reports = [router.groups[record.group] for router in routers if record.group in router.groups]
    known = {mark for report in reports for mark in report.members}
    return [member for member in members if member_mark(member.member_id) not in known]


def _candidates(state: State, link: LinkRecord, waiting: Mapping[GroupMode, Collection[str]]) -> list[GroupRecord]:
    """Return the mirrored groups of a link with `auto` and with members at routers."""
    if link.finished_ms or link.deleting_ms:
        return []
    return [
        record
        for record in state.groups_that(_is_open, link.name)
        if record.phase is GroupPhase.MIRRORED and record.group in waiting[record.mode]
    ]


def _is_open(record: GroupRecord) -> bool:
    """Return whether the promote of a group is asked for by itself, and has not ended yet."""
    return record.auto and record.phase is not GroupPhase.PROMOTED


def _coupled(record: GroupRecord, topics: Collection[str]) -> str:
    """Return why a group of transactions is not promoted alone."""
    return (
        f"not promoted automatically: transactions that commit positions of the group write {', '.join(topics)}; "
        f"{advised('promote', record.link, *topics)} takes the group along"
    )


def _asks_a_person(finding: Finding) -> bool:
    return finding.level == "warn" and finding.ref not in _KNOWN_BEFORE


def _asked(state: State, record: GroupRecord, clock: Callable[[], int]) -> Record | None:
    """Return the intent, or None if a person has taken the group's `auto` back, or has asked for the promote."""
    now = state.group(record.link, record.group)
    if now is None or not now.auto:
        return None
    asked = judged_promote(record.link, "controller", clock).write(record.group)(state)
    return replace(asked, asked_automatically=True) if isinstance(asked, GroupRecord) else None
