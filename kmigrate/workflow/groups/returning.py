"""Positions that a promoted group takes back to the source: whether the source has the records, and the offsets there.

While a topic is mirrored, the target's records come from the source. While a topic is promoted with an open way back,
the mirror copies the target's records to the source (decision 17). Other records exist on the target alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.committed_offsets import Committed, CommittedOffset
from kmigrate.cluster.requests import Key
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import NOT_COPIED_YET, GroupMode
from kmigrate.model.records import GroupRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.plan import Finding, refuse

__all__ = ["against_returning", "at_source", "mode_after", "records_missing"]


def against_returning(state: State, record: GroupRecord, topics: Collection[str]) -> list[Finding]:
    """Return a refusal for each topic of the group whose newest records the source does not get."""
    found = (_against(state.topic(record.link, topic), record, topic) for topic in sorted(topics))
    return [each for each in found if each is not None]


def _against(topic: TopicRecord | None, record: GroupRecord, name: str) -> Finding | None:
    reads = f"group {record.group} has positions on the target in {name}"
    stays = "the group stays at the target"
    if topic is None:
        return refuse("topic-not-mirrored", f"{reads}, which link {record.link} does not mirror", stays)
    if topic.phase in NOT_COPIED_YET:
        what = f"{reads}, which is {topic.phase}: the mirror does not copy the topic yet"
        return refuse("topic-not-ready", what, "repeat when kmigrate status shows the topic as mirroring")
    way = topic.way_back
    if not topic.at_target:
        return None
    if way is None or not way.open:
        why = "was promoted without a way back" if way is None else f"has no way back any more: {way.ended}"
        return refuse("no-way-back", f"{reads}, which {why}", stays)
    for partition, stop in sorted(way.stops.items()):
        what = f"{reads}; the copy of partition {partition} to the source has stopped: {stop.text}"
        return refuse("partition-stopped", what, advised("topic resume", topic.link, name))
    return None


def mode_after(state: State, record: GroupRecord, topics: Collection[str]) -> GroupMode:
    """Return the group's mode after a rollback: a group that reads a topic with mapped offsets cannot follow."""
    known = (state.topic(record.link, topic) for topic in topics)
    return GroupMode.HOLD if any(topic is not None and topic.mapped for topic in known) else record.mode


async def at_source(positions: Positions, state: State, record: GroupRecord, committed: Committed) -> Committed:
    """Translate positions on the target into positions on the source; raise Refused where the map lacks a position."""
    found: Committed = {}
    known = (state.topic(record.link, name) for name in sorted({name for name, _ in committed}))
    mapped = [each for each in known if each is not None and each.mapped]
    maps = {each.topic: await positions.maps(each) for each in mapped}
    for (topic, partition), at in committed.items():
        if topic not in maps:
            found[topic, partition] = at
            continue
        made = maps[topic].get(partition)
        place = made.to_source(at.offset) if made is not None else None
        if place is None:
            raise Refused(
                "source-behind-group",
                f"group {record.group} has read {topic}-{partition} up to offset {at.offset} of the target, which the "
                "map of the topic's offsets does not hold yet",
                still_true="the group is promoted as before; no position was written",
                next_step=f"repeat: {advised('group rollback', record.link, record.group)}",
            )
        found[topic, partition] = CommittedOffset(place.offset, at.metadata)
    return found


async def records_missing(source: ClusterClient, wanted: Mapping[Key, CommittedOffset]) -> dict[Key, int]:
    """Return by partition how many records below a position the source's log lacks."""
    if not wanted:
        return {}
    await source.refresh({topic for topic, _ in wanted})
    ends = await source.list_offsets(dict.fromkeys(wanted, LATEST))
    held = {key: 0 if end.error else end.offset for key, end in ends.items()}
    return {key: at.offset - held[key] for key, at in sorted(wanted.items()) if at.offset > held[key]}
