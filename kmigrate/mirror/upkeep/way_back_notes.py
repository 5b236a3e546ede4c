"""Keeps notes about copies back at the source, from which `rollback --target-lost` reports (docs/decisions/0020).

Each process notes the partitions that it copies back. The holder of the link's lease notes topics whose way back has
ended, and topics that were rolled back. A note that changes is written every two seconds, any other every half minute;
with more than 2,000 partitions the rounds are rarer.

A note's time is taken before the target is asked for its log ends. So whatever the target had acknowledged by that time
lies below the noted end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from kmigrate.cluster.committed_offsets import CommittedOffset, write_positions
from kmigrate.cluster.transactions import OpenTransaction, open_transactions
from kmigrate.errors import Failed
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.model.lifecycle import COPIED, GroupPhase
from kmigrate.model.records import TopicRecord, WayBack
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.model.way_back_notes import NoteState, WayBackNote, encode_note, first_names, notes_group
from kmigrate.net.clock import monotonic, now_ms, sleep

__all__ = ["NoteWriter"]

_UNNOTED = "way-back-unnoted"
_EVERY_S = 2.0
_REFRESH_S = 30.0
_AT_ONCE = 500
"""Maximum number of partitions in a request."""
_PER_S = 1_000
"""Partitions that are looked at in a second."""
_MOST_ENDS = 100


@dataclass(slots=True)
class _Writers:
    """The transactional ids that write a topic, and what their transactions couple with the topic."""

    ids: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _TargetEnds:
    """The target's log ends of one partition that the copy back has not reached yet, and when they were asked for."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    """Log ends and times, the oldest first."""
    fresh_ms: int = 0
    """Newest time whose log end the copy back has reached; 0 if unknown."""

    def add(self, end: int, at_ms: int, position: int) -> None:
        """Note an end of the target, and the position that the copy back has reached by now."""
        self.ends.append((end, at_ms))
        while self.ends and self.ends[0][0] <= position:
            _, self.fresh_ms = self.ends.pop(0)
        if len(self.ends) > _MOST_ENDS:
            del self.ends[1::2]


