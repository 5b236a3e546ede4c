"""The verbs of a migration: each looks first (guards as findings), then writes one intent per thing.

A verb asks clusters only what its guards need: `create_link` never contacts the source (AL-13). Repeating a verb
whose effect stands already changes nothing and succeeds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import EARLIEST, LATEST, PRODUCER_EXPIRATION, ClusterClient, TopicInfo
from kmigrate.errors import Failed, Refused, Unreachable, UsageError, WaitTimedOut
from kmigrate.model.ids import is_internal
from kmigrate.model.lifecycle import GroupEvent, GroupPhase, TopicEvent, TopicPhase, advance_group, advance_topic
from kmigrate.model.records import (
    ClusterRef,
    GroupRecord,
    LinkRecord,
    MirrorPresence,
    PromoteTerms,
    Record,
    RouterPresence,
    TopicRecord,
)
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.handover import members_left
from kmigrate.workflow.plan import Finding, Plan
from kmigrate.workflow.stragglers import direct_writers

__all__ = [
    "check_link",
    "create_link",
    "delete_link",
    "forget_router",
    "mirror_groups",
    "mirror_topics",
    "promote_groups",
    "promote_topics",
    "resolve_link",
    "wait_groups",
    "wait_topics",
]

_UNDER_WAY = (TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED)


def resolve_link(state: State, name: str | None) -> LinkRecord:
    """The named link, or the only one where no name is given."""
    if name is not None:
        found = state.link(name)
        if found is None:
            known = ", ".join(link.name for link in state.links()) or "none"
            raise Refused(
                "unknown-link",
                f"there is no link {name}; links: {known}",
                still_true="nothing was changed",
                next_step="kmigrate link list, or kmigrate link create",
            )
        return found
    links = state.links()
    if len(links) == 1:
        return links[0]
    if not links:
        raise Refused(
            "no-link",
            "there is no link yet",
            still_true="nothing was changed",
            next_step="kmigrate link create NAME --source CLUSTER --target CLUSTER",
        )
    raise UsageError(
        "which-link",
        f"there are {len(links)} links ({', '.join(link.name for link in links)})",
        still_true="nothing was changed",
        next_step="say which one: --link NAME",
    )


# links


async def create_link(estate: Estate, name: str, source: str, *, plan: bool = False) -> Plan:
    """Store a link; the source is not contacted (AL-13)."""
    target_settings, source_settings = estate.target.settings, estate.settings_of(source)
    state = estate.log.state
    wanted = LinkRecord(
        name,
        secrets.token_hex(8),
        ClusterRef(source, source_settings.bootstrap_servers),
        ClusterRef(target_settings.name, target_settings.bootstrap_servers, estate.target.metadata.cluster_id),
        now_ms(),
    )
    found = [Finding("warn", "state-log-small", warning) for warning in estate.warnings]
    known = state.link(name)
    if known is not None:
        if known.source.name == source and known.target.name == target_settings.name:
            return Plan.of("link create", [], [Finding("ok", "link-exists", f"link {name} exists already")]).done()
        found.append(
            Finding(
                "refuse",
                "link-exists",
                f"link {name} exists and goes from {known.source.name} to {known.target.name}",
                "choose another name, or: kmigrate link delete " + name,
            )
        )
    shared = set(source_settings.bootstrap) & set(target_settings.bootstrap)
    if source == target_settings.name or shared:
        found.append(
            Finding(
                "refuse",
                "source-is-target",
                f"source {source} and target {target_settings.name} are the same cluster",
                "name two different clusters of kmigrate.toml",
            )
        )
    made = Plan.of("link create", [f"store link {name}: {source} → {target_settings.name}"], found)
    made.refuse()
    if plan:
        return made
    await estate.log.append(lambda state: None if state.link(name) else wanted)
    return made.done()


async def delete_link(estate: Estate, name: str, *, plan: bool = False) -> Plan:
    """Forget a link and its records; never deletes a topic, refuses while anything is mirrored and unpromoted."""
    link = resolve_link(estate.log.state, name)
    found = [
        Finding("refuse", "topic-not-promoted", f"topic {t.topic} is {t.phase}", f"kmigrate promote {t.topic}")
        for t in estate.log.state.topics(link.name)
        if t.phase is not TopicPhase.PROMOTED
    ]
    found += [
        Finding("refuse", "group-not-promoted", f"group {g.group} is {g.phase}", f"kmigrate group promote {g.group}")
        for g in estate.log.state.groups(link.name)
        if g.phase is not GroupPhase.PROMOTED
    ]
    keys = _link_keys(estate.log.state, link.name)
    restore = link.restore_expiration is not None and not any(
        other.name != link.name and other.restore_expiration is not None for other in estate.log.state.links()
    )
    changes = [f"forget {key}" for key in keys]
    if restore:
        changes.append(f"put {PRODUCER_EXPIRATION} of the target back to {link.restore_expiration or 'its default'}")
    made = Plan.of("link delete", changes, found)
    made.refuse()
    if plan:
        return made
    if restore:
        await estate.target.set_broker_default(PRODUCER_EXPIRATION, link.restore_expiration or None)
    for key in keys:
        await estate.log.append(lambda state, k=key: (k, None) if k in state.records else None)  # type: ignore[misc]
    return made.done()


def _link_keys(state: State, link: str) -> list[str]:
    """Keys of a link, the link itself last, so that a crash in between leaves a link to delete again."""
    parts = [
        key
        for key in sorted(state.records)
        if key.split("/")[1:2] == [link] and key.split("/")[0] in ("topic", "group", "barrier")
    ]
    return [*parts, f"link/{link}"]


async def check_link(estate: Estate, name: str | None) -> Plan:
    """Contact both clusters of a link and say what stands in the way; changes nothing."""
    link = resolve_link(estate.log.state, name)
    found = [
        Finding(
            "ok", "target-answers", f"target {link.target.name} answers: {len(estate.target.metadata.brokers)} brokers"
        )
    ]
    try:
        source, _ = await estate.source(link)
        found.append(
            Finding(
                "ok", "source-answers", f"source {link.source.name} answers: {len(source.metadata.brokers)} brokers"
            )
        )
    except (Refused, Unreachable) as error:
        found.append(Finding("refuse", error.ref, error.what, error.next_step))
    if not _mirror_runs(estate, link.name):
        found.append(Finding("warn", "no-mirror", "no mirror is running", "kmigrate run"))
    if not estate.log.alive(RouterPresence):
        found.append(Finding("warn", "no-router", "no router is running", "kmigrate run"))
    return Plan.of("link check", [], found)


async def forget_router(estate: Estate, name: str, *, plan: bool = False) -> Plan:
    """Say for a person that a router is dead, so that no fence waits for its word any more.

    Refused while the router is heard of. A router that lives after all and was only cut off finds its record gone
    and resets every connection before it forwards anything else.
    """
    record = next((r for r in estate.log.state.routers() if r.name == name), None)
    if record is None:
        known = ", ".join(r.name for r in estate.log.state.routers()) or "none"
        raise Refused(
            "unknown-router",
            f"no router {name} is registered; routers: {known}",
            still_true="nothing was changed",
            next_step="kmigrate status",
        )
    found: list[Finding] = []
    if record.instance in {p.instance for p in estate.log.alive(RouterPresence)}:
        found.append(
            Finding(
                "refuse",
                "router-alive",
                f"router {name} on {record.host} is running",
                "stop it: it then leaves by itself",
            )
        )
    made = Plan.of("router forget", [f"forget router {name} on {record.host}"], found)
    made.refuse()
    if plan:
        return made
    await estate.log.append(lambda state: (record.key, None) if record.key in state.records else None)
    return made.done()


def _mirror_runs(estate: Estate, link: str) -> bool:
    return any(p.link == link for p in estate.log.alive(MirrorPresence))


# topics


async def mirror_topics(
    estate: Estate, link_name: str | None, topics: Sequence[str], start: str, offsets: str, *, plan: bool = False
) -> Plan:
    """Write the intent to mirror topics; the mirror takes it from there (AL-15, AL-18)."""
    link = resolve_link(estate.log.state, link_name)
    if offsets not in ("auto", "identical"):
        raise UsageError(
            "offsets-mode", f"--offsets {offsets} is not in this version: topics get identical offsets or are refused"
        )
    source, _ = await estate.source(link)
    seen = (await source.refresh(topics)).topics
    standing = (await estate.target.refresh(topics)).topics
    found: list[Finding] = []
    new: list[str] = []
    for topic in dict.fromkeys(topics):
        owner = estate.log.state.topic_owner(topic)
        if owner is not None and owner.link == link.name:
            found.append(Finding("ok", "already-mirrored", f"topic {topic} is {owner.phase} already"))
            continue
        guards = _topic_guards(link, topic, owner, seen.get(topic))
        if not guards and topic in standing:
            guards = await _target_guards(estate.target, seen[topic], standing[topic])
        found += guards
        new.append(topic)
    made = Plan.of("topic mirror", [f"mirror {t} from {start}, identical offsets" for t in new], found)
    made.refuse()
    if plan:
        return made
    for topic in new:
        record = TopicRecord(
            link.name, topic, TopicPhase.INITIALISING, now_ms(), start, offsets, len(seen[topic].partitions)
        )
        await estate.log.append(lambda state, r=record: _claim(state, r))  # type: ignore[misc]
    return made.done()


def _claim(state: State, record: TopicRecord) -> Record | None:
    """Take a topic for its link, unless somebody did meanwhile (MM-20, MM-130)."""
    owner = state.topic_owner(record.topic)
    if owner is None:
        return record
    if owner.link == record.link:
        return None
    raise Refused("topic-owned", f"topic {record.topic} belongs to link {owner.link}", still_true="nothing was changed")


def _topic_guards(link: LinkRecord, topic: str, owner: TopicRecord | None, info: TopicInfo | None) -> list[Finding]:
    if owner is not None:
        return [
            Finding(
                "refuse",
                "topic-owned",
                f"topic {topic} belongs to link {owner.link}",
                "a target topic has one source: leave it to that link",
            )
        ]
    if is_internal(topic):
        return [Finding("refuse", "internal-topic", f"topic {topic} is internal and is never mirrored")]
    if info is None:
        return [
            Finding(
                "refuse",
                "unknown-topic",
                f"the source {link.source.name} has no topic {topic}",
                "check the name: kmigrate plan lists what the source has",
            )
        ]
    return []


async def _target_guards(target: ClusterClient, seen: TopicInfo, standing: TopicInfo) -> list[Finding]:
    """A topic that stands on the target may be adopted only if it is empty and has the same partitions."""
    if len(standing.partitions) != len(seen.partitions):
        return [
            Finding(
                "refuse",
                "partition-count",
                f"topic {seen.name} exists on the target with {len(standing.partitions)} partitions, "
                f"the source has {len(seen.partitions)}",
                "delete the target topic by hand if nobody needs it, then repeat",
            )
        ]
    keys = [(seen.name, p) for p in standing.partitions]
    ends = await target.list_offsets(dict.fromkeys(keys, LATEST))
    if any(end.offset > 0 for end in ends.values()):
        total = sum(max(0, end.offset) for end in ends.values())
        return [
            Finding(
                "refuse",
                "target-has-data",
                f"topic {seen.name} exists on the target and has held data ({total} offsets)",
                "delete the target topic by hand if nobody needs it, then repeat",
            )
        ]
    return [Finding("warn", "target-topic-adopted", f"topic {seen.name} exists on the target, empty: it is adopted")]


async def promote_topics(
    estate: Estate,
    link_name: str | None,
    topics: Sequence[str],
    terms: PromoteTerms,
    *,
    plan: bool = False,
    straggler_window_s: float = 5.0,
    wait_s: float = 0.0,
) -> Plan:
    """Write the intent to promote topics; the controller does it. `wait_s` lets guards come true first."""
    deadline = monotonic() + wait_s
    while True:
        try:
            return await _promote_topics(estate, link_name, topics, terms, plan, straggler_window_s)
        except Refused as refused:
            if refused.ref not in _PASSING or monotonic() > deadline:
                raise
        await sleep(0.25)


_PASSING = frozenset({"direct-writers", "not-mirroring"})
"""Refusals that time alone may lift."""


async def _promote_topics(
    estate: Estate,
    link_name: str | None,
    topics: Sequence[str],
    terms: PromoteTerms,
    plan: bool,
    straggler_window_s: float,
) -> Plan:
    link = resolve_link(estate.log.state, link_name)
    source, source_admin = await estate.source(link)
    found: list[Finding] = []
    new: list[TopicRecord] = []
    for topic in dict.fromkeys(topics):
        record = estate.log.state.topic(link.name, topic)
        against = _promote_guard(topic, record)
        if against is not None:
            found.append(against)
        elif record is not None:
            new.append(record)
    found += await _reading_groups(estate, link, source_admin, [record.topic for record in new])
    for record in new:
        found += [
            Finding("refuse", "direct-writers", sentence, "restart that producer with the router's address")
            for sentence in await direct_writers(estate.log, source, record, straggler_window_s)
        ]
    made = Plan.of("promote", [f"promote {record.topic}" for record in new], found)
    made.refuse()
    if plan:
        return made
    for record in new:
        asked = replace(
            record,
            phase=advance_topic(record.phase, TopicEvent.PROMOTE_ASKED),
            since_ms=now_ms(),
            terms=terms,
            reason="",
        )

        def decide(state: State, before: TopicRecord = record, after: TopicRecord = asked) -> Record | None:
            return after if state.topic(before.link, before.topic) == before else None

        await estate.log.append(decide)
    return made.done()


def _promote_guard(topic: str, record: TopicRecord | None) -> Finding | None:
    """What the topic's own phase says to a promote; None where it may go on."""
    if record is None:
        return Finding(
            "refuse", "not-mirrored", f"topic {topic} is not mirrored by this link", f"kmigrate topic mirror {topic}"
        )
    if record.phase is TopicPhase.PROMOTED:
        return Finding("ok", "already-promoted", f"topic {topic} is promoted already")
    if record.phase in _UNDER_WAY:
        return Finding("ok", "under-way", f"the promote of topic {topic} is under way: {record.phase}")
    if record.phase is not TopicPhase.MIRRORING:
        return Finding(
            "refuse",
            "not-mirroring",
            f"topic {topic} is {record.phase}" + (f": {record.reason}" if record.reason else ""),
            "wait until it is mirroring: kmigrate status --watch",
        )
    return None


