"""Verbs that take topics or groups (deleted, mirrored by mistake, not mirrorable) out of a link before their promote.

Routers pass requests about a topic that no link mirrors on to the target. So a topic whose true log is on the source
must not be forgotten where its clients would go on with the copy without notice. A group must not be forgotten while
members are at a router: the group has no positions at the target, and members would begin at some other place.

A  A topic is forgotten only in one of four cases, in which that cannot happen.
   1. The source has lost the topic, and no producer may repeat a write that the copy holds: the copy is all there is.
   2. The target does not have the topic. Clients get UNKNOWN_TOPIC_OR_PARTITION, and no router creates the topic
      (`router.admin.handler`).
   3. The target's topic holds data, and nothing was ever copied there: the topic belongs to somebody else. (An empty
      topic may be the mirror's own, because the record is written after the topic is created.)
   4. No router is known that clients could be at.
B  A group is forgotten if the source does not know the group any more, or every router reports none of its members.
C  All of this is judged again with each record that is written or dropped. Only the record that was judged is dropped,
   because only that record knows what must be put back.
D  A matching expression of the link leaves the name out before the name's record goes: no later match takes the name.
E  No topic is deleted. A topic that stays on the target gets its own configs back, and loses kmigrate's ACLs.
F  A record is first marked as forgotten, and dropped last. Mirrors and promotes pass a marked topic or group over. Once
   the mirrors have let go, nobody changes the target after the configs are put back. Routers serve the clients as
   before until the record goes: a topic that the mirror was just creating stays hidden, and is judged by A. A verb that
   dies on the way is repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from kmigrate.cluster.client import LATEST
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import Failed, KmigrateError
from kmigrate.model.lifecycle import FORGETTABLE, NOT_COPIED_YET, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.presences import GroupReport, MirrorPresence, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord, direct_key, misplaced_key, verified_key
from kmigrate.model.state import State
from kmigrate.model.words import advised, delete_unneeded
from kmigrate.net.clock import now_ms
from kmigrate.protocol.codes import row
from kmigrate.state.log import Decide
from kmigrate.state.offset_maps import OffsetMaps
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan, changed_meanwhile, ok, refuse, telling, warn, write_each
from kmigrate.workflow.base.running import start_mirror
from kmigrate.workflow.verbs.links import resolve_link
from kmigrate.workflow.verbs.matching import edit_patterns, patterns_of
from kmigrate.workflow.verbs.proposal import Noun, Proposal, Write, refuse_if
from kmigrate.workflow.verbs.waiting import wait_let_go

__all__ = ["forget_groups", "forget_topics"]


_Reports = Mapping[str, RouterPresence] | None
"""The routers' reports by instance; None where the source has no such group, so that no member at a router matters."""
_End = Callable[[list[str]], Awaitable[list[Finding]]]
"""Function that ends the forgetting of a record; the list gets the changes that are done."""
_COME_BACK_S = 60.0
"""Seconds in which a waiting member asks again; a router's start forgets members (`router.shared.waiting_groups`)."""


@dataclass(frozen=True, slots=True)
class _TopicNow:
    """The state of a topic on both clusters; `on_source` stays True where no rule depends on the source."""

    on_target: bool
    same_target: bool
    """True if the topic on the target is the topic that was mirrored to."""
    others: bool = False
    """True if the topic on the target holds data that no mirror put there."""
    on_source: bool = True
    repeatable_s: float = 0.0
    """Seconds in which copied writes may be repeated after the topic is gone; inf where no mirror says when."""


