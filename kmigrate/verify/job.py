"""The job of a check: the selected topics with the ranges to compare, and the record of the ranges that are equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.lifecycle import NOT_COPIED_YET
from kmigrate.model.nearest import name_hint
from kmigrate.model.records import LinkRecord, TopicRecord, VerifiedRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.state import State
from kmigrate.model.verified import Looked, grown, standing
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms
from kmigrate.parity.plan import TopicRange
from kmigrate.parity.report import ParityReport
from kmigrate.verify.ranges import find_ranges
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.groups.audit import GroupAudit, audit_groups
from kmigrate.workflow.promote.late_findings import LateFound, find_late

__all__ = ["Caller", "Job", "Selection", "find_job", "remember"]


@dataclass(frozen=True, slots=True)
class Caller:
    """The call that a check belongs to: the check's way to the clusters, and to the person that waits."""

    connect: Callable[[], AbstractAsyncContextManager[Connections]]
    cluster: Callable[[str], ClusterSettings]
    """Function that returns the settings of a cluster by name."""
    say: Callable[[str], None]
    """Function that shows what the check does or waits for."""
    note: Callable[[str], None]
    """Function that prints a warning beside the result."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics and the link that a call names, and how long the target may take to catch up."""

    topics: Sequence[str]
    link: str | None
    timeout: float
    full: bool = False
    reached: bool = False
    """Compare what both sides have now, instead of waiting until the target has all of the source's records."""


@dataclass(frozen=True, slots=True)
class Job:
    """The ranges that Spark compares, and the topic records from which the ranges were made."""

    link: LinkRecord
    topics: Sequence[TopicRecord]
    ranges: Sequence[TopicRange]
    groups: Sequence[GroupAudit]
    late: Sequence[LateFound] = ()
    """Late writes on the source; late writes lie beyond the ranges."""

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.ranges)


async def find_job(caller: Caller, selection: Selection) -> Job:
    """Return the offsets to compare now, and the positions of promoted groups."""
    async with caller.connect() as connections:
        state = connections.log.state
        link = verbs.resolve_link(state, selection.link)
        topics = _selected(state.topics(link.name), link, selection)
        source, _ = await connections.source(link)
        verified = {
            (topic.topic, partition): each
            for topic in topics
            for partition, each in standing(state.verified(link.name, topic.topic), link, topic).items()
            if not selection.full
        }
        ranges = await find_ranges(
            connections, source, topics, verified, selection.timeout, caller.say, reached=selection.reached
        )
        groups = [] if selection.reached else await audit_groups(connections, link, topics)
        late, _ = await find_late(connections.log.state, source, topics)
        return Job(link, topics, ranges, groups, late)


def _selected(records: list[TopicRecord], link: LinkRecord, selection: Selection) -> list[TopicRecord]:
    if selection.topics:
        known = {record.topic: record for record in records}
        missing = [topic for topic in selection.topics if topic not in known]
        if missing:
            raise Refused(
                "not-mirrored",
                f"link {link.name} does not mirror {', '.join(missing)}{name_hint(missing[0], known)}",
                still_true="nothing was read",
                next_step="kmigrate topic list",
            )
        records = [known[topic] for topic in dict.fromkeys(selection.topics)]
    early = [r.topic for r in records if r.phase in NOT_COPIED_YET]
    if selection.reached:
        return [record for record in records if record.topic not in early]
    if early or not records:
        raise Refused(
            "nothing-to-verify",
            f"not mirrored yet: {', '.join(early)}" if early else f"link {link.name} mirrors no topic",
            still_true="nothing was read",
            next_step="kmigrate status --watch" if early else advised("topic mirror", link.name, "TOPIC..."),
        )
    return records


async def remember(caller: Caller, job: Job, report: ParityReport) -> None:
    """Record the equal ranges in the state log; a failure to record does not change the result of this check."""
    looked: dict[str, dict[int, Looked]] = {record.topic: {} for record in job.topics}
    for each in report.partitions:
        looked[each.topic][each.partition] = Looked(each.start, each.end, each.equal)
    try:
        async with caller.connect() as connections:
            for topic in job.topics:
                await connections.log.append(partial(_grown, job.link, topic, looked[topic.topic]))
    except KmigrateError as error:
        caller.note(f"not remembered, the next check reads all of it again: {error.what}")


def _grown(link: LinkRecord, topic: TopicRecord, looked: Mapping[int, Looked], state: State) -> VerifiedRecord | None:
    """Return the record of a copy's equal ranges after a check; `topic` is the record of the time of the check."""
    if state.topic(link.name, topic.topic) is None:
        return None
    kept = state.verified(link.name, topic.topic)
    now = grown(kept, link, topic, looked, now_ms())
    return None if now == kept or (kept is None and not now.ranges) else now