async def _reading_groups(
    estate: Estate, link: LinkRecord, source_admin: Admin, topics: Collection[str]
) -> list[Finding]:
    """Mirrored groups that read a topic and are not promoted: the topic has to wait for them (AL-34)."""
    found: list[Finding] = []
    for group in estate.log.state.groups(link.name):
        if group.phase is GroupPhase.PROMOTED or not topics:
            continue
        read = {t for t, _ in await source_admin.group_offsets(group.group, stable=False)}
        found += [
            Finding(
                "refuse",
                "group-not-promoted",
                f"group {group.group} reads {topic} and is {group.phase}",
                f"kmigrate group promote {group.group}",
            )
            for topic in topics
            if topic in read
        ]
    return found


# groups


async def mirror_groups(estate: Estate, link_name: str | None, groups: Sequence[str], *, plan: bool = False) -> Plan:
    """Register groups; nothing is written to the target before their promote (AL-21, AL-22)."""
    link = resolve_link(estate.log.state, link_name)
    _, source_admin = await estate.source(link)
    known = await source_admin.groups()
    found: list[Finding] = []
    new: list[str] = []
    for group in dict.fromkeys(groups):
        owner = next((g for g in estate.log.state.groups() if g.group == group), None)
        if owner is not None and owner.link == link.name:
            found.append(Finding("ok", "already-mirrored", f"group {group} is {owner.phase} already"))
        elif owner is not None:
            found.append(Finding("refuse", "group-owned", f"group {group} belongs to link {owner.link}"))
        elif group not in known:
            found.append(
                Finding(
                    "refuse",
                    "unknown-group",
                    f"the source {link.source.name} has no group {group}",
                    "check the name; a group that never committed has nothing to carry over",
                )
            )
        else:
            new.append(group)
    made = Plan.of("group mirror", [f"register group {g}" for g in new], found)
    made.refuse()
    if plan:
        return made
    for group in new:
        record = GroupRecord(link.name, group, GroupPhase.MIRRORED, now_ms())
        await estate.log.append(lambda state, r=record: None if state.group(r.link, r.group) else r)  # type: ignore[misc]
    return made.done()