async def forget_topics(
    connections: Connections,
    link_name: str | None,
    topics: Sequence[str],
    delivery_timeout_s: float,
) -> Proposal:
    """Propose to take topics out of their link, with all their records; refuse where clients would be misled (A)."""
    link = resolve_link(connections.log.state, link_name)
    found: list[Finding] = []
    going: list[tuple[TopicRecord, _TopicNow]] = []
    for topic in dict.fromkeys(topics):
        record = connections.log.state.topic(link.name, topic, forgotten=True)
        if record is None:
            found.append(ok("not-mirrored", f"topic {topic} is not mirrored by link {link.name}"))
            continue
        topic_now = await _topic_now(connections, link, record, delivery_timeout_s)
        against = _against_topic(record, connections.log.state, topic_now)
        if against is not None:
            found.append(against)
            continue
        found += _copy_stays(link, record, topic_now)
        going.append((record, topic_now))
    left_out = _left_out(link, "topic", topics)
    changes = [*(change for change, _ in left_out), *(f"forget topic {record.topic}" for record, _ in going)]
    changes += [change for record, topic_now in going for change in _put_back(link, record, topic_now)]
    taken = [(_taking(each[0]), partial(_take, *each)) for each in going]
    ends = [partial(_end, connections, link, record, delivery_timeout_s) for record, _ in going]
    return _forget(connections, Plan.of("topic forget", changes, found), link, [*left_out, *taken], ends)


def _forget(
    connections: Connections, plan: Plan, link: LinkRecord, writes: Sequence[Write], ends: Sequence[_End]
) -> Proposal:
    """Return a proposal that marks the records (rule F), waits until the mirrors have let go, and drops the records."""
    plan.refuse()

    async def act() -> Iterable[Finding]:
        done: list[str] = []
        await write_each(connections.log, writes, done)
        with telling(done):
            if ends:
                await wait_let_go(connections, link.name)
            return [finding for end in ends for finding in await end(done)]

    return Proposal(plan, act)


def _take(record: TopicRecord, topic_now: _TopicNow, state: State) -> TopicRecord | None:
    """Return the record marked as forgotten (rule F), judged as of now: the mirror may have followed the source."""
    now = state.topic(record.link, record.topic)
    if now is None:
        return None
    refuse_if("topic forget", _against_topic(now, state, topic_now))
    return replace(now, forgotten_ms=now_ms())


def _give_back(record: TopicRecord, state: State) -> TopicRecord | None:
    now = state.topic(record.link, record.topic, forgotten=True)
    return replace(record, forgotten_ms=0) if now == record else None


def _taking(record: TopicRecord) -> str:
    return f"take topic {record.topic} from the mirror"


async def _end(
    connections: Connections, link: LinkRecord, taken: TopicRecord, delivery_timeout_s: float, done: list[str]
) -> list[Finding]:
    """Put the target topic back, and drop all records of a topic; return the findings about the target at that time.

    If clients would be misled by now, the mirror gets the topic back, unless an earlier call may have put back a part.
    """
    record = connections.log.state.topic(link.name, taken.topic, forgotten=True)
    if record is None:
        return []  # another call has forgotten the topic meanwhile
    if not record.forgotten_ms:
        # and mirrored the topic anew: no mirror has let go of the new one
        raise changed_meanwhile(f"topic {taken.topic}")
    topic_now = await _topic_now(connections, link, record, delivery_timeout_s)
    as_before = record if taken.forgotten_ms else replace(record, forgotten_ms=0)
    against = _against_topic(as_before, connections.log.state, topic_now)
    if against is not None and as_before != record:
        await connections.log.append(partial(_give_back, record))
        done.remove(_taking(taken))
    refuse_if("topic forget", against)
    await _leave_target(connections, link, record, topic_now)
    await write_each(connections.log, _topic_records(record, topic_now, connections.log.state), done)
    return _copy_stays(link, record, topic_now)