class NoteWriter:
    """Writes this process's notes about the copies back of a link."""

    def __init__(
        self, link: MirroredLink, lanes: Callable[[], Mapping[Key, Lane]], holds_lease: Callable[[], bool]
    ) -> None:
        """Create a writer; `lanes` returns the lanes of the copy back in this process."""
        self._link = link
        self._lanes = lanes
        self._holds_lease = holds_lease
        self._ends: dict[Key, _TargetEnds] = {}
        self._written: dict[Key, tuple[WayBackNote, float]] = {}
        """The written notes, and when they were written."""
        self._writers: tuple[int, dict[str, _Writers]] = -1, {}
        """Writers by topic, and the epoch of the state that they were found in."""
        self.trouble = ""
        """Reason why the notes cannot be written, or ''."""

    async def run(self) -> None:
        """Write notes again and again, for ever."""
        while True:
            await sleep(max(_EVERY_S, len(self._lanes()) / _PER_S))
            await self.write()

    async def write(self) -> None:
        """Write the notes that are due."""
        if is_rehearsal(self._link.name):
            return
        try:
            refused = await self._write()
        except Failed as error:
            self.trouble = f"{_UNNOTED}: {error.what}"
        else:
            self.trouble = self._refusal(refused) if refused else ""

    async def _write(self) -> dict[Key, str]:
        """Write the notes that are due; return the refusals by partition."""
        open_notes = await self._of_lanes()
        notes = {**open_notes, **dict(self._of_records())}
        self._written = {key: each for key, each in self._written.items() if key in notes}
        due = iter([(key, note) for key, note in notes.items() if self._is_due(key, note)])
        refused: dict[Key, str] = {}
        while some := dict(islice(due, _AT_ONCE)):
            refused |= await self._commit(some)
        return refused

    def _is_due(self, key: Key, note: WayBackNote) -> bool:
        before, at = self._written.get(key, (None, 0.0))
        if before is None or monotonic() - at > _REFRESH_S:
            return True
        return replace(before, seen_ms=0, fresh_ms=0) != replace(note, seen_ms=0, fresh_ms=0)

    async def _commit(self, notes: Mapping[Key, WayBackNote]) -> dict[Key, str]:
        """Commit notes; return the refusals by partition."""
        positions = {key: CommittedOffset(note.position, encode_note(note)) for key, note in notes.items()}
        refused = await write_positions(self._link.source, notes_group(self._link.name), positions, _always)
        now = monotonic()
        self._written |= {key: (note, now) for key, note in notes.items() if key not in refused}
        return refused

    def _refusal(self, refused: Mapping[Key, str]) -> str:
        (topic, partition), code = next(iter(refused.items()))
        who, group = self._link.source.settings.security.principal, notes_group(self._link.name)
        what = f"the source refuses the note of {topic}-{partition} with {code}"
        return f"{_UNNOTED}: {what}; {who} needs READ on group {group}, and READ on the topic"

    # contents

    async def _of_lanes(self) -> dict[Key, WayBackNote]:
        """Return the notes of the partitions that this process copies back, if the target tells its log ends."""
        records = {record.topic: record for record in self._link.topics if record.copied_back}
        lanes = {key: lane for key, lane in self._lanes().items() if key[0] in records}
        self._ends = {key: known for key, known in self._ends.items() if key in lanes}
        keys, notes = iter(lanes), dict[Key, WayBackNote]()
        while some := list(islice(keys, _AT_ONCE)):
            asked_ms = now_ms()
            try:
                ends = await self._link.target.log_ends(some)
                told = {key: end.offset for key, end in ends.items() if not end.error}
                waits = await open_transactions(self._link.target, self._standing(lanes, told))
            except Failed:
                break  # the last notes stand
            for key, end in told.items():
                notes[key] = self._of_lane(records[key[0]], lanes[key], end, asked_ms, waits.get(key))
        return notes

    def _standing(self, lanes: Mapping[Key, Lane], ends: Mapping[Key, int]) -> list[Key]:
        """Return partitions with a copy that has not moved since the last note, and that lacks records."""
        return [
            key
            for key, end in ends.items()
            if key in self._written and self._written[key][0].position == lanes[key].target.position < end
        ]

    def _of_lane(
        self, record: TopicRecord, lane: Lane, target_end: int, asked_ms: int, waits: OpenTransaction | None
    ) -> WayBackNote:
        reason = f"the copy waited {waits.place}" if waits is not None else ""
        if lane.report.problem:
            reason = f"the copy had stopped: {lane.report.problem}"
        start = record.way_back.starts.get(lane.partition, 0) if record.way_back is not None else 0
        position = max(start, lane.target.position)
        known = self._ends.setdefault(lane.key, _TargetEnds())
        known.add(target_end, asked_ms, position)
        note = WayBackNote(
            NoteState.OPEN,
            position,
            self._link.target.settings.name,
            lane.target.producer_id,
            target_end,
            asked_ms,
            known.fresh_ms,
            reason,
        )
        return self._with_readers(note, record) if lane.partition == 0 else note

    def _with_readers(self, note: WayBackNote, record: TopicRecord) -> WayBackNote:
        """Return the note with the routers, and with the promoted groups of the topic."""
        groups = {
            group.group: group.promoted_ms
            for group in self._link.groups
            if group.phase is GroupPhase.PROMOTED and record.topic in {*group.written, *group.left_at}
        }
        routers = {router.name: router.bootstrap for router in self._link.state.routers() if router.bootstrap}
        writers = self._writers_by_topic().get(record.topic, _Writers())
        named = first_names(writers.ids)
        return replace(
            note,
            groups=groups,
            routers=routers,
            transactional_ids=named,
            more_transactional_ids=len(writers.ids) - len(named),
            coupled_topics=first_names(writers.topics),
            coupled_groups=first_names(writers.groups),
        )

    def _writers_by_topic(self) -> dict[str, _Writers]:
        state = self._link.state
        epoch, found = self._writers
        if epoch != state.epoch:
            found = {}
            for each in state.transactions(self._link.name):
                for topic in each.topics:
                    writers = found.setdefault(topic, _Writers())
                    writers.ids.add(each.name)
                    writers.topics.update(each.topics)
                    writers.groups.update(each.groups)
            self._writers = state.epoch, found
        return found

    def _of_records(self) -> Iterator[tuple[Key, WayBackNote]]:
        """Return the notes of topics that are not copied back any more; only the lease's holder writes these notes."""
        for record in self._link.topics if self._holds_lease() else ():
            way = record.way_back
            if record.at_target and way is not None and not way.open:
                yield from self._of_ended(record, way)
            elif record.phase in COPIED:
                for partition, offset in record.resumed.items():
                    note = WayBackNote(NoteState.ROLLED_BACK, offset, self._link.target.settings.name)
                    yield (record.topic, partition), note

    def _of_ended(self, record: TopicRecord, way: WayBack) -> Iterator[tuple[Key, WayBackNote]]:
        target = self._link.target.settings.name
        for partition, start in way.starts.items():
            position = max(start, way.ended_at.get(partition, start))
            copy = way.copy.data_id if way.copy is not None else -1
            note = WayBackNote(NoteState.ENDED, position, target, copy, reason=way.ended)
            yield (record.topic, partition), self._with_readers(note, record) if partition == 0 else note


async def _always() -> None:
    """Permit each write: a note decides nothing."""