async def promote_groups(estate: Estate, link_name: str | None, groups: Sequence[str], *, plan: bool = False) -> Plan:
    """Write the intent to promote groups: positions are carried over, then reads open (AL-31, AL-33)."""
    link = resolve_link(estate.log.state, link_name)
    _, source_admin = await estate.source(link)
    found: list[Finding] = []
    new: list[GroupRecord] = []
    for group in dict.fromkeys(groups):
        record = estate.log.state.group(link.name, group)
        if record is None:
            found.append(
                Finding("refuse", "not-mirrored", f"group {group} is not mirrored", f"kmigrate group mirror {group}")
            )
        elif record.phase is not GroupPhase.MIRRORED:
            found.append(Finding("ok", "already", f"group {group} is {record.phase}"))
        else:
            new.append(record)
            found += [
                Finding(
                    "refuse",
                    "members-on-source",
                    f"group {group} still has member {m.client_id} at {m.host} on the source",
                    "restart that consumer with the router's address",
                )
                for m in await members_left(source_admin, group)
            ]
            found += await _offset_guards(estate, link, source_admin, group)
    made = Plan.of("group promote", [f"promote group {r.group}" for r in new], found)
    made.refuse()
    if plan:
        return made
    for record in new:
        asked = replace(
            record,
            phase=advance_group(record.phase, GroupEvent.PROMOTE_ASKED),
            since_ms=now_ms(),
            asked_ms=now_ms(),
            reason="",
        )

        def decide(state: State, before: GroupRecord = record, after: GroupRecord = asked) -> Record | None:
            return after if state.group(before.link, before.group) == before else None

        await estate.log.append(decide)
    return made.done()