async def _topic_now(
    connections: Connections, link: LinkRecord, record: TopicRecord, delivery_timeout_s: float
) -> _TopicNow:
    info = await connections.target.find_topic(record.topic)
    same = info is not None and (str(info.topic_id or "") in (record.target_topic_id, "") or _begun(record))
    others = info is not None and _never_copied(record) and await _has_data(connections, info)
    topic_now = _TopicNow(info is not None, same, others)
    if record.phase not in FORGETTABLE or _against_topic(record, connections.log.state, topic_now) is None:
        return topic_now
    source, _ = await connections.source(link)
    if await source.find_topic(record.topic) is not None:
        return topic_now
    return replace(topic_now, on_source=False, repeatable_s=_repeatable_s(connections, record, delivery_timeout_s))


def _begun(record: TopicRecord) -> bool:
    """Return True if the mirror may have changed a target topic whose topic id is not in the record yet."""
    return _never_copied(record) and bool(record.restore_configs or record.drop_configs)


def _never_copied(record: TopicRecord) -> bool:
    return record.phase is TopicPhase.INITIALISING and not record.target_topic_id


async def _has_data(connections: Connections, info: TopicInfo) -> bool:
    ends = await connections.target.list_offsets({(info.name, partition): LATEST for partition in info.partitions})
    return any(end.offset > 0 for end in ends.values())


def _repeatable_s(connections: Connections, record: TopicRecord, delivery_timeout_s: float) -> float:
    """Return the seconds by the mirror's reports: record timestamps come from producers, and do not date the writes."""
    if not delivery_timeout_s or record.phase in NOT_COPIED_YET or record.forgotten_ms:
        # The caller waits for no retries; or nothing is copied; or an earlier call judged, and no mirror looks now.
        return 0.0
    upkeep = [m.upkeep.get(record.topic) for m in connections.log.alive(MirrorPresence) if m.link == record.link]
    ours = [report.gone_s for report in upkeep if report is not None and report.since_ms == record.since_ms]
    return max(0.0, delivery_timeout_s - max((gone_s for gone_s in ours if gone_s is not None), default=-inf))


def _against_topic(record: TopicRecord, state: State, topic_now: _TopicNow) -> Finding | None:
    """Return the refusal of rule A; None where the topic may be forgotten."""
    topic = record.topic
    if record.at_target:
        what = f"topic {topic} is promoted: it is forgotten with its link"
        return refuse("already-promoted", what, _with_its_link(record.link))
    if record.phase not in FORGETTABLE:
        what = f"topic {topic} is {record.phase}: its producers wait for the promote"
        return refuse("promote-under-way", what, "wait until the promote has ended: kmigrate status --watch")
    if topic_now.on_source and record.seal is not None:
        what = f"the source does not take writes to topic {topic} as long as its record says so"
        return refuse("topic-sealed", what, "kmigrate status names the router that it waits for")
    routers = sorted(set(_routers(state).values()))
    if not topic_now.on_target or topic_now.others or not routers:
        return None
    promote = f"promote it: {advised('promote', record.link, topic)}; or " if not record.forgotten_ms else ""
    if topic_now.on_source:
        return refuse(
            "copy-would-serve",
            f"topic {topic} lives on the source, and router {', '.join(routers)} would lead its clients to the copy "
            "on the target",
            f"{promote}lead its clients back to the source and delete the copy on the target, then repeat",
        )
    if topic_now.repeatable_s:
        known = topic_now.repeatable_s < inf
        again = f"in {topic_now.repeatable_s:.0f} s" if known else f"while a mirror runs: {start_mirror(record.link)}"
        left = f"for {topic_now.repeatable_s:.0f} s" if known else "for as long as no mirror has said since when"
        return refuse(
            "retries-not-over",
            f"the source has not been without topic {topic} for long: a producer that has no answer yet may repeat a "
            f"write (delivery timeout) {left}, and it would stand twice in the copy",
            f"repeat {again}; --delivery-timeout 0 where none of its producers runs",
        )
    return None


def _routers(state: State) -> dict[str, str]:
    """Return the routers that clients could be at, by instance: registered routers, and strays, which may live."""
    known = {router.instance: router.name for router in state.routers()}
    return {**{instance: stray.name for stray in state.strays() for instance in stray.instances}, **known}


