"""Names topics of followed groups that nobody reads, each with the reason and the next step.

The source assigns these topics to members at routers, and the routers withhold them (KIP-848): members must not read
them at the target. Routers know source ids only: names come from the link's records or the source.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.lifecycle import NOT_COPIED_YET, GroupMode
from kmigrate.model.presences import GroupReport
from kmigrate.model.records import GroupRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised

__all__ = ["WithheldTopic", "names_of", "unnamed", "withheld_topics"]


@dataclass(frozen=True, slots=True)
class WithheldTopic:
    """One topic, and the number of members that the topic is withheld from."""

    topic: str
    """The topic's name at the source; '' where neither a link nor the source knows the name."""
    topic_id: str
    """The topic's id at the source."""
    members: int
    ref: str
    """The reason in kebab case; it does not change between versions."""
    why: str
    next: str
    """The step after which the members read the topic."""

    def said_of(self, group: str) -> str:
        """Return the whole finding as one sentence."""
        topic = f"topic {self.topic}" if self.topic else f"a topic with the id {self.topic_id}"
        who = "a member at a router, which is" if self.members == 1 else f"{self.members} members at routers, which are"
        what = f"nobody reads the partitions of {topic} that the source assigns to {who} not told of it"
        return f"group {group}: {what}, because {self.why}"


def unnamed(reports: Iterable[GroupReport]) -> frozenset[str]:
    """Return the ids of topics whose names the routers do not know."""
    return frozenset(each.topic_id for report in reports for each in report.withheld if not each.topic)


async def names_of(source: ClusterClient, topics: Collection[str]) -> dict[str, str]:
    """Return the names of the given topics by topic id, as the source has them; empty without an answer."""
    try:
        known = (await source.refresh(sorted(topics))).topics
    except KmigrateError:
        return {}  # the findings then name the topics by id
    return {str(info.topic_id): name for name in topics if (info := known.get(name)) is not None}


def withheld_topics(
    state: State, group: GroupRecord, reports: Collection[GroupReport], names: Mapping[str, str]
) -> tuple[tuple[WithheldTopic, ...], int]:
    """Merge all routers' reports by topic name; also return how many further topics, at least, a router had."""
    if group.mode is not GroupMode.FOLLOW or group.at_target:
        return (), 0  # a router may not have heard of this yet
    members: Counter[str] = Counter()
    named = dict(names)
    for each in (each for report in reports for each in report.withheld):
        members[each.topic_id] += each.members
        if each.topic:
            named[each.topic_id] = each.topic
    found = [
        WithheldTopic(name, topic_id, count, *reason)
        for topic_id, count in members.items()
        if (reason := _reason(state, group, topic_id, name := named.get(topic_id, ""))) is not None
    ]
    found.sort(key=lambda each: (not each.topic, each.topic, each.topic_id))
    return tuple(found), max((report.more_withheld for report in reports), default=0)


def _reason(state: State, group: GroupRecord, topic_id: str, name: str) -> tuple[str, str, str] | None:
    """Return reference, reason and next step; None for a topic that members are told of with their next heartbeats."""
    record = state.topic_owner(name) if name else None
    if record is None or record.forgotten_ms:
        described = f"kafka-consumer-groups.sh --describe --group {shlex.quote(group.group)} at the source"
        mirror = advised("topic mirror", group.link, name)
        return (
            "topic-not-mirrored",
            "it is not mirrored",
            (mirror if name else f"mirror it; {described} names what it is assigned"),
        )
    if record.source_topic_id not in ("", topic_id):
        if record.link != group.link:
            why = f"the target's topic of that name belongs to link {record.link}"
            return "topic-owned", why, "take it out of what these members subscribe to"
        why = "it is another topic than the one mirrored under that name"
        return "topic-recreated", why, "see what is said of the topic, and have it copied anew"
    if record.phase in NOT_COPIED_YET:
        why = f"it is {record.phase}, and not copied yet"
        return "topic-not-ready", why, "the members are told of the topic once it is mirroring: kmigrate status --watch"
    if record.mapped:
        hold = advised(f"group mirror --mode {GroupMode.HOLD}", group.link, group.group)
        return "topic-mapped", "its offsets are mapped", f"have them wait for the promote: {hold}"
    return None
