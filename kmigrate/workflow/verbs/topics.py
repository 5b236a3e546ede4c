"""Verbs on topics: the intent to mirror, and the intent to promote."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import BrokerRefused, KmigrateError, Refused, Unreachable, UsageError
from kmigrate.model.coupling import coupled_topics
from kmigrate.model.ids import is_internal
from kmigrate.model.lifecycle import PROMOTING, TopicEvent, TopicPhase, advance_topic
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import LinkRecord, PromoteTerms, TopicRecord
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.model.stops import DISK_LOW
from kmigrate.model.words import advised, delete_unneeded
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.broker_settings import ALL, Scope, compare_settings, read_both, settings_unknown
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.control_markers import marker_findings
from kmigrate.workflow.base.plan import Finding, Level, ok, refuse, warn
from kmigrate.workflow.base.running import until_mirroring
from kmigrate.workflow.groups.misplaced import promoted_group_findings
from kmigrate.workflow.groups.readers import readers_at, reading_groups
from kmigrate.workflow.promote.direct_writers import Straggler, look_for_direct_writers
from kmigrate.workflow.promote.sealing import Sealer, strays
from kmigrate.workflow.status.lags import lost_beginning
from kmigrate.workflow.verbs.creatable import ConfigsOf, creation_findings, no_configs, timeout_findings
from kmigrate.workflow.verbs.durability import durability_findings
from kmigrate.workflow.verbs.groups import coupled_groups, judged_promote, promote_guards, unmirrored_readers
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link
from kmigrate.workflow.verbs.loops import copied_back_by, loop_findings
from kmigrate.workflow.verbs.proposal import Judged, Proposal, Write, owned, propose, refuse_if
from kmigrate.workflow.verbs.routers import unheard_routers

__all__ = ["check_offsets_mode", "direct_findings", "mirror_topics", "promote_topics"]

_FIRST_WITH_PRODUCERS = (0, 11)
"""First version with message format 2, the first format with producer ids."""
_MODES = {
    "auto": "identical offsets where they can be had, else mapped",
    "identical": "identical offsets",
    "mapped": "mapped offsets",
}

_MOST = 20
"""Maximum number of direct writers that are named; those in the way come first."""
_DIRECT_NEXT = "restart that producer with the router's address; where its writes may be lost: --accept-direct-writers"


async def mirror_topics(
    connections: Connections,
    link_name: str | None,
    topics: Sequence[str],
    start: str,
    offsets: str,
    *,
    configs_of: ConfigsOf = no_configs,
    recreate: bool = False,
) -> Proposal:
    """Propose to mirror topics; the mirror carries the intent out.

    `recreate` says that an empty topic that groups read at the target is deleted there and created anew.
    """
    link = resolve_link(connections.log.state, link_name)
    check_offsets_mode(offsets)
    known = {topic: record for topic in topics if (record := connections.log.state.topic(link.name, topic)) is not None}
    found = [ok("already-mirrored", f"topic {r.topic} is {r.phase} already") for r in known.values()]
    new = [topic for topic in dict.fromkeys(topics) if topic not in known]
    if not new:
        return propose(connections.log, "topic mirror", found)
    refuse_finished(link)
    source, source_admin = await connections.source(link)
    seen = (await source.refresh(new)).topics
    configs = await source_admin.topic_configs([topic for topic in new if topic in seen])
    existing = (await connections.target.refresh(new)).topics
    adopted: list[str] = []
    for topic in new:
        guards = _topic_guards(link, topic, connections.log.state.topic_owner(topic), seen.get(topic))
        if not guards and topic in existing:
            guards = await _target_guards(source, connections.target, seen[topic], existing[topic], offsets)
            if guards == []:
                adopted.append(topic)
        values = configs.get(topic, {})
        found += guards + _format_guards(topic, values.get("message.format.version"))
        if topic in seen:
            brokers, in_sync = len(connections.target.metadata.brokers), values.get("min.insync.replicas")
            found += durability_findings(seen[topic], existing.get(topic), brokers, in_sync)
    found += await loop_findings(source, connections.target, new)
    refused = {f.what for f in found if f.level == "refuse"}
    missing = [] if refused else [seen[topic] for topic in new if topic in seen and topic not in existing]
    found += await creation_findings(connections, missing, configs_of)
    found += await _setting_guards(connections, link, source)
    found += await _adoption_findings(connections, link, adopted, recreate=recreate)
    anew = adopted if recreate else []
    writes: list[Write] = []
    for topic in new if not refused else ():
        record = TopicRecord(link.name, topic, TopicPhase.INITIALISING, now_ms(), start, offsets)
        record = replace(record, partitions=len(seen[topic].partitions), recreate=topic in anew)
        writes.append((f"mirror {topic} from {start}, {_MODES[offsets]}", partial(_claim, record)))
    changes = [change for change, _ in writes]
    changes += [f"delete the empty topic {topic} on {link.target.name}, and create it anew" for topic in anew]
    return propose(connections.log, "topic mirror", found, writes, changes)


async def _setting_guards(connections: Connections, link: LinkRecord, source: ClusterClient) -> list[Finding]:
    """Compare the clusters' settings except those on groups, and the transaction timeouts with the target's limit."""
    try:
        here, there = await read_both(connections, link)
    except KmigrateError as error:
        return [settings_unknown(error)]
    return [*compare_settings(here, there, ALL - {Scope.GROUPS}), *await timeout_findings(source, here, there)]


def check_offsets_mode(offsets: str) -> None:
    """Raise UsageError if a word is no offsets mode."""
    if offsets not in _MODES:
        raise UsageError(
            "bad-offsets-mode", f"--offsets {offsets}: no such mode", next_step="expected: auto, identical or mapped"
        )


def _claim(record: TopicRecord, state: State) -> Record | None:
    """Return the topic's record for its link, unless another call claimed the topic, or finished the link,
    meanwhile."""
    refuse_finished(resolve_link(state, record.link))
    owner = state.topic_owner(record.topic)
    if owner is not None and (owner.link != record.link or owner.forgotten_ms):
        refuse_if("topic mirror", owned("topic", owner.topic, owner))
    return record if owner is None else None


def _topic_guards(link: LinkRecord, topic: str, owner: TopicRecord | None, info: TopicInfo | None) -> list[Finding]:
    if owner is not None:
        return [owned("topic", owner.topic, owner)]
    if is_internal(topic):
        return [refuse("internal-topic", f"topic {topic} is internal and is never mirrored")]
    if info is None:
        return [
            refuse(
                "unknown-topic",
                f"the source {link.source.name} has no topic {topic}",
                "check the name: kmigrate plan lists what the source has",
            )
        ]
    return []


def _format_guards(topic: str, version: ConfigValue | None) -> list[Finding]:
    """Warn of a topic whose log has no place for producer ids: the mirror copies, but a router cannot write (43)."""
    numbers = re.match(r"(\d+)\.(\d+)", version.value) if version is not None else None
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= _FIRST_WITH_PRODUCERS:
        return []
    return [
        warn(
            "old-message-format",
            f"topic {topic} is written in message format {numbers[0]}: it is mirrored, but what producers send through "
            "a router is refused by the source (UNSUPPORTED_FOR_MESSAGE_FORMAT)",
            f"set message.format.version of {topic} to the source's version before its producers are rolled",
        )
    ]


async def _unless_needed(source: ClusterClient, target: ClusterClient, topic: str) -> str:
    """Return the advice for a topic that stands on the target: an original of another link is never deleted."""
    link = await copied_back_by(source, target, topic)
    if link:
        return (
            f"keep topic {topic} on {target.settings.name}: link {link} copies that topic from there to "
            f"{source.settings.name}"
        )
    return f"{delete_unneeded(topic)}, then repeat"


async def _target_guards(
    source: ClusterClient, target: ClusterClient, seen: TopicInfo, existing: TopicInfo, offsets: str
) -> list[Finding]:
    """Return the findings for a topic that exists on the target.

    The topic may be adopted if its number of partitions is the same; with data only in mode mapped.
    """
    if len(existing.partitions) != len(seen.partitions):
        return [
            refuse(
                "partition-count",
                f"topic {seen.name} exists on the target with {len(existing.partitions)} partitions, "
                f"the source has {len(seen.partitions)}",
                await _unless_needed(source, target, seen.name),
            )
        ]
    keys = [(seen.name, p) for p in existing.partitions]
    ends = await target.list_offsets(dict.fromkeys(keys, LATEST))
    if any(end.offset > 0 for end in ends.values()):
        total = sum(max(0, end.offset) for end in ends.values())
        if offsets == "mapped":
            what = f"topic {seen.name} exists on the target with {total} offsets: the mirror's records go behind them"
            return [warn("target-has-data", what)]
        return [
            refuse(
                "target-has-data",
                f"topic {seen.name} exists on the target and has held data ({total} offsets)",
                "put the records of the source behind that data: --offsets mapped; or "
                + await _unless_needed(source, target, seen.name),
            )
        ]
    return []


async def _adoption_findings(
    connections: Connections, link: LinkRecord, topics: Sequence[str], *, recreate: bool
) -> list[Finding]:
    """Return the findings for empty topics that exist on the target and are taken for the mirror.

    A group that has read an empty topic has a position in the topic's log. The copy begins where the source's log
    begins, so that position may lie before the copy's start. The group would then be reset as `auto.offset.reset` says.
    """
    if not topics:
        return []
    found: list[Finding] = []
    readers: Mapping[str, Sequence[str]] = {}
    try:
        readers = await readers_at(connections.target, connections.target_admin, topics)
    except KmigrateError as error:
        what = f"which groups read {', '.join(topics)} on the target could not be asked: {error.what}"
        found.append(warn("readers-unknown", what))
    for topic in topics:
        exists = f"topic {topic} exists on the target, empty"
        groups = ", ".join(readers.get(topic, ()))
        if recreate:
            lost = f"; its groups lose their place in it: {groups}" if groups else ""
            found.append(warn("target-topic-recreated", f"{exists}: it is deleted and created anew{lost}"))
        elif groups:
            found.append(
                refuse(
                    "target-topic-read",
                    f"{exists}, and groups read it there: {groups}",
                    "stop these groups' clients and delete their positions; or have the empty topic deleted and made "
                    f"anew: {advised('topic mirror --recreate', link.name, topic)}",
                )
            )
        else:
            found.append(warn("target-topic-adopted", f"{exists}: it is adopted"))
    return found


async def promote_topics(
    connections: Connections,
    link_name: str | None,
    topics: Sequence[str],
    terms: PromoteTerms,
    *,
    straggler_window_s: float = 5.0,
    wait_s: float = 0.0,
    accept_misplaced: bool = False,
) -> Proposal:
    """Propose to promote topics; the controller carries the intent out.

    For `wait_s` seconds guards that time may lift are asked again.
    """
    deadline, longer = monotonic() + wait_s, 0.0
    while True:
        try:
            return await _promote_topics(
                connections, link_name, topics, terms, straggler_window_s, accept_misplaced=accept_misplaced
            )
        except Refused as refused:
            if refused.ref not in _PASSING or monotonic() > deadline:
                raise
            if wait_s and not longer and refused.ref == "direct-writers":
                longer = await _silence_s(connections, link_name, topics, straggler_window_s)
                deadline = max(deadline, monotonic() + min(longer, _MOST_SILENCE_S))
        await sleep(0.25)


_PASSING = frozenset({"direct-writers", "member-on-source", "not-mirroring"})
"""Refusals that time alone may lift."""
_MOST_SILENCE_S = 60.0
"""Longest silence of direct writers that a promote waits for; a longer silence refuses at once."""


async def _silence_s(connections: Connections, link_name: str | None, topics: Sequence[str], window_s: float) -> float:
    """Return how long the direct writers have to stay silent until none is in the way."""
    link = resolve_link(connections.log.state, link_name)
    source, _ = await connections.source(link)
    records = [record for topic in topics if (record := connections.log.state.topic(link.name, topic)) is not None]
    found = [each for r in records for each in await look_for_direct_writers(connections.log, source, r, window_s)]
    return 1.0 + max((each.left_s for each in found if each.in_the_way), default=0.0)


async def _promote_topics(
    connections: Connections,
    link_name: str | None,
    topics: Sequence[str],
    terms: PromoteTerms,
    straggler_window_s: float,
    *,
    accept_misplaced: bool,
) -> Proposal:
    link = resolve_link(connections.log.state, link_name)

    def change(record: TopicRecord) -> TopicRecord:
        phase = advance_topic(record.phase, TopicEvent.PROMOTE_ASKED)
        return replace(record, phase=phase, since_ms=now_ms(), terms=terms, reason="", way_on="")

    judged = Judged.topics("promote", link.name, partial(_promote_guard, connections.log), change)
    records, found = judged.look(connections.log.state, topics)
    if not records:
        return propose(connections.log, judged.verb, found)
    names, new = list(records), list(records.values())
    source, source_admin = await connections.source(link)
    with_them = coupled_groups(connections.log.state, link.name, names)
    found += _coupled(connections.log.state, link, names)
    found += await reading_groups(connections.log.state, link.name, names, source, source_admin)
    found += await promoted_group_findings(
        connections, link, source, topics=names, accepted=accept_misplaced, verb=advised("promote", link.name, *names)
    )
    for group in with_them:
        found += await promote_guards(connections, link, group)
    for record in new:
        looked = await look_for_direct_writers(connections.log, source, record, straggler_window_s)
        found += direct_findings(looked, accepted=terms.accept_direct)
    found += await _cut_copies(connections, source, new)
    found += unheard_routers(connections.log)
    found += await _seal_findings(connections, source, source_admin, new)
    found += await _setting_guards(connections, link, source)
    refuse_if(judged.verb, *found)
    found += await _groups_left_behind(connections, link, source, source_admin, names)
    found += await marker_findings(connections.target, connections.target_admin, link, new, finish=False)
    groups = judged_promote(link.name)
    of_topics = [(f"promote {topic}", judged.write(topic)) for topic in names]
    of_groups = [
        (f"promote group {g.group}, whose positions their transactions commit", groups.write(g.group))
        for g in with_them
    ]
    changes = [change for change, _ in (*of_topics, *of_groups)]
    return propose(connections.log, judged.verb, found, [*of_groups, *of_topics], changes)


async def _seal_findings(
    connections: Connections, source: ClusterClient, admin: Admin, records: Sequence[TopicRecord]
) -> list[Finding]:
    """Refuse topics that must be sealed for an earlier process of a router, where the source does not allow the
    seal."""
    earlier = strays(connections.log.state)
    found: list[Finding] = []
    for record in records if earlier else ():
        try:
            await Sealer(connections.log, source, admin).try_rights(record, earlier)
        except BrokerRefused as refused:
            found.append(refuse(refused.ref, refused.what, refused.next_step))
        except Unreachable as away:
            found.append(warn(away.ref, away.what, away.next_step))
    return found


async def _cut_copies(connections: Connections, source: ClusterClient, records: Sequence[TopicRecord]) -> list[Finding]:
    """Return warnings for copies whose beginning somebody has deleted, perhaps on purpose."""
    of = {(record.topic, partition): record for record in records for partition in range(record.partitions)}
    try:
        asked = (cluster.list_offsets(dict.fromkeys(of, EARLIEST)) for cluster in (connections.target, source))
        mine, theirs = await together(*asked)
    except KmigrateError:
        return []  # a promote needs these clusters anyway, and asks them again
    cut = {key: lost_beginning(record, key, mine, theirs) for key, record in of.items()}
    return [
        warn(
            "copy-cut",
            f"{topic}-{partition}: {why}",
            f"where that was a mistake, mirror it anew: {advised('topic forget', of[topic, partition].link, topic)}",
        )
        for (topic, partition), why in cut.items()
        if why
    ]


def _promote_guard(log: StateLog, record: TopicRecord) -> Finding | None:
    """Return why the topic's own state keeps a promote back; None where the promote may go on."""
    topic, link = record.topic, record.link
    if record.phase is TopicPhase.PROMOTED:
        return ok("already-promoted", f"topic {topic} is promoted already")
    if record.phase in PROMOTING:
        return ok("under-way", f"the promote of topic {topic} is under way: {record.phase}")
    if record.phase is not TopicPhase.MIRRORING:
        return refuse(
            "not-mirroring",
            f"topic {topic} is {record.phase}" + (f": {record.reason}" if record.reason else ""),
            until_mirroring(log, link),
        )
    if record.paused:
        resume = advised("topic resume", link, topic)
        return refuse("topic-paused", f"topic {topic} is paused", resume)
    if low := _disk_low(log, record):
        return refuse(
            DISK_LOW,
            f"topic {topic} is not copied on: {low}",
            "make room on the target's brokers; kmigrate status says when the copy goes on",
        )
    for partition, stop in sorted(record.stops.items()):
        return refuse(
            "partition-stopped",
            f"partition {partition} of {topic} has stopped: {stop.text}",
            stop.way_on(record.link, topic, partition),
        )
    return None