def _copy_stays(link: LinkRecord, record: TopicRecord, topic_now: _TopicNow) -> list[Finding]:
    if not topic_now.on_target:
        return []
    what = f"topic {record.topic} stays on {link.target.name} as it is; whoever comes through a router uses it there"
    return [warn("copy-stays", what, delete_unneeded(record.topic))]


def _topic_records(record: TopicRecord, topic_now: _TopicNow, state: State) -> Iterator[tuple[str, Decide]]:
    """Drop all records of the topic, its own record last: after a crash in between the topic can be forgotten again."""
    for barrier in state.barriers(record.link, record.topic):
        yield f"drop barriers of {record.topic}", partial(_drop_topic, record, topic_now, barrier.key)
    verified = verified_key(record.link, record.topic)
    yield f"drop what verify found of {record.topic}", partial(_drop_topic, record, topic_now, verified)
    direct = direct_key(record.link, record.topic)
    if direct in state.records:
        yield f"drop the direct writers of {record.topic}", partial(_drop_topic, record, topic_now, direct)
    yield f"forget topic {record.topic}", partial(_drop_topic, record, topic_now, record.key)


def _drop_topic(record: TopicRecord, topic_now: _TopicNow, key: str, state: State) -> tuple[str, None] | None:
    """Drop one record, judged again (rule C): a router may have started since the guards looked."""
    now = state.topic(record.link, record.topic, forgotten=True)
    if now is not None:
        refuse_if("topic forget", _against_topic(now, state, topic_now))
    if now not in (record, None):
        raise changed_meanwhile(f"topic {record.topic}")
    return (key, None) if key in state.records else None


def _put_back(link: LinkRecord, record: TopicRecord, topic_now: _TopicNow) -> list[str]:
    """Describe the changes of rule E, also for a person that has to make them by hand."""
    target, made = link.target.name, []
    if topic_now.same_target and record.restore_configs:
        own = ", ".join(f"{key}={value}" for key, value in sorted(record.restore_configs.items()))
        made.append(f"give {record.topic} its own configs on {target}: {own}")
    if topic_now.same_target and record.phase is TopicPhase.ALIGNING and record.fills:
        made.append(f"delete the mirror's empty records from {record.topic} on {target} (DeleteRecords)")
    if topic_now.same_target and record.drop_configs:
        made.append(f"remove from {record.topic} on {target} what was for the mirror: {', '.join(record.drop_configs)}")
    if record.mapped:
        made.append(f"drop the offset map of {record.topic}")
    return made + _taken_back(link, record)


def _taken_back(link: LinkRecord, record: TopicRecord | GroupRecord) -> list[str]:
    rules = "; ".join(map(str, record.granted_acls))
    return [f"remove from {link.target.name} the rules that kmigrate put there: {rules}"] if rules else []


async def _leave_target(connections: Connections, link: LinkRecord, record: TopicRecord, topic_now: _TopicNow) -> None:
    """Put the target topic back (rule E), and drop its offset map, because a new mirror may use other offsets."""
    try:
        if topic_now.same_target and record.phase is TopicPhase.ALIGNING and record.fills:
            await _delete_fillers(connections, record)
        if topic_now.same_target:
            await connections.target_admin.alter_topic_configs(
                record.topic, record.restore_configs, record.drop_configs
            )
        await connections.target_admin.delete_acls(record.granted_acls)
        if record.mapped:
            await OffsetMaps(connections.target).drop(link.uuid, record.topic)
    except KmigrateError as error:
        raise _not_put_back(error, _put_back(link, record, topic_now)) from error