async def _offset_guards(estate: Estate, link: LinkRecord, source_admin: Admin, group: str) -> list[Finding]:
    """Positions that cannot be carried over: beyond the source's log, or of topics nobody mirrors (C5, MM-71)."""
    offsets = await source_admin.group_offsets(group, stable=False)
    mirrored = {t.topic for t in estate.log.state.topics(link.name)}
    found = [
        Finding("warn", "topic-not-mirrored", f"group {group} has positions in {topic}, which is not mirrored")
        for topic in sorted({t for t, _ in offsets} - mirrored)
    ]
    source, _ = await estate.source(link)
    keys = [key for key in offsets if key[0] in mirrored]
    ends = await source.list_offsets(dict.fromkeys(keys, LATEST))
    starts = await source.list_offsets(dict.fromkeys(keys, EARLIEST))
    for key in keys:
        end, first = ends[key], starts[key]
        if not end.error and offsets[key].offset > end.offset and end.offset > first.offset:
            found.append(
                Finding(
                    "refuse",
                    "position-beyond-log",
                    f"group {group} committed {offsets[key].offset} on {key[0]}-{key[1]}, "
                    f"whose log ends at {end.offset}",
                    "reset that position on the source to one that exists",
                )
            )
    return found


# waiting


async def wait_topics(
    estate: Estate,
    link: str,
    topics: Collection[str],
    phases: Iterable[TopicPhase],
    timeout: float,
    on_change: Callable[[State], None] | None = None,
) -> list[TopicRecord]:
    """Wait until every topic is in one of `phases`; a promote that was given up raises Failed with its reason."""
    wanted = frozenset(phases)
    promoting = TopicPhase.PROMOTED in wanted and TopicPhase.MIRRORING not in wanted

    def look(state: State) -> list[TopicRecord] | None:
        if on_change is not None:
            on_change(state)
        records = [state.topic(link, topic) for topic in topics]
        for record in records:
            if promoting and record is not None and record.phase is TopicPhase.MIRRORING and record.reason:
                raise Failed(
                    "promote-given-up",
                    f"the promote of {record.topic} was given up: {record.reason}",
                    still_true="the topic is mirrored as before; producers go on through the router",
                    next_step=f"mend the cause, then: kmigrate promote {record.topic}",
                )
        found = [r for r in records if r is not None and r.phase in wanted]
        return found if len(found) == len(records) else None

    what = f"{', '.join(topics)} to be {' or '.join(sorted(wanted))}"
    try:
        return await estate.log.wait(look, timeout, what)
    except WaitTimedOut as late:
        raise _late(estate, link, late) from late


