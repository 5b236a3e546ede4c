"""Copies with control markers, and what the markers' times change for readers at the target itself.

A broker gives each control marker the broker's own time (T1). So a copy that was made after the fact has markers
younger than the records around them. While such a marker is in the log, two answers differ (docs/finish.md):

- A look-up by time, up to the newest marker's, may name a marker that stands before the right record (T2). Once clients
  have left the routers, nobody answers as the source does.
- The first marker in the log keeps all records behind the marker, for `retention.ms` from the copy on (T3).

Markers that were copied while clients wrote are late by the copy's lag only. The figures are those of the history: what
the source held when the mirror began the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient, api_versions
from kmigrate.cluster.requests import FIRST_WITH_LARGEST
from kmigrate.errors import KmigrateError
from kmigrate.model.ids import LARGEST
from kmigrate.model.moments import span_text, utc_text
from kmigrate.model.records import LinkRecord, TopicRecord
from kmigrate.net.clock import now_ms
from kmigrate.protocol.api import ApiKey
from kmigrate.workflow.base.plan import Finding, ok, warn

__all__ = ["AT_THE_TARGET", "CopyTimes", "copy_times", "marker_findings"]

AT_THE_TARGET = (
    "at the target's own address a look-up by time below the copy's end names the first control marker, so a reader "
    "that starts by time reads again; a router answers as the source does"
)
_RETENTION, _POLICY = "retention.ms", "cleanup.policy"
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """The times of the control markers in a topic's copy."""

    topic: str
    marked_ms: int
    """Time of the newest control marker of the mirror; look-ups for later times are right."""
    began_ms: int
    read_again: int
    """Offsets of the history behind what a look-up for a time before the copy names at worst."""
    oldest_ms: int
    """Time of the first record in the copy; −1: not known."""
    retention_ms: int | None
    """`retention.ms` of the target topic from the promote on; −1: unlimited; None: not known."""
    deletes: bool
    """True where `cleanup.policy` of the target topic has "delete" from the promote on."""

    @property
    def kept_until_ms(self) -> int | None:
        """When retention may delete the last copied segment at the earliest; None: never, or not known."""
        if self.retention_ms is None or self.retention_ms < 0 or not self.deletes:
            return None
        return self.marked_ms + self.retention_ms

    @property
    def longer_ms(self) -> int | None:
        """The longest time for which a record is kept beyond its own; None: not known."""
        return max(0, self.marked_ms - self.oldest_ms) if self.oldest_ms >= 0 else None

    def look_ups(self) -> str:
        """Describe the look-ups by time that are answered early."""
        before = f"a look-up for a time before {utc_text(self.marked_ms)} may name"
        if not self.read_again:
            return f"{before} a record as much too early as the copy lagged then"
        return (
            f"{before} an earlier offset than the source's; for a time before {utc_text(self.began_ms)} up to "
            f"{self.read_again} offsets are read again"
        )

    def retention(self) -> str:
        """Describe until when, and how much longer, the copied part is kept."""
        if not self.deletes:
            return "this ends when the log cleaner has removed the markers"
        if self.retention_ms is None:
            return f"retention by time keeps the copied part for {_RETENTION} from the copy on"
        if self.kept_until_ms is None:
            return f"this has no end by itself, because {_RETENTION} is unlimited"
        longer = "" if self.longer_ms is None else f", up to {span_text(self.longer_ms)} longer than by its own times"
        return (
            f"retention by time keeps the copied part until {utc_text(self.kept_until_ms)}{longer}, "
            "and its newest segment for up to segment.ms more; the early look-ups end then, too"
        )

    def as_json(self) -> dict[str, object]:
        """Return the figures for `topic show`."""
        names = ("marked_ms", "began_ms", "read_again", "kept_until_ms", "longer_ms")
        return {name: getattr(self, name) for name in names}