async def _delete_fillers(connections: Connections, record: TopicRecord) -> None:
    """Move the target's log starts behind the fillers of a topic that was not aligned to its end."""
    keys = [(record.topic, partition) for partition, start in record.starts.items() if start > 0]
    ends = await connections.target.log_ends(keys)
    low = {p: min(ends[(topic, p)].offset, record.starts[p]) for topic, p in keys if ends[(topic, p)].offset > 0}
    for partition, (code, _) in (await connections.target.delete_records(record.topic, low)).items():
        if code:
            why = f"{record.topic}-{partition}: the fillers below {low[partition]} are not deleted: {row(code).name}"
            raise Failed("fillers-stay", why)


def _not_put_back(error: KmigrateError, left: Iterable[str]) -> Failed:
    return Failed(
        "not-put-back",
        f"the target did not take back what was for the mirror: {error.what}",
        next_step=f"repeat it once the target takes it: {'; '.join(left)}",
    )


def _left_out(link: LinkRecord, noun: Noun, names: Iterable[str]) -> list[Write]:
    """Leave the names out of the link's expressions (rule D)."""
    matched = [(name, p) for name in dict.fromkeys(names) for p in patterns_of(link, noun) if p.matches(name)]

    def decide(name: str, state: State) -> Record | None:
        now = state.link(link.name)
        changed = edit_patterns(now, noun, lambda old: tuple(p.without(name) for p in old)) if now is not None else None
        return None if changed == now else changed

    return [(f"leave {name} out of what {p.include} matches", partial(decide, name)) for name, p in matched]


async def forget_groups(connections: Connections, link_name: str | None, groups: Sequence[str]) -> Proposal:
    """Propose to take groups out of their link; refuse groups with a member at a router (B)."""
    link = resolve_link(connections.log.state, link_name)
    found: list[Finding] = []
    going: list[tuple[GroupRecord, _Reports]] = []
    for group in dict.fromkeys(groups):
        record = connections.log.state.group(link.name, group, forgotten=True)
        if record is None:
            found.append(ok("not-mirrored", f"group {group} is not mirrored by link {link.name}"))
            continue
        reports, against = await _judged(connections, link, record)
        if against is not None:
            found.append(against)
        else:
            going.append((record, reports))
    left_out = _left_out(link, "group", groups)
    changes = [*(change for change, _ in left_out), *(f"forget group {record.group}" for record, _ in going)]
    changes += [change for record, _ in going for change in _taken_back(link, record)]
    at_ms = connections.log.now_ms()
    taken = [
        (f"take group {record.group} from the mirror", partial(_take_group, record, reports, at_ms))
        for record, reports in going
    ]
    ends = [partial(_end_group, connections, link, record.group) for record, _ in going]
    return _forget(connections, Plan.of("group forget", changes, found), link, [*left_out, *taken], ends)


def _take_group(record: GroupRecord, reports: _Reports, at_ms: int, state: State) -> GroupRecord | None:
    """Return the record marked as forgotten (rule F)."""
    now = state.group(record.link, record.group)
    if now is None:
        return None
    refuse_if("group forget", _against_group(now, state, reports, at_ms))
    return replace(now, forgotten_ms=now_ms())


async def _end_group(connections: Connections, link: LinkRecord, group: str, done: list[str]) -> list[Finding]:
    """Take back what was for the mirror, and drop a group's record."""
    record = connections.log.state.group(link.name, group, forgotten=True)
    if record is None:
        return []  # another call has forgotten the group meanwhile
    if not record.forgotten_ms:
        raise changed_meanwhile(f"group {group}")  # and mirrored the group anew
    reports, against = await _judged(connections, link, record)
    refuse_if("group forget", against)
    try:
        await connections.target_admin.delete_acls(record.granted_acls)
    except KmigrateError as error:
        raise _not_put_back(error, _taken_back(link, record)) from error
    drop = partial(_drop_group, record, reports, connections.log.now_ms())
    misplaced = misplaced_key(record.link, group)
    writes: list[Write] = [(f"forget group {group}", drop)]
    if misplaced in connections.log.state.records:
        writes.insert(0, (f"drop what was seen of group {group}", lambda _: (misplaced, None)))
    await write_each(connections.log, writes, done)
    return []


