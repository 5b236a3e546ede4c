"""Waits for what a verb asked for: until the work is done, is given up with a reason, or takes too long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import CopyEngine, GroupRecord, TopicRecord
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.running import mirror_runs, no_mirror, start_mirror

__all__ = ["wait_groups", "wait_groups_rolled_back", "wait_let_go", "wait_rolled_back", "wait_topics"]

_LET_GO_S = 30.0
R = TypeVar("R", TopicRecord, GroupRecord)


async def wait_topics(
    connections: Connections,
    link: str,
    topics: Collection[str],
    phases: Iterable[TopicPhase],
    timeout: float,
    on_change: Callable[[State], None] | None = None,
) -> list[TopicRecord]:
    """Wait until every topic is in one of `phases`; raise Failed, with the reason, if given up or forgotten."""
    wanted = frozenset(phases)
    promoting = TopicPhase.PROMOTED in wanted and TopicPhase.MIRRORING not in wanted

    def look(state: State) -> list[TopicRecord] | None:
        if on_change is not None:
            on_change(state)
        records = [_known(state.topic(link, topic), link, "topic", topic) for topic in topics]
        for record in records:
            if promoting and record.phase is TopicPhase.MIRRORING and record.reason and record.schedule is None:
                others = _others(f"{each.topic} is {each.phase}" for each in records if each is not record)
                raise Failed(
                    "promote-given-up",
                    f"the promote of {record.topic} was given up: {record.reason}",
                    still_true=f"the topic is mirrored as before; producers go on through the router{others}",
                    next_step=_then(record, advised("promote", link, record.topic)),
                )
        found = [record for record in records if record.phase in wanted and not record.unsettled]
        return found if len(found) == len(records) else None

    what = f"{', '.join(topics)} to be {' or '.join(sorted(wanted))}"
    try:
        return await connections.log.wait(look, timeout, what)
    except WaitTimedOut as late:
        records = [record for topic in topics if (record := connections.log.state.topic(link, topic)) is not None]
        left = [record for record in records if record.phase not in wanted or record.unsettled]
        raise _late(connections, link, late, {each.topic: _hindrance(connections, each) for each in left}) from late


async def wait_rolled_back(
    connections: Connections,
    link: str,
    topics: Collection[str],
    timeout: float,
    on_change: Callable[[State], None] | None = None,
) -> list[TopicRecord]:
    """Wait until every topic is rolled back; raise Failed, with the reason, where a rollback is given up."""

    def look(state: State) -> list[TopicRecord] | None:
        if on_change is not None:
            on_change(state)
        records = [_known(state.topic(link, topic), link, "topic", topic) for topic in topics]
        for record in records:
            way = record.way_back
            if record.phase is TopicPhase.PROMOTED and way is not None and way.reason:
                others = _others(f"{each.topic} is {each.phase}" for each in records if each is not record)
                again = advised("rollback", link, record.topic)
                raise Failed(
                    "rollback-given-up",
                    f"the rollback of {record.topic} was given up: {way.reason}",
                    still_true=f"the topic is promoted as before; producers go on through the router{others}",
                    next_step=f"{way.way_on or 'mend the cause'}; then: {again}" if way.open else "kmigrate status",
                )
        return records if all(record.phase is TopicPhase.MIRRORING for record in records) else None

    try:
        return await connections.log.wait(look, timeout, f"{', '.join(topics)} to be rolled back")
    except WaitTimedOut as late:
        records = [record for topic in topics if (record := connections.log.state.topic(link, topic)) is not None]
        left = [record for record in records if record.phase is not TopicPhase.MIRRORING]
        raise _late(connections, link, late, {each.topic: _hindrance(connections, each) for each in left}) from late


async def wait_groups(
    connections: Connections,
    link: str,
    groups: Collection[str],
    timeout: float,
    on_change: Callable[[State], None] | None = None,
) -> list[GroupRecord]:
    """Wait until every group is promoted; raise Failed, with the reason, where a group is given up or forgotten."""

    def look(state: State) -> list[GroupRecord] | None:
        if on_change is not None:
            on_change(state)
        records = [_known(state.group(link, group), link, "group", group) for group in groups]
        for record in records:
            if record.phase is GroupPhase.MIRRORED and record.reason:
                others = _others(f"{each.group} is {each.phase}" for each in records if each is not record)
                stay = "stay in it" if record.mode is GroupMode.FOLLOW else "wait"
                raise Failed(
                    "handover-given-up",
                    f"the promote of group {record.group} was given up: {record.reason}",
                    still_true=f"the group is mirrored as before; its members at the router {stay}{others}",
                    next_step=_then(record, advised("group promote", link, record.group)),
                )
        found = [record for record in records if record.phase is GroupPhase.PROMOTED]
        return found if len(found) == len(records) else None

    try:
        return await connections.log.wait(look, timeout, f"group {', '.join(groups)} to be promoted")
    except WaitTimedOut as late:
        records = [record for group in groups if (record := connections.log.state.group(link, group)) is not None]
        left = [record for record in records if record.phase is not GroupPhase.PROMOTED]
        raise _late(
            connections, link, late, {each.group: each.reason or connections.waits_for(each) for each in left}
        ) from late


async def wait_groups_rolled_back(
    connections: Connections,
    link: str,
    groups: Collection[str],
    timeout: float,
    on_change: Callable[[State], None] | None = None,
) -> list[GroupRecord]:
    """Wait until every group is rolled back; raise Failed, with the reason, where a rollback is given up."""

    def look(state: State) -> list[GroupRecord] | None:
        if on_change is not None:
            on_change(state)
        records = [_known(state.group(link, group), link, "group", group) for group in groups]
        for record in records:
            if record.phase is GroupPhase.PROMOTED and record.reason:
                others = _others(f"{each.group} is {each.phase}" for each in records if each is not record)
                raise Failed(
                    "rollback-given-up",
                    f"the rollback of group {record.group} was given up: {record.reason}",
                    still_true=f"the group is promoted as before; its members go on at the target{others}",
                    next_step=_then(record, advised("group rollback", link, record.group)),
                )
        return None if any(record.at_target for record in records) else records

    try:
        return await connections.log.wait(look, timeout, f"group {', '.join(groups)} to be rolled back")
    except WaitTimedOut as late:
        records = [record for group in groups if (record := connections.log.state.group(link, group)) is not None]
        left = {each.group: connections.waits_for(each) for each in records if each.at_target}
        raise _late(connections, link, late, left) from late


def _others(phases: Iterable[str]) -> str:
    """Name the other topics or groups of the call, which go on while nobody waits for them any more."""
    others = ", ".join(phases)
    return f"; nobody waits for the others any more: {others}" if others else ""


def _then(record: TopicRecord | GroupRecord, promote: str) -> str:
    """Return what helps against the reason of a promote that was given up, and the promote again."""
    return f"{record.way_on}; then: {promote}" if record.way_on else f"mend the cause, then: {promote}"


def _hindrance(connections: Connections, record: TopicRecord) -> str:
    """Return why a topic does not get on, as its record, the controller or the mirror says."""
    said = progress_of(connections.log.state, record, connections.log.alive(MirrorPresence)).values()
    problem = next(filter(None, (seen.problem for seen in said)), "")
    return record.hindrance or connections.waits_for(record) or problem


async def wait_let_go(connections: Connections, link: str) -> None:
    """Wait until no mirror that reports works on forgotten topics or groups; a Spark task reports its topics."""
    forgotten, deadline = connections.log.state.epoch, monotonic() + _LET_GO_S
    topics = {record.topic for record in connections.log.state.topics(link, forgotten=True) if record.forgotten_ms}

    def busy_with(mirror: MirrorPresence) -> bool:
        return mirror.let_go < forgotten if mirror.engine is CopyEngine.DAEMON else not topics.isdisjoint(mirror.topics)

    while True:
        mirrors = [mirror for mirror in connections.log.alive(MirrorPresence) if mirror.link == link]
        busy = [mirror.instance for mirror in mirrors if busy_with(mirror)]
        if not busy:
            return
        if monotonic() > deadline:
            raise WaitTimedOut(
                "mirror-busy",
                f"mirror process {', '.join(busy)} has not said within {_LET_GO_S:g} s that it has let go of what "
                "is forgotten",
                next_step="repeat it",
            )
        await connections.log.changed(1.0)


def _known(record: R | None, link: str, noun: str, name: str) -> R:
    if record is None:
        raise Failed(
            "forgotten",
            f"{noun} {name} was taken out of its link meanwhile",
            still_true="it is mirrored and promoted no longer",
            next_step=f"{advised(f'{noun} mirror', link, name)}, where that was a mistake",
        )
    return record


def _late(connections: Connections, link: str, late: WaitTimedOut, why: Mapping[str, str]) -> WaitTimedOut:
    """Return the time-out error with the reason why each topic or group waits."""
    reasons = [f"{name}: {reason}" for name, reason in why.items() if reason]
    if reasons or mirror_runs(connections.log, link):
        what, next_step = "; ".join((late.what, *reasons)), late.next_step or "kmigrate status --watch"
        return WaitTimedOut(late.ref, what, still_true=late.still_true, next_step=next_step)
    return WaitTimedOut(
        "no-mirror-running",
        no_mirror(link),
        still_true="the intent stays in the state log and is taken up when a mirror runs",
        next_step=start_mirror(link),
    )
