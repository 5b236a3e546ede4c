"""`topic mirror`: the intent, findings, and the engine: mirror processes, or Spark's tasks, which then hand over."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import KmigrateError, UsageError
from kmigrate.model.ids import is_internal
from kmigrate.model.lifecycle import PROMOTING, TopicPhase
from kmigrate.model.nearest import looks_like_expression, name_hint
from kmigrate.model.record_json import Record
from kmigrate.model.records import CopyEngine, LinkRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised, delete_unneeded
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.broker_settings import ALL, Scope, compare_settings, read_both, settings_unknown
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, refuse, warn
from kmigrate.workflow.groups.readers import readers_at
from kmigrate.workflow.verbs.creatable import ConfigsOf, creation_findings, no_configs, timeout_findings
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link
from kmigrate.workflow.verbs.loops import copied_back_by, loop_findings
from kmigrate.workflow.verbs.proposal import Judged, Proposal, Write, by_regex, owned, propose, refuse_if

__all__ = ["check_offsets_mode", "durability_findings", "mirror_topics", "set_engine", "setting_guards"]

_FIRST_WITH_PRODUCERS = (0, 11)
"""First version with message format 2, the first format with producer ids."""
_MODES = {
    "auto": "identical offsets where they can be had, else mapped",
    "identical": "identical offsets",
    "mapped": "mapped offsets",
}


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
    """Propose to mirror topics; `recreate` deletes an empty target topic that groups read, and creates a new topic."""
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
        guards = _topic_guards(topic, connections.log.state.topic_owner(topic))
        if not guards and topic not in seen:
            guards = [_unknown(link, topic, (await source.refresh()).topics)]
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
    found += await setting_guards(connections, link, source)
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


async def setting_guards(connections: Connections, link: LinkRecord, source: ClusterClient) -> list[Finding]:
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
            "bad-offsets-mode",
            f"--offsets {offsets}: no such mode",
            still_true="nothing was changed",
            next_step="expected: auto, identical or mapped",
        )


def _claim(record: TopicRecord, state: State) -> Record | None:
    """Return the topic's record for its link, unless another call has claimed the topic or finished the link."""
    refuse_finished(resolve_link(state, record.link))
    owner = state.topic_owner(record.topic)
    if owner is not None and (owner.link != record.link or owner.forgotten_ms):
        refuse_if("topic mirror", owned("topic", owner.topic, owner))
    return record if owner is None else None


def _topic_guards(topic: str, owner: TopicRecord | None) -> list[Finding]:
    if owner is not None:
        return [owned("topic", owner.topic, owner)]
    if is_internal(topic):
        return [refuse("internal-topic", f"topic {topic} is internal and is never mirrored")]
    return []


def _unknown(link: LinkRecord, topic: str, known: Collection[str]) -> Finding:
    """Return the refusal of a topic that the source does not have, with the name that was meant."""
    what = f"the source {link.source.name} has no topic {topic}{name_hint(topic, known)}"
    if looks_like_expression(topic):
        return refuse("unknown-topic", what, f"to mirror by expression: {by_regex('topic', link.name, topic)}")
    return refuse("unknown-topic", what, "check the name: kmigrate plan lists what the source has")


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
    """Return findings for a topic on the target: adopted with equal partition counts; with data only in mode mapped."""
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

    A group's position there may lie before the start of the copy, and is then reset as `auto.offset.reset` says.
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
            lost = f"; its groups lose their position in it: {groups}" if groups else ""
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


def durability_findings(
    seen: TopicInfo, existing: TopicInfo | None, brokers: int, in_sync: ConfigValue | None
) -> list[Finding]:
    """Compare replicas and `min.insync.replicas` (`in_sync`) with the target's topic, else with its `brokers`."""
    ours = _replicas(seen)
    theirs = min(ours, brokers) if existing is None else _replicas(existing)
    found: list[Finding] = []
    if theirs < ours:
        found.append(
            warn(
                "fewer-replicas",
                f"topic {seen.name} has replication factor {ours} on the source and {theirs} on the target",
                f"add brokers to the target first, or give {seen.name} more replicas there before its promote "
                "(kafka-reassign-partitions.sh)",
            )
        )
    if in_sync is not None and int(in_sync.value) > theirs:
        found.append(
            warn(
                "min-insync-lowered",
                f"min.insync.replicas of topic {seen.name} is {in_sync.value} on the source and can be {theirs} at "
                "most on the target: acks=all promises less there",
                f"it follows the source once {seen.name} has more replicas on the target, until its promote",
            )
        )
    return found


def _replicas(info: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in info.partitions.values()), default=1)


async def set_engine(
    connections: Connections, link_name: str | None, topics: Sequence[str], engine: CopyEngine
) -> Proposal:
    """Propose the engine that shall copy these topics; the present engine lets go, and the other engine begins."""
    link = resolve_link(connections.log.state, link_name)
    judged = Judged.topics(
        "topic mirror", link.name, partial(_engine_guard, engine), lambda record: replace(record, engine=engine)
    )
    records, found = judged.look(connections.log.state, topics)
    writes = [
        (f"{topic} is copied by the {engine} engine", judged.write(topic))
        for topic, record in records.items()
        if record.engine is not engine
    ]
    return propose(connections.log, judged.verb, found, writes)


def _engine_guard(engine: CopyEngine, record: TopicRecord) -> Finding | None:
    topic = record.topic
    if engine is CopyEngine.DAEMON:
        return None
    if record.at_target:
        return ok("already-promoted", f"topic {topic} is promoted: nothing is copied now")
    if record.mapped:
        return refuse(
            "mapped-by-daemon",
            f"topic {topic} has mapped offsets, which have one writer: the mirror process that leads the link",
            "leave out --engine",
        )
    if record.phase in PROMOTING:
        return refuse("not-mirroring", f"topic {topic} is {record.phase}: near its promote the daemon copies")
    return None