async def _judged(connections: Connections, link: LinkRecord, record: GroupRecord) -> tuple[_Reports, Finding | None]:
    """Judge rule B as of now; also return the reports that decided."""
    heard = {report.instance: report for report in connections.log.alive(RouterPresence)}
    against = _against_group(record, connections.log.state, heard, connections.log.now_ms())
    if against is None or record.phase is not GroupPhase.MIRRORED:
        return heard, against
    reports = await _known_members(connections, link, record.group, heard)
    return reports, _against_group(record, connections.log.state, reports, connections.log.now_ms())


async def _known_members(
    connections: Connections, link: LinkRecord, group: str, heard: Mapping[str, RouterPresence]
) -> _Reports:
    """Return the routers' reports with only those members that the source knows; None where the group is unknown there.

    A router long remembers a member that ended without leaving, as members of Kafka Streams do.
    """
    _, source_admin = await connections.source(link)
    seen = (await source_admin.describe_groups([group]))[group]
    if seen.state == "dead":
        return None
    known = {member_mark(member.member_id) for member in seen.members}
    return {
        instance: replace(report, groups={**report.groups, group: _of_members(report.groups[group], known)})
        if group in report.groups
        else report
        for instance, report in heard.items()
    }


def _of_members(report: GroupReport, known: Collection[str]) -> GroupReport:
    return replace(report, members=tuple(mark for mark in report.members if mark in known))


def _drop_group(record: GroupRecord, reports: _Reports, at_ms: int, state: State) -> tuple[str, None] | None:
    """Drop the group's record, judged again (rule C)."""
    now = state.group(record.link, record.group, forgotten=True)
    if now is None:
        return None
    refuse_if("group forget", _against_group(now, state, reports, at_ms))
    if now != record:
        raise changed_meanwhile(f"group {record.group}")
    return now.key, None


def _against_group(record: GroupRecord, state: State, reports: _Reports, at_ms: int) -> Finding | None:
    """Return the refusal of rule B, None where the group may be forgotten; `at_ms` is by the state log's clock."""
    group = record.group
    if record.phase is GroupPhase.PROMOTED:
        what = f"group {group} is promoted: it is forgotten with its link"
        return refuse("already-promoted", what, _with_its_link(record.link))
    if record.phase is not GroupPhase.MIRRORED:
        what = f"group {group} is {record.phase}"
        return refuse("promote-under-way", what, "wait until that has ended: kmigrate status --watch")
    if reports is None:
        return None
    promote = f"{advised('group promote', record.link, group)}; or " if not record.forgotten_ms else ""
    for instance, name in sorted(_routers(state).items()):
        report = reports.get(instance)
        if report is None:
            return refuse(
                "router-silent",
                f"router {name} is silent: whether members of group {group} are there is not known",
                f"start it again, or, if its process has ended: kmigrate router forget {name} --dead",
            )
        if report.waiting is None:
            what = f"router {name} does not tell which groups' members wait there: {report.trouble}"
            return refuse("waiting-unknown", what, "repeat it once kmigrate status shows no such trouble")
        followed = report.groups.get(group)
        if group in report.waiting or (followed is not None and (followed.members or followed.in_flight)):
            return refuse(
                "members-at-router",
                f"members of group {group} are at router {name}: at the target they would find no positions",
                f"{promote}restart them with the source's address, then repeat",
            )
    for router in state.routers():
        left = _COME_BACK_S - (at_ms - router.since_ms) / 1000
        if left > 0:
            return refuse(
                "router-just-started",
                f"router {router.name} has just started: members of group {group} that wait there may still come back",
                f"repeat in {left:.0f} s",
            )
    return None


def _with_its_link(link: str) -> str:
    return f"kmigrate link finish {link}; when its routers are stopped: kmigrate link delete {link}"
