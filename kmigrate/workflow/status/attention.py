"""Ranks topics and groups by what needs attention, and names the reason of each stop and each wait.

Only a person ends what is ranked `PERSON`. kmigrate itself ends what is ranked `WAITS`, mostly once something outside
kmigrate has happened; the reason names what, and up to which number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from kmigrate.model.amounts import count_text, left_text, time_text
from kmigrate.model.lifecycle import GROUP_AT_TARGET, NOT_COPIED_YET, PROMOTING, ROLLING_BACK, GroupPhase
from kmigrate.model.records import DirectWriter
from kmigrate.model.words import advised, as_words
from kmigrate.workflow.groups.admission import refused_sentence
from kmigrate.workflow.groups.misplaced import commits_sentence, member_sentence
from kmigrate.workflow.status.progress import GroupProgress, TopicProgress
from kmigrate.workflow.status.snapshot import GroupStatus, PartitionStatus, TopicStatus

__all__ = [
    "Attention",
    "Need",
    "direct_text",
    "group_attention",
    "group_reason",
    "partition_problem",
    "producer_text",
    "topic_attention",
    "written_ago",
]

_USUAL_MS = 2_000
"""Maximum age of an open transaction that is not worth showing."""
_MOST_NAMED = 3


class Need(IntEnum):
    """The attention that a topic or group needs; the smallest value needs the most."""

    PERSON = 0
    """Stopped, or losing something: a person has to act."""
    WAITS = 1
    """Waits for something, or tries again."""
    PROMOTING = 2
    """Is being promoted or rolled back, and gets on."""
    COPYING = 3
    """The copy has not caught up yet, and gets on."""
    STEADY = 4
    """Mirrored, and caught up."""
    DONE = 5
    """Promoted."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention that a topic or group needs, with the reason."""

    need: Need
    reason: str = ""


def topic_attention(topic: TopicStatus, now_ms: int, progress: TopicProgress | None = None) -> Attention:
    """Return the most urgent reason for which somebody should look at a topic."""
    progress = progress or TopicProgress()
    if stopped := _stopped(topic):
        return Attention(Need.PERSON, stopped)
    if waits := "; ".join(_waits(topic, now_ms)):
        return Attention(Need.WAITS, waits)
    if topic.promoted:
        return Attention(Need.DONE)
    if topic.phase in ROLLING_BACK:
        return Attention(Need.PROMOTING)
    if topic.phase in PROMOTING:
        return Attention(Need.PROMOTING, _copying(topic, progress))
    if topic.phase in NOT_COPIED_YET:
        return Attention(Need.COPYING, "the target topic is being prepared")
    if topic.paused:
        return Attention(Need.WAITS, f"paused: {advised('topic resume', topic.link, topic.topic)}")
    if progress.falls_behind:
        return Attention(Need.WAITS, _copying(topic, progress))
    caught_up = topic.lag == 0 or 0 <= topic.lag_seconds * 1000 <= _USUAL_MS
    return Attention(Need.STEADY if caught_up else Need.COPYING, "" if caught_up else _copying(topic, progress))


def _stopped(topic: TopicStatus) -> str:
    """Return what only a person can mend: late records, stopped partitions, upkeep that failed; '' for nothing."""
    if missing := [each.text for each in topic.late if each.missing]:
        return "; ".join([*missing[:_MOST_NAMED], *(["and more"] if len(missing) > _MOST_NAMED else [])])
    problems = [f"partition {p.partition}: {partition_problem(topic, p)}" for p in topic.partitions if p.problem]
    return "; ".join(problems) or topic.upkeep


def _waits(topic: TopicStatus, now_ms: int) -> Iterator[str]:
    """Return what the topic's copy or promote waits for."""
    if troubles := _troubles(topic):
        yield from troubles
        return
    if topic.reason:
        yield topic.reason
    if topic.promote_waits_for:
        verb = "rollback" if topic.phase in ROLLING_BACK else "promote"
        yield f"its {verb} waits: {topic.promote_waits_for}"
    if topic.sealed_for:
        yield f"sealed on the source for router {', '.join(topic.sealed_for)}"
    for p in topic.partitions:
        if p.waits_for is not None and p.waits_for.open_ms(now_ms) > _USUAL_MS:
            yield f"partition {p.partition} {p.waits_for.text(now_ms)}"
    if topic.direct_writers and not topic.at_target:
        yield direct_text(topic, now_ms)


