"""A link's mirror in one process: copies its share, and maintains the link while this process holds the lease.

    start ──activate──▶ ask for a share ──assignment──▶ copy the partitions that the newest assignment gives
                             │                                                          │
                             └── lease vacant ──▶ lead (`upkeep.lease_holder`): topics, upkeep, assignment of partitions

Intents (topics, fences, barriers, assignment) come from the state log, facts (created, aligned, stopped) return there,
and progress goes into the presence log. No crash loses anything: every step is derived anew from the logs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from math import inf
from typing import NamedTuple

from kmigrate.cluster.producer_expiration import ONE_AT_A_TIME
from kmigrate.errors import Failed, KmigrateError, Unreachable, WaitTimedOut
from kmigrate.mirror.copy.context import CopyContext, MapStore
from kmigrate.mirror.copy.copier import Copier, MirroredTopic, mirrored_topic
from kmigrate.mirror.copy.disks import DiskGauge
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.lanes import Lanes, progress_of, target_losses
from kmigrate.mirror.copy.throttle import part_of_limit
from kmigrate.mirror.copy.window_notes import window_notes
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.metrics import LinkMeter
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.mirror.process.reverse import ReverseCopy
from kmigrate.mirror.settings import OLD_MS
from kmigrate.mirror.sharing.lease import Lease
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.mirror.upkeep.activation import activate, request_limit
from kmigrate.mirror.upkeep.align import Aligner
from kmigrate.mirror.upkeep.direct_writer_log import DirectLog
from kmigrate.mirror.upkeep.lease_holder import LeaseHolder
from kmigrate.mirror.upkeep.source_changes import Upkeep
from kmigrate.mirror.upkeep.stops import StopKeeper
from kmigrate.mirror.upkeep.topics import TopicMaker
from kmigrate.mirror.upkeep.way_back_notes import NoteWriter
from kmigrate.model.eras import Direction, Era, era_of
from kmigrate.model.offset_map_ledger import ChunkKey, MapChunk
from kmigrate.model.presences import FencedProgress, MirrorPresence
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord, topic_key
from kmigrate.model.sharing import owner_of
from kmigrate.model.state import State
from kmigrate.net.clock import boottime, monotonic, sleep, steady_ms
from kmigrate.net.tasks import accompanied, together
from kmigrate.state.offset_maps import OffsetMaps
from kmigrate.state.topics import MAP_TOPIC

__all__ = ["MirrorEngine"]

_log = logging.getLogger("kmigrate.mirror")
_RETRY_S = 1.0
_LOOK_S = 0.25
_URGENT_GAP_S = 0.05
"""Shortest gap between presences; a reached barrier and an applied state are reported at once."""
_MANY = 500
"""Number of partitions above which progress is reported half as often."""


class _View(NamedTuple):
    """A topic as the copier of its direction sees it, with all facts that the view follows from."""

    record: TopicRecord
    era: Era
    owned: tuple[int, ...]
    """The partitions that this process copies."""
    term: int
    topic: MirroredTopic

    @property
    def partitions(self) -> int:
        return len(self.era.starts)


class MirrorEngine:
    """Mirrors a link; any number of processes may run an engine for the link and share its partitions."""

    def __init__(self, link: MirroredLink) -> None:
        self._link = link
        self._membership = Membership(link.log, link.name, link.instance, link.settings.lease_s)
        self._lease = Lease(self._membership)
        self._stops = StopKeeper(link.log, link.name, link.instance)
        self._maker = TopicMaker(link, lambda: link.link_settings)
        self._maps = OffsetMaps(link.target)
        self._copier: Copier | None = None
        self._reverse = ReverseCopy(
            link,
            owner_term=self._owner_term,
            may_write=self._may_write,
            is_free=lambda key: self._copier is None or not self._copier.holds(key),
            on_move=self._moved,
            on_begin=self._assign_again,
        )
        self._back_notes = NoteWriter(link, lambda: self._reverse.meter.lanes, lambda: self._lease.held)
        self._holes: HoleMaker | None = None
        self._gauge: DiskGauge | None = None
        self._lease_holder: LeaseHolder | None = None
        self._upkeep: Upkeep | None = None
        self._trouble = ""
        self._forgets = ""
        """The reason why the target forgets producers too early for more than one batch in flight, or ''."""
        self._applied = self._generation = -1
        self._late_writes: Collection[Key] = ()
        """The last copier's `late_writes`, maybe to come: until the next copy this process is silent, as if dead."""
        self._news = asyncio.Event()
        self._urgent = False
        self._full = True
        """True if the next presence must cover more than the partitions behind a fence."""
        self._announced_at = -inf
        """Time of the last full presence, or of the last attempt."""
        self._reported_barriers: dict[tuple[str, int], int] = {}
        self._known = State()
        """The state that the copiers were last given topics from."""
        self._basis: tuple[object, ...] = ()
        """The facts of that state that concern all topics, and the copiers."""
        self._topics: dict[str, _View] = {}
        """The topics that are copied in that state, by name."""
        self._urgent_topics: set[str] = set()
        """Those of them whose writers wait behind a fence for this process."""
        self.meter = LinkMeter(link.source.settings.name, link.target.settings.name)
        self.meter.holds_lease = lambda: self._lease.held
        self.meter.back_lanes = lambda: self._reverse.meter.lanes
        self.meter.direct_writes = self._direct_writes
        self.meter.free_bytes = self._free_bytes
        self.meter.disk_sizes = lambda: self._gauge.sizes if self._gauge is not None else None
        self.meter.disk_use = lambda: self._gauge.use if self._gauge is not None else None

    async def run(self) -> None:
        """Mirror the link until cancelled; raise only errors that a person must mend, such as a broken state log."""
        try:
            await together(self._announce(), self._membership.come_back(), self._hold_lease(), self._work())
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """Announce that this process's share is free, and release the lease."""
        if self._late_writes or self._reverse.late_writes:
            return
        try:
            async with asyncio.timeout(2):
                await self._link.log.announce(self._presence())
                await self._lease.release()
        except (KmigrateError, TimeoutError):
            return  # this process then counts as gone after a time of silence

    async def _hold_lease(self) -> None:
        while True:
            try:
                await self._lease.take_if_vacant()
            except (Unreachable, WaitTimedOut):
                await sleep(_RETRY_S)
            await self._link.log.changed(_LOOK_S)

    async def _work(self) -> None:
        while True:
            try:
                await self._serve()
            except (Unreachable, WaitTimedOut) as error:
                self._trouble = error.summary
                await sleep(_RETRY_S)
            await self._link.log.changed(_LOOK_S)

    async def _serve(self) -> None:
        """Copy this process's share of the link, for as long as nothing fails."""
        forgets = await activate(self._link)
        link = self._link.record
        if link is None or link.copy is None:
            return
        settings, lanes = self._link.settings, Lanes()
        self._holes = HoleMaker(
            self._link.target,
            link.copy,
            link_uuid=link.uuid,
            filler=settings.hole_filler,
            windows=settings.windows,
            long_windows=settings.long_windows,
            producer_of=lanes.producer_of,
        )
        context = CopyContext(
            self._link.source,
            self._link.target,
            link.copy,
            self._holes,
            settings,
            link_settings=lambda: self._link.link_settings,
            maps=MapStore(self._maps, link.uuid),
            owner_term=self._owner_term,
            may_write=self._may_write,
            pipelining=not forgets,
            request_limit=await request_limit(self._link.target, self._link.target_admin),
            late_writes=self._late_writes,
            is_free=lambda key: not self._reverse.holds(key),
            on_move=self._moved,
            meter=self.meter,
            is_routed=lambda producer: self._link.state.is_routed(self._link.name, *producer),
            lanes=lanes,
        )
        copier = Copier(context)
        age = 0 if forgets else OLD_MS
        aligner = Aligner(context, filler_age_ms=age, target_offset=copier.target_offset_of)
        self._trouble = ""
        self._forgets = forgets
        self._applied = -1
        self._copier = copier
        self.meter.lanes = copier.lanes
        self.meter.followed = lambda: len(copier.lanes.followers)
        self._announce_all()
        try:
            await together(
                copier.run(),
                self._reverse.run(),
                self._back_notes.run(),
                self._stops.run(copier.lanes),
                DirectLog(self._link.log, self._link.name).run(copier.direct),
                self._follow(copier),
                self._lead(copier, aligner),
            )
        finally:
            self._reverse.close()
            if self._applied >= 0:  # else the copier was given nothing yet
                self._late_writes = copier.late_writes
            self._copier = None
            self.meter.lanes = {}

    # leading

    async def _lead(self, copier: Copier, aligner: Aligner) -> None:
        """Maintain the link whenever this process holds the lease."""
        while True:
            if self._lease.held:
                await self._lead_once(copier, aligner)
            await self._link.log.changed(_LOOK_S)

    async def _lead_once(self, copier: Copier, aligner: Aligner) -> None:
        upkeep = Upkeep(
            self._link,
            self._maker,
            aligner,
            may_act=self._lease.confirmed,
            added=lambda: copier.added,
            on_change=self._announce_now,
        )
        holder = LeaseHolder(
            self._link, self._lease, self._membership, self._maker, aligner, on_change=self._announce_all
        )
        gauge = DiskGauge(self._link.target, self._link.settings, self._sizes_wanted)
        self._lease_holder, self._upkeep, self._gauge = holder, upkeep, gauge
        try:
            await accompanied(holder.run(), upkeep.run(), gauge.run(), self._keep_maps())
        finally:
            self._lease_holder = self._upkeep = self._gauge = None

    async def _keep_maps(self) -> None:
        """Store chunks of offset maps again that another writer has overwritten, for ever."""
        while True:
            await sleep(self._link.settings.follow_s)
            mapped = any(record.mapped for record in self._link.topics)
            if not mapped or not self._lease.confirmed():
                continue
            with suppress(Failed):  # the next round tries again
                for key in await self._maps.mend(self._needs_map):
                    _log.warning("mirror: another writer has overwritten the offset map %s; it is stored again", key)

    def _needs_map(self, key: ChunkKey, chunk: MapChunk | None) -> bool:
        """Return whether a chunk belongs to a topic that this link maps now."""
        state = self._link.state
        link, record = state.link(self._link.name), state.topic(self._link.name, key.topic)
        if link is None or record is None or not record.mapped:
            return False
        same = chunk is None or chunk.target_topic_id == record.target_topic_id
        return link.uuid == key.link_uuid and same

    # this process's share

    async def _follow(self, copier: Copier) -> None:
        """Assign this process's partitions to the copier after every change of the state."""
        while True:
            state = self._link.state
            if state.epoch != self._applied:
                self._apply(state, copier)
            await self._link.log.changed(1.0)

    def _assign_again(self) -> None:
        """Assign partitions to the copiers, one of which is new."""
        if self._copier is not None:
            self._apply(self._link.state, self._copier)

    def _apply(self, state: State, copier: Copier) -> None:
        copiers = {Direction.FORWARD: copier}
        if self._reverse.copier is not None:
            copiers[Direction.BACK] = self._reverse.copier
        names = self._look_at(state, copiers)
        self._assign(names, copiers)
        self._limit(state.link(self._link.name), copiers)
        self._reported_barriers = {
            key: barrier for key, barrier in self._reported_barriers.items() if key[0] in self._topics
        }
        self._applied = state.epoch
        assignment = state.assignment(self._link.name)
        before, self._generation = self._generation, assignment.generation if assignment is not None else -1
        # A barrier table, for example, is no news of a fenced topic: every process would read a presence for nothing.
        self._urgent = self._urgent or not self._urgent_topics.isdisjoint(names)
        self._full = self._full or not self._urgent_topics or self._generation != before
        self._news.set()

    def _look_at(self, state: State, copiers: Mapping[Direction, Copier]) -> set[str]:
        """Take in a state, and return the topics that the copiers have to be given anew.

        These are the topics with a changed record: a link may have 10,000 topics, and a fence waits for this process.
        All topics are given anew after a change of the link, the assignment, the lease or the copiers.
        """
        link, lease = state.link(self._link.name), state.lease(self._lease.what)
        basis = link, lease, state.assignment(self._link.name), *copiers.values()
        if basis == self._basis:
            prefix = topic_key(self._link.name, "")
            changed = state.records.changed_since(self._known.records, "topic")
            names = {key.removeprefix(prefix) for key in changed if key.startswith(prefix)}
        else:
            names = {*self._topics, *(record.topic for record in state.topics(self._link.name))}
        self._known, self._basis = state, basis
        self._urgent_topics -= names
        for name in names:
            view = self._view(state, link, name)
            if view is None:
                self._topics.pop(name, None)
                continue
            self._topics[name] = view
            if view.topic.urgent and (view.owned or self._lease.held):
                self._urgent_topics.add(name)
        return names

    def _view(self, state: State, link: LinkRecord | None, name: str) -> _View | None:
        """Return a copied topic, the same object while unchanged; a copy without a producer id has not begun."""
        record = state.topic(self._link.name, name)
        era = era_of(record, link.copy if link is not None else None) if record is not None else None
        if record is None or era is None or not (era.is_first or era.identity):
            return None
        owned = tuple(p for p in era.starts if owner_of(state, record, p) == self._link.instance)
        lease = state.lease(self._lease.what)
        facts = record, era, owned, lease.term if lease is not None else 0
        before = self._topics.get(name)
        if before is not None and before[:-1] == facts:
            return before
        return _View(*facts, mirrored_topic(record, era, {p: era.starts[p] for p in owned}, facts[-1]))

    def _assign(self, names: Collection[str], copiers: Mapping[Direction, Copier]) -> None:
        """Give topics to the copiers.

        First each copier ends the lanes of topics that go the other way now, so that the other copier may begin.
        """
        given = {direction: self._given(names, direction, copier) for direction, copier in copiers.items()}
        for direction, copier in copiers.items() if len(copiers) > 1 else ():
            copier.change({name: None for name, topic in given[direction].items() if topic is None})
        for direction, copier in copiers.items():
            copier.change(given[direction])

    def _given(self, names: Collection[str], direction: Direction, copier: Copier) -> dict[str, MirroredTopic | None]:
        """Return topics as the copier of a direction is given them; None for a topic that does not concern it."""
        given: dict[str, MirroredTopic | None] = dict.fromkeys(names)
        for name in names:
            view = self._topics.get(name)
            if view is not None and view.era.direction is direction:
                concerned = view.owned or self._lease.held or copier.lanes.of_topic(name)
                given[name] = view.topic if concerned else None
        return given

    def _limit(self, link: LinkRecord | None, copiers: Mapping[Direction, Copier]) -> None:
        """Give each copier its part of the link's limit."""
        if link is None:
            return
        views = self._topics.values() if link.throttle else ()
        all_partitions = sum(view.partitions for view in views)
        for direction, copier in copiers.items():
            ours = sum(len(view.owned) for view in views if view.era.direction is direction)
            copier.limit(part_of_limit(link.throttle, ours, all_partitions))

    def _may_write(self) -> bool:
        """Return whether this process has acted on all decisions that others may have made about its partitions."""
        return self._applied == self._link.state.epoch and self._membership.may_write()

    def _owner_term(self, key: tuple[str, int]) -> int:
        """Return the term for writes to a partition without compare-and-set; 0 if this process may not write so now."""
        state = self._link.state
        record = state.topic(self._link.name, key[0])
        if record is None or not self._membership.sure() or owner_of(state, record, key[1]) != self._link.instance:
            return 0
        assignment = state.assignment(self._link.name)
        return assignment.generation if assignment is not None and not record.mapped else self._lease.term

    def _sizes_wanted(self) -> dict[str, int]:
        """Return the number of partitions of each topic that the link has put on the target."""
        return {record.topic: record.partitions for record in self._link.topics if record.starts}

    def _free_bytes(self) -> dict[tuple[str, str], int]:
        """Return the usable bytes of the target's log directories, by broker and path."""
        known = self._copier.disks.rule.known if self._copier is not None else {}
        return {(str(broker), path): each.usable for (broker, path), each in known.items()}

    def _direct_writes(self) -> dict[tuple[str, str], list[float]]:
        """Return the seconds since each direct writer wrote to a partition of this process, by topic and partition."""
        now, ours = self._link.log.now_ms(), self.meter.lanes
        found: dict[tuple[str, str], list[float]] = {}
        for topic in {topic for topic, _ in ours}:
            known = self._link.state.direct(self._link.name, topic)
            for writer in known.writers if known is not None else ():
                if (topic, writer.partition) in ours:
                    age = max(0, now - writer.last_ms) / 1000
                    found.setdefault((topic, str(writer.partition)), []).append(age)
        return found

    # presence

    def _moved(self, lane: Lane) -> None:
        """Note that a lane has progressed or was released, and announce this at once if others wait."""
        if lane.retired:
            self._announce_now()
        if not lane.urgent:
            return
        barrier = lane.at_barrier
        if barrier != self._reported_barriers.get(lane.key, -1):
            self._reported_barriers[lane.key] = barrier
            self._urgent = True
        self._news.set()

    def _announce_all(self) -> None:
        self._full = True
        self._news.set()

    def _announce_now(self) -> None:
        self._urgent = True
        self._announce_all()

    async def _announce(self) -> None:
        """Announce a full presence when due or after a change, and in between the few partitions behind a fence."""
        while True:
            self._news.clear()
            now = monotonic()
            fenced = self._fenced()
            full = self._full or not fenced.topics or now >= self._due
            self._urgent = self._full = False
            if full:
                self._announced_at = now
            if self._copier is not None or not (self._late_writes or self._reverse.late_writes):
                await self._send(now, self._presence() if full else fenced)
            await self._until_due(now)

    async def _send(self, now: float, presence: MirrorPresence | FencedProgress) -> None:
        sent = boottime()
        try:
            await self._link.log.announce(presence)
        except Unreachable:
            await sleep(0.1)  # a process that misses our presences for long takes over; nobody else needs to know
            return
        if isinstance(presence, MirrorPresence):
            self._membership.announced(sent)
            self.meter.announced_at = now

    @property
    def _due(self) -> float:
        return self._announced_at + self._presence_ms() / 1000

    async def _until_due(self, sent: float) -> None:
        """Wait for the interval, an urgent change, or (a little longer) any change."""
        try:
            async with asyncio.timeout(max(0.0, self._due - monotonic())):
                await self._news.wait()
        except TimeoutError:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, sent + _URGENT_GAP_S - monotonic())):
                while not self._urgent:
                    self._news.clear()
                    await self._news.wait()

    def _presence_ms(self) -> int:
        """Return the interval of full presences: longer for more partitions, but so short that writing never pauses."""
        many = sum(len(copier.lanes) for copier in self._copiers()) > _MANY
        return min(self._link.settings.presence_ms * (2 if many else 1), round(600 * self._membership.sure_s))

    def _copiers(self) -> list[Copier]:
        """Return the copiers of both directions, as far as they exist."""
        return [copier for copier in (self._copier, self._reverse.copier) if copier is not None]

    def _lanes(self) -> Iterator[Lane]:
        for copier in self._copiers():
            yield from copier.lanes.values()

    def _fenced(self) -> FencedProgress:
        lanes = (copier.lanes.of_topic(name) for copier in self._copiers() for name in self._urgent_topics)
        topics = progress_of(lane for lane in chain.from_iterable(lanes) if lane.urgent)
        return FencedProgress(self._link.instance, self._link.name, self._applied, topics)

    def _presence(self) -> MirrorPresence:
        copier, topics = self._copier, progress_of(self._lanes())
        return MirrorPresence(
            instance=self._link.instance,
            link=self._link.name,
            applied=self._applied,
            active=self._lease.held,
            interval_ms=self._presence_ms(),
            topics=topics,
            upkeep=self._upkeep.reports if self._upkeep is not None else {},
            notes=self._notes(),
            shares=copier is not None,
            generation=self._generation,
            problems=self._topic_problems(topics) if self._lease.held else {},
            said_ms=steady_ms(),
            let_go=self._released_epoch(topics),
            disk=self._gauge.use if self._gauge is not None else None,
            disk_low=" ".join(filter(None, (each.disks.low for each in self._copiers()))),
            writes_as=self._link.source.settings.security.principal,
        )

    def _released_epoch(self, copied: Collection[str]) -> int:
        """Return the epoch of the known state, or −1 while forgotten topics or groups have work.

        All new work starts from that state, or checks that state once more before it acts.
        """
        state, holder, upkeep = self._link.state, self._lease_holder, self._upkeep
        forgotten = {topic.key for topic in state.topics_that(_is_forgotten, self._link.name, forgotten=True)}
        forgotten |= {group.key for group in state.groups_that(_is_forgotten, self._link.name, forgotten=True)}
        if not forgotten:
            return state.epoch
        leaving = {topic for copier in self._copiers() for topic in copier.leaving}
        under_way = {topic_key(self._link.name, topic) for topic in (*copied, *leaving)}
        for each in (holder, upkeep):
            under_way |= each.working if each is not None else set()
        return state.epoch if forgotten.isdisjoint(under_way) else -1

    def _topic_problems(self, copied: Collection[str]) -> dict[str, str]:
        """Return the topics' problems; the trouble of this process counts for topics that no other process copies."""
        holder, state = self._lease_holder, self._link.state
        trouble = self._trouble or (holder.trouble if holder is not None else "")
        problems = dict(holder.problems) if holder is not None else {}
        for record in state.topics(self._link.name) if trouble else ():
            if record.topic not in copied and owner_of(state, record, 0) in ("", self._link.instance):
                problems.setdefault(record.topic, trouble)
        return problems

    def _notes(self) -> tuple[str, ...]:
        """Return the notes that concern no single topic."""
        upkeep = self._upkeep.notes if self._upkeep is not None else ()
        troubles = [self._reverse.trouble, self._back_notes.trouble, *(copier.trouble for copier in self._copiers())]
        lost = target_losses(self._lanes())
        name = self._link.target.settings.name
        forgets = f"short-memory: target {name}: {self._forgets}; {ONE_AT_A_TIME}" if self._forgets else ""
        strays = self._maps.strays.text(MAP_TOPIC)
        unwatched = [copier.disks.unwatched for copier in self._copiers()]
        lanes = self._copier.lanes.values() if self._copier is not None else ()
        windows = window_notes(self._holes, lanes, name) if self._holes is not None else ()
        contradictions = self._link.contradictions(self._link.link_settings).values()
        differs = [f"link-settings-differ: {text}; the link's setting counts" for text in contradictions]
        return (*upkeep, *filter(None, (*troubles, forgets, strays, *unwatched)), *windows, *lost, *differs)


def _is_forgotten(record: TopicRecord | GroupRecord) -> bool:
    return record.forgotten_ms > 0
