"""Verbs that hold a topic's copy back and let the copy go on: pause, resume, and the loss that a person accepts.

Resume never hides anything. Lost offsets must be repeated exactly, and the topic's record keeps the loss and the
person's name. Where the target holds wrong data only a new copy helps, once the target topic is gone or empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kmigrate.cluster.client import EARLIEST, LATEST, LOG_END
from kmigrate.errors import KmigrateError, UsageError
from kmigrate.model.lifecycle import TopicEvent, TopicPhase, advance_topic
from kmigrate.model.record_json import Record
from kmigrate.model.records import LinkRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.stops import RANGE_LOST, AcceptedLoss, PartitionStop, Remedy
from kmigrate.model.words import advised, as_words
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, changed_meanwhile, ok, refuse, warn
from kmigrate.workflow.base.running import mirror_runs, no_mirror, start_mirror
from kmigrate.workflow.verbs.links import resolve_link
from kmigrate.workflow.verbs.proposal import Judged, Proposal, not_mirrored, propose

__all__ = ["check_loss", "pause_topics", "resume_topics"]

_MARKERS_PER_S = 30_000
_LONG_S = 60
_BEFORE_PROMOTE = (TopicPhase.INITIALISING, TopicPhase.ALIGNING, TopicPhase.MIRRORING)


async def pause_topics(connections: Connections, link_name: str | None, topics: Sequence[str]) -> Proposal:
    """Propose to hold topics back: reading, writing and filling rest until `topic resume`."""
    link = resolve_link(connections.log.state, link_name).name
    judged = Judged.topics("topic pause", link, _pause_guard, lambda record: replace(record, paused=True))
    records, found = judged.look(connections.log.state, topics)
    writes = [(f"pause {topic}", judged.write(topic)) for topic in records]
    return propose(connections.log, judged.verb, found, writes)


def _pause_guard(record: TopicRecord) -> Finding | None:
    """Return why a topic cannot, or need not, be paused; None where the topic may be paused."""
    topic = record.topic
    if record.at_target:
        return _promoted(topic)
    if record.phase not in _BEFORE_PROMOTE:
        return refuse(
            "promote-under-way",
            f"topic {topic} is {record.phase}: its producers wait for the copy",
            "wait until the promote has ended: kmigrate status --watch",
        )
    if record.paused:
        return ok("already-paused", f"topic {topic} is paused already")
    return None


@dataclass(slots=True)
class _Resumption:
    """The resumption of one topic: the new record, with the changes in words and the findings."""

    connections: Connections
    link: LinkRecord
    record: TopicRecord
    partition: int | None
    accept_loss: tuple[int, int] | None
    who: str
    changes: list[str] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    """Refusals for parts that this call cannot resume."""

    async def resume(self) -> None:
        record, partition = self.record, self.partition
        if partition is not None and partition not in range(record.partitions):
            what = f"topic {record.topic} has {record.partitions} partitions, from 0"
            self.left.append(refuse("unknown-partition", what))
            return
        if partition is None and any(stop.remedy is Remedy.ANEW for stop in record.stops.values()):
            if record.phase is not TopicPhase.MIRRORING:
                self.left.append(_promote_under_way(record))
                return
            await self._anew()
            if self.record.phase is TopicPhase.INITIALISING:
                return
        if partition is None and record.paused:
            self.record = replace(self.record, paused=False)
            self.changes.append(f"resume {record.topic}")
        for number, stop in sorted(record.stops.items()):
            if partition in (None, number):
                await self._one(number, stop)
        if partition is not None and partition not in record.stops:
            self.left.append(ok("not-stopped", f"partition {partition} of {record.topic} is not stopped"))
        elif not self.changes and not self.left:
            self.left.append(ok("not-paused", f"topic {record.topic} is not paused and nothing has stopped"))

    async def _one(self, partition: int, stop: PartitionStop) -> None:
        """Resume one stopped partition, or add a refusal that names what would help."""
        topic = self.record.topic
        name = f"partition {partition} of {topic}"
        if stop.remedy is Remedy.ACCEPT_LOSS:
            stop = await self._as_it_is_now(partition, stop)
        refusal = _refusal(name, stop, self.accept_loss, stop.way_on(self.link.name, topic, partition))
        if refusal is not None:
            self.left.append(refusal)
            return
        losses = dict(self.record.losses)
        if self.accept_loss is not None:
            loss = AcceptedLoss(stop.first, stop.last, stop.ref, now_ms(), self.who)
            losses[partition] = (*losses.get(partition, ()), loss)
            self.changes.append(f"accept the loss of offsets {stop.lost} of {name}")
            seconds = (stop.last + 1 - stop.first) // _MARKERS_PER_S
            if stop.ref == RANGE_LOST and not self.record.mapped and seconds > _LONG_S:
                self.left.append(_long_hole(name, topic, stop, seconds))
        self.changes.append(f"resume {name}")
        left = {number: each for number, each in self.record.stops.items() if number != partition}
        self.record = replace(self.record, stops=left, losses=losses)

    async def _as_it_is_now(self, partition: int, stop: PartitionStop) -> PartitionStop:
        """Return the stop with the records that the source has deleted since, as far as the source answers."""
        key = self.record.topic, partition
        try:
            source, _ = await self.connections.source(self.link)
            start = (await source.list_offsets({key: EARLIEST}))[key]
        except KmigrateError:
            return stop
        return stop if start.error else replace(stop, last=max(stop.last, start.offset - 1))

    async def _anew(self) -> None:
        """Start the copy anew where the target topic is gone or was never written."""
        record, target = self.record, self.connections.target
        info = await target.topic(record.topic)
        if info is not None:
            keys = [(record.topic, partition) for partition in info.partitions]
            ends = await target.list_offsets(dict.fromkeys(keys, LATEST), replica_id=LOG_END)
            if not keys or any(end.error or end.offset > 0 for end in ends.values()):
                return
        anew = replace(record, phase=advance_topic(record.phase, TopicEvent.ANEW), since_ms=now_ms(), reason="")
        self.record = replace(anew, paused=False, stops={}, losses={}, starts={}, resumed={}, copy=None)
        self.changes.append(f"mirror {record.topic} anew from {record.start}")


async def resume_topics(
    connections: Connections,
    link_name: str | None,
    topics: Sequence[str],
    *,
    partition: int | None = None,
    accept_loss: tuple[int, int] | None = None,
    who: str = "",
) -> Proposal:
    """Propose that paused topics and stopped partitions go on where that is safe; refuse by name where it is not.

    A call without `partition` does what can be done and only warns of the rest, unless nothing can be done.
    """
    check_loss(topics, partition, accept_loss)
    link = resolve_link(connections.log.state, link_name)
    found: list[Finding] = []
    changes: list[str] = []
    pairs: list[tuple[TopicRecord, TopicRecord]] = []
    for topic in dict.fromkeys(topics):
        record = connections.log.state.topic(link.name, topic)
        if record is None:
            found.append(not_mirrored("topic", link.name, topic, connections.log.state))
            continue
        if record.at_target:
            again = _resumed_back(record, partition)
            if again is None:
                found.append(_promoted(topic))
            else:
                changes.append(f"resume the copy of {topic} to the source")
                pairs.append((record, again))
            continue
        done = _Resumption(connections, link, record, partition, accept_loss, who)
        await done.resume()
        found += [_warned(each) for each in done.left] if done.changes else done.left
        changes += done.changes
        if done.changes:
            pairs.append((record, done.record))
    if changes and not mirror_runs(connections.log, link.name):
        found.append(warn("no-mirror", no_mirror(link.name), start_mirror(link.name)))
    writes = [(f"resume {before.topic}", partial(_rewrite, before, after)) for before, after in pairs]
    return propose(connections.log, "topic resume", found, writes, changes)


def check_loss(topics: Sequence[str], partition: int | None, accept_loss: tuple[int, int] | None) -> None:
    """Raise UsageError if an accepted loss names no partition, or several topics."""
    if accept_loss is not None and (partition is None or len(topics) != 1):
        raise UsageError(
            "loss-of-what",
            "--accept-loss is about one partition of one topic",
            still_true="nothing was changed",
            next_step="kmigrate topic resume TOPIC --partition P --accept-loss FROM..TO",
        )


def _refusal(name: str, stop: PartitionStop, accept_loss: tuple[int, int] | None, way_on: str) -> Finding | None:
    match stop.remedy:
        case Remedy.ANEW:
            return refuse("resume-unsafe", f"{name}: {stop.what}; it has to be copied anew", way_on)
        case Remedy.AGAIN if accept_loss is not None:
            return refuse("nothing-lost", f"{name} has lost nothing: {stop.what}", way_on)
        case Remedy.ACCEPT_LOSS if accept_loss is None:
            return refuse("loss-not-accepted", f"{name} has lost {stop.lost}: {stop.what}", way_on)
        case Remedy.ACCEPT_LOSS if accept_loss != (stop.first, stop.last):
            return refuse("other-range", f"{name} has lost {stop.lost}, no other offsets", way_on)
        case _:
            return None


def _long_hole(name: str, topic: str, stop: PartitionStop, seconds: int) -> Finding:
    return warn(
        "long-hole",
        f"of the {stop.last + 1 - stop.first:,} lost offsets of {name} each is a marker on the target, and nothing "
        f"behind them is copied before: that takes some {round(seconds / 60):,} min, at {_MARKERS_PER_S:,} a second",
        f"see how far it is: kmigrate topic show {as_words(topic)}",
    )


def _resumed_back(record: TopicRecord, partition: int | None) -> TopicRecord | None:
    """Return the record of a promoted topic whose stopped copy to the source goes on; None where nothing stands."""
    way = record.way_back
    if way is None or not record.copied_back:
        return None
    left = {number: stop for number, stop in way.stops.items() if partition not in (None, number)}
    return replace(record, way_back=replace(way, stops=left)) if len(left) < len(way.stops) else None


def _warned(finding: Finding) -> Finding:
    return replace(finding, level="warn") if finding.level == "refuse" else finding


def _promote_under_way(record: TopicRecord) -> Finding:
    cancel = advised("promote --cancel", record.link, record.topic)
    what = f"topic {record.topic} is {record.phase}, and has to be copied anew"
    return refuse("promote-under-way", what, f"take its promote back while it waits: {cancel}, then repeat")


def _promoted(topic: str) -> Finding:
    return ok("already-promoted", f"topic {topic} is promoted: nothing is copied now")


def _rewrite(before: TopicRecord, after: TopicRecord, state: State) -> Record | None:
    """Return the new record only if the record is still the record that was judged."""
    now = state.records.get(before.key)
    if now == after:
        return None
    if now != before:
        raise changed_meanwhile(f"topic {before.topic}")
    return after