def _disk_low(log: StateLog, record: TopicRecord) -> str:
    """Name the log directories of the target that a topic's copy waits for, because they lack room; '' for none."""
    mirrors = [mirror for mirror in log.alive(MirrorPresence) if mirror.link == record.link]
    seen = progress_of(log.state, record, mirrors)
    if not any(DISK_LOW in each.trouble for each in seen.values()):
        return ""
    return next((mirror.disk_low for mirror in mirrors if mirror.disk_low), "the target has too little room")


def _coupled(state: State, link: LinkRecord, topics: Collection[str]) -> list[Finding]:
    """Return a refusal for each topic that is written in the same transactions and that nobody has asked to promote."""
    found: list[Finding] = []
    for topic, name in sorted(coupled_topics(state.couplings(link.name), topics).items()):
        record = state.topic(link.name, topic)
        if record is None or record.phase in (TopicPhase.PROMOTED, *PROMOTING):
            continue
        promote = advised("promote", link.name, *sorted({*topics, topic}))
        found.append(
            refuse(
                "coupled-topics",
                f"{topic} is written in the same transactions (transactional id {name})",
                f"promote them together: {promote}",
            )
        )
    return found


async def _groups_left_behind(
    connections: Connections, link: LinkRecord, source: ClusterClient, source_admin: Admin, topics: Collection[str]
) -> list[Finding]:
    """Return warnings for groups that nobody mirrors and that have positions in a topic.

    Such a group is no refusal, because the group may have been given up long ago. But a member that still reads begins
    on the target without a position. Groups that cannot be listed do not refuse either: a group that has nothing to do
    with the topic must not keep the topic back.
    """
    if not topics:
        return []
    try:
        readers = await unmirrored_readers(connections, source, source_admin)
    except KmigrateError as error:
        what = f"which groups read the topics and are not mirrored could not be asked: {error.what}"
        return [warn("readers-unknown", what)]
    return [
        warn(
            "group-not-mirrored",
            f"groups that read {topic} and are not mirrored lose their place: {', '.join(readers[topic])}",
            f"before the promote: {advised('group mirror', link.name, *readers[topic])}",
        )
        for topic in topics
        if topic in readers
    ]


def direct_findings(found: Sequence[Straggler], *, accepted: bool) -> list[Finding]:
    """Name the direct writers of one topic: recent writers refuse the promote, unless a person accepts them.

    A writer that has been silent for long enough is named, too: that writer may come back.
    """
    lately = [each for each in found if each.in_the_way]
    gone = sorted((each for each in found if not each.in_the_way), key=lambda each: each.silent_ms)
    level: Level = "warn" if accepted else "refuse"
    ref = "direct-writers-accepted" if accepted else "direct-writers"
    named = [Finding(level, ref, each.reason, "" if accepted else _DIRECT_NEXT) for each in lately[:_MOST]]
    if len(lately) > _MOST:
        named.append(
            Finding(level, ref, f"{len(lately) - _MOST} more direct writers of {lately[0].topic}", _DIRECT_NEXT)
        )
    room = max(0, _MOST - len(lately))
    seen = "make sure that this producer has the router's address by now"
    named += [warn("direct-writers-seen", each.text, seen) for each in gone[:room]]
    if len(gone) > room:
        what = f"{len(gone) - room} more direct writers of {gone[0].topic} have been seen during the link"
        named.append(warn("direct-writers-seen", what, f"kmigrate topic show {gone[0].topic}"))
    return named