def _troubles(topic: TopicStatus) -> list[str]:
    """Return what the mirror tries again or waits for, each trouble once with its partitions."""
    parts: dict[str, list[str]] = {}
    for p in topic.partitions:
        if p.trouble:
            parts.setdefault(p.trouble, []).append(str(p.partition))
    return [f"partition {', '.join(found)}: {trouble}" for trouble, found in parts.items()]


def _copying(topic: TopicStatus, progress: TopicProgress) -> str:
    """Return how much is left to copy, up to which offset, and how long the rest takes; '' where nothing is left."""
    if topic.lag <= 0:
        return ""
    furthest = max(topic.partitions, key=lambda p: p.lag)
    left = f"{topic.lag:,} records to copy"
    if progress.falls_behind:
        written, copied = count_text(progress.written_per_s), count_text(progress.copied_per_s)
        return f"{left}, falls behind: {written} records/s are written, {copied} copied"
    place = f"partition {furthest.partition} up to offset {furthest.source_end:,}"
    return f"{left}, {place}{f', about {left_text(progress.left_s)}' if progress.left_s >= 0 else ''}"


def partition_problem(topic: TopicStatus, part: PartitionStatus) -> str:
    """Return the problem that stopped a partition, and the next step."""
    way = f"; {part.stop.way_on(topic.link, topic.topic, part.partition)}" if part.stop else ""
    return f"{part.problem}{way}"


def direct_text(topic: TopicStatus, now_ms: int) -> str:
    """Count the producers that wrote to the source without a router, and name the newest."""
    newest = max(topic.direct_writers, key=lambda each: each.last_ms)
    count = len({(each.producer_id, each.epoch) for each in topic.direct_writers}) + topic.more_direct_writers
    return (
        f"{count} direct writer{'' if count == 1 else 's'}, the last {written_ago(newest, now_ms)} ago: "
        f"{producer_text(newest)} to partition {newest.partition} (kmigrate topic show {as_words(topic.topic)})"
    )


def producer_text(writer: DirectWriter) -> str:
    return f"producer id {writer.producer_id}" if writer.producer_id >= 0 else "a producer without id"


def written_ago(writer: DirectWriter, now_ms: int) -> str:
    return time_text(max(0, now_ms - writer.last_ms) / 1000)


def group_attention(group: GroupStatus, now_ms: int, progress: GroupProgress | None = None) -> Attention:
    """Return the most urgent reason for which somebody should look at a group."""
    progress = progress or GroupProgress()
    done = group.phase in GROUP_AT_TARGET
    refused = [refused_sentence(group.group, each, opened=done) for each in group.refused]
    misplaced = [member_sentence(group.group, each, now_ms, there=True) for each in group.misplaced]
    withheld = [each.said_of(group.group) for each in group.withheld]
    without = [each.text for each in group.without_credential]
    if urgent := [*misplaced, *refused, *without, *withheld]:
        return Attention(Need.PERSON, "; ".join(urgent[:_MOST_NAMED]))
    waits = [group_reason(group)]
    waits.append(commits_sentence(group.group, group.late_commits))
    if named := "; ".join(filter(None, waits)):
        return Attention(Need.WAITS, named)
    if group.phase in (GroupPhase.PROMOTING, GroupPhase.ROLLING_BACK):
        return Attention(Need.PROMOTING)
    if done:
        return Attention(Need.DONE)
    behind = f"{group.lag:,} records to read"
    if progress.falls_behind:
        grows = count_text(abs(progress.gained_per_s or 0.0))
        return Attention(Need.WAITS, f"{behind}, falls behind: the lag grows by {grows} records/s")
    if group.lag > 0 and progress.left_s > 1:
        return Attention(Need.COPYING, f"{behind}, about {left_text(progress.left_s)}")
    return Attention(Need.STEADY)


def group_reason(group: GroupStatus) -> str:
    """Return why a group makes no progress, or why its last promote or rollback was given up; '' for no reason."""
    if group.reason:
        return f"its rollback was given up: {group.reason}" if group.phase is GroupPhase.PROMOTED else group.reason
    what = "rollback" if group.phase is GroupPhase.ROLLING_BACK else "promote"
    return f"its {what} waits: {group.promote_waits_for}" if group.promote_waits_for else ""