async def copy_times(
    target: ClusterClient, admin: Admin, link: LinkRecord, records: Iterable[TopicRecord]
) -> list[CopyTimes] | None:
    """Return the topics whose copy holds control markers of the mirror; None where the target does not tell.

    Markers in the history are found by their times, also when the target has forgotten the link's producer id.
    """
    copies = {each.topic: each for each in records if not each.mapped and each.target_topic_id}
    keys = [key for record in copies.values() for key in record.topic_partitions]
    if link.copy is None or not keys:
        return []
    try:
        await target.refresh(set(copies))
        newest = await _newest_markers(target, keys, link.copy.data_id)
        again = await _read_again(target, keys, link, copies)
        marked = sorted({topic for topic, _ in (*newest, *again)})
        first = [key for key in keys if key[0] in marked]
        oldest = await target.list_offsets(dict.fromkeys(first, 0)) if first else {}
        configs = await _configs(admin, [copies[topic] for topic in marked])
    except KmigrateError:
        return None
    oldest_ms = {key: each.timestamp for key, each in oldest.items() if not each.error and each.timestamp >= 0}
    return [
        CopyTimes(
            topic=topic,
            marked_ms=max(_of(topic, newest), default=copies[topic].promoted_ms or now_ms()),
            began_ms=_began(link, copies[topic]),
            read_again=sum(_of(topic, again)),
            oldest_ms=min(_of(topic, oldest_ms), default=-1),
            retention_ms=int(configs[topic][_RETENTION]) if _RETENTION in configs[topic] else None,
            # a policy that is not known is the one that the source topic has
            deletes="delete" in configs[topic].get(_POLICY, "" if copies[topic].compacted else "delete"),
        )
        for topic in marked
    ]


async def _newest_markers(target: ClusterClient, keys: Sequence[_Key], producer_id: int) -> dict[_Key, int]:
    """Return a time for each partition with markers of the mirror, as far as the target remembers (T1).

    No marker there is younger. The time is the newest one of the log, or now where the target is older than Kafka 3.0.
    """
    described = await target.describe_producers(keys)
    marked = [
        key
        for key, (_, producers) in described.items()
        if any(each.producer_id == producer_id and each.coordinator_epoch >= 0 for each in producers)
    ]
    if not marked:
        return {}
    versions = await api_versions(target)
    if versions.get(ApiKey.LIST_OFFSETS, 0) < FIRST_WITH_LARGEST:
        return dict.fromkeys(marked, now_ms())
    newest = await target.list_offsets(dict.fromkeys(marked, LARGEST))
    return {key: each.timestamp if each.timestamp >= 0 else now_ms() for key, each in newest.items()}


async def _read_again(
    target: ClusterClient, keys: Sequence[_Key], link: LinkRecord, copies: Mapping[str, TopicRecord]
) -> dict[_Key, int]:
    """Return how many offsets of the history lie behind the first marker in it.

    The first offset not older than the copy is in the history only if it is a marker, or a record ahead of the clock.
    """
    found = await target.list_offsets({key: _began(link, copies[key[0]]) for key in keys})
    known = {key: each.offset for key, each in found.items() if not each.error and each.offset >= 0}
    behind = {key: copies[key[0]].began.get(key[1], 0) - offset for key, offset in known.items()}
    return {key: count for key, count in behind.items() if count > 0}


async def _configs(admin: Admin, records: Sequence[TopicRecord]) -> dict[str, Mapping[str, str]]:
    settled = [each.topic for each in records if each.promoted_ms and not each.unsettled]
    entries = await admin.topic_configs(settled) if settled else {}
    now = {topic: {key: entry.value for key, entry in configs.items()} for topic, configs in entries.items()}
    return {each.topic: now.get(each.topic, each.restore_configs) for each in records}


def _of(topic: str, figures: Mapping[_Key, int]) -> list[int]:
    return [figure for key, figure in figures.items() if key[0] == topic]


def _began(link: LinkRecord, record: TopicRecord) -> int:
    return record.began_ms or link.created_ms


async def marker_findings(
    target: ClusterClient, admin: Admin, link: LinkRecord, records: Iterable[TopicRecord], *, finish: bool
) -> list[Finding]:
    """Return what is different for each topic with markers; `finish`: the clients are about to leave the routers."""
    found = await copy_times(target, admin, link, records)
    if found is None:
        what = "the target does not tell whether copies hold control markers, so look-ups by time may be answered early"
        return [warn("times-of-the-copy", what, "kmigrate topic show TOPIC asks again")]
    ways_out = (
        "look offsets up by time at the source, whose offsets are the target's, and start readers there"
        if finish
        else "keep a router for readers that start by time"
    )
    return [
        (warn if each.read_again else ok)(
            "times-of-the-copy",
            f"the copy of {each.topic} holds control markers with the time of the copy: "
            f"{'' if finish else 'without a router '}{each.look_ups()}; {each.retention()}",
            f"{ways_out}; DeleteRecords removes what is kept too long",
        )
        for each in found
    ]
