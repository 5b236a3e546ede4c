"""Lists the clients that pass the routers by, and what becomes of their records: `kmigrate stragglers`.

Brokers tell the client id and the host of a group's member. Of a producer they tell the producer id alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from kmigrate.model.records import ClusterSide, DirectWriter, MisplacedMember, OnLate
from kmigrate.model.words import advised
from kmigrate.workflow.groups.misplaced import COMMITS_WAY_ON, way_on
from kmigrate.workflow.promote.late_findings import LateFound
from kmigrate.workflow.promote.late_writes import quarantine_topic
from kmigrate.workflow.status.attention import producer_text
from kmigrate.workflow.status.snapshot import GroupStatus, Snapshot, TopicStatus

__all__ = ["Passing", "PassingKind", "stragglers"]

_LATELY_MS = 15_000
"""Age up to which a writer counts as present, unless it is known to pause longer between two batches."""


class PassingKind(StrEnum):
    """What a client has done past the routers."""

    DIRECT_WRITES = "direct-writes"
    """A producer wrote to the source of a topic that is mirrored."""
    LATE_WRITES = "late-writes"
    """A producer wrote to the source of a topic after the topic's promote."""
    MEMBER = "member"
    """A member of a group is, or was, at the cluster that does not serve the group."""
    COMMITS = "commits"
    """A consumer committed offsets on the source after the promote of its group."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A client, or the clients of one partition, that passed the routers by."""

    kind: PassingKind
    link: str
    name: str
    """Topic or group."""
    partition: int
    """−1 for a group."""
    cluster: ClusterSide
    """The cluster at which the client is, or was."""
    client_id: str
    """Client id of a member; '' for producers, because brokers do not tell a producer's client id."""
    host: str
    producer_ids: tuple[int, ...]
    """Producer ids; −1 for a producer without an id."""
    last_ms: int
    """Time of the newest sighting, ms since the epoch; 0 where it is not known."""
    present: bool
    """True if the client was there at the last look."""
    records: int
    """Number of records that the client has written there, as far as they are read; −1 for consumers."""
    missing: bool
    """True if the target may lack one of these records."""
    fate: str
    """What has become, or will become, of the client's records or offsets."""
    way_on: str
    """The next step for a person; '' where nothing is to be done."""

    @property
    def who(self) -> str:
        """The client in the words of the brokers."""
        if self.client_id or self.host:
            return f"{self.client_id} at {self.host}"
        ids = ", ".join(str(each) for each in self.producer_ids if each >= 0)
        return f"producer id {ids}" if ids else "unknown" if self.producer_ids == () else "a producer without id"

    @property
    def place(self) -> str:
        """The partition or group, and the cluster."""
        of = f"{self.name}-{self.partition}" if self.partition >= 0 else f"group {self.name}"
        return f"{of} on the {self.cluster}"


def stragglers(shot: Snapshot) -> list[Passing]:
    """Return all stragglers of a snapshot: records that may be missing first, then those that are present."""
    found = chain(
        chain.from_iterable(_of_topic(topic, shot.at_ms) for topic in shot.topics),
        chain.from_iterable(_of_group(group) for group in shot.groups),
    )
    return sorted(found, key=lambda each: (not each.missing, not each.present, each.link, each.name, each.partition))


def _of_topic(topic: TopicStatus, now_ms: int) -> Iterator[Passing]:
    for late in topic.late:
        yield _late(topic, late, now_ms)
    for writer in topic.direct_writers:
        yield _direct(topic, writer, now_ms)


def _direct(topic: TopicStatus, writer: DirectWriter, now_ms: int) -> Passing:
    lately = max(_LATELY_MS, writer.slowest_ms)
    present = not topic.promoted and now_ms - writer.last_ms <= lately
    fate = "copied before the flip" if topic.promoted else "copied to the target, as every record of the source"
    return Passing(
        PassingKind.DIRECT_WRITES,
        topic.link,
        topic.topic,
        writer.partition,
        ClusterSide.SOURCE,
        "",
        "",
        (writer.producer_id,),
        writer.last_ms,
        present,
        writer.records,
        missing=False,
        fate=fate,
        way_on=f"restart {producer_text(writer)} with the router's address",
    )


def _late(topic: TopicStatus, late: LateFound, now_ms: int) -> Passing:
    writes = late.writes
    copy = f"{advised('promote --on-late copy', topic.link, topic.topic)}, or --on-late quarantine"
    return Passing(
        PassingKind.LATE_WRITES,
        topic.link,
        topic.topic,
        late.partition,
        ClusterSide.SOURCE,
        "",
        "",
        tuple(producer for producer, _ in writes.producers),
        writes.last_ms,
        now_ms - writes.last_ms <= _LATELY_MS,
        writes.records,
        missing=late.missing,
        fate=_fate(topic, late),
        way_on=f"stop that producer, then: {copy}" if late.missing else "stop that producer",
    )


def _fate(topic: TopicStatus, late: LateFound) -> str:
    """Return where late records are: on the source alone, or also on the target."""
    writes = late.writes
    parts = []
    if writes.handled:
        place = quarantine_topic(topic.topic) if topic.on_late is OnLate.QUARANTINE else topic.topic
        parts.append(f"{writes.handled:,} appended to {place} on the target")
    if writes.lost:
        parts.append(f"{writes.lost:,} on the source alone")
    if writes.unread:
        parts.append(f"{writes.unread:,} offsets not read yet")
    return ", ".join(parts) or "no record that a reader sees"


def _of_group(group: GroupStatus) -> Iterator[Passing]:
    for member in group.misplaced:
        yield _member(group, member, present=True)
    for member in group.misplaced_before:
        yield _member(group, member, present=False)
    if group.late_commits:
        yield _commits(group, group.late_commits)


def _member(group: GroupStatus, member: MisplacedMember, *, present: bool) -> Passing:
    at_source = member.cluster is ClusterSide.SOURCE
    return Passing(
        PassingKind.MEMBER,
        group.link,
        group.group,
        -1,
        member.cluster,
        member.client_id,
        member.host,
        (),
        member.last_ms,
        present,
        -1,
        missing=False,
        fate="its records are read twice" if at_source else "the group's promote overwrites its committed offsets",
        way_on=way_on(member),
    )


def _commits(group: GroupStatus, commits: Mapping[str, Mapping[int, int]]) -> Passing:
    count = sum(len(parts) for parts in commits.values())
    return Passing(
        PassingKind.COMMITS,
        group.link,
        group.group,
        -1,
        ClusterSide.SOURCE,
        "",
        "",
        (),
        0,
        present=False,
        records=-1,
        missing=False,
        fate=f"committed offsets of {count:,} partition{'' if count == 1 else 's'} stay on the source",
        way_on=COMMITS_WAY_ON,
    )