async def wait_groups(
    estate: Estate,
    link: str,
    groups: Collection[str],
    timeout: float,
    on_change: Callable[[State], None] | None = None,
) -> list[GroupRecord]:
    """Wait until every group is promoted; a handover that was given up raises Failed with its reason."""

    def look(state: State) -> list[GroupRecord] | None:
        if on_change is not None:
            on_change(state)
        records = [state.group(link, group) for group in groups]
        for record in records:
            if record is not None and record.phase is GroupPhase.MIRRORED and record.reason:
                raise Failed(
                    "handover-given-up",
                    f"the promote of group {record.group} was given up: {record.reason}",
                    still_true="the group is mirrored as before; its members at the router wait",
                    next_step=f"mend the cause, then: kmigrate group promote {record.group}",
                )
        found = [r for r in records if r is not None and r.phase is GroupPhase.PROMOTED]
        return found if len(found) == len(records) else None

    try:
        return await estate.log.wait(look, timeout, f"group {', '.join(groups)} to be promoted")
    except WaitTimedOut as late:
        raise _late(estate, link, late) from late


def _late(estate: Estate, link: str, late: WaitTimedOut) -> WaitTimedOut:
    if _mirror_runs(estate, link):
        return late
    return WaitTimedOut(
        "no-mirror-running",
        "no mirror running: start kmigrate run",
        still_true="the intent stays in the state log and is taken up when a mirror runs",
        next_step="kmigrate run",
    )
