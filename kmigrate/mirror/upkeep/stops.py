"""Writes the stopped partitions into the topics' records, so that no restart passes over a stop in silence.

Only a partition's owner writes the stop. Until a stop is written the lane holds the stop. If the process dies in
between, the next process finds the same situation in both logs, or compares the last batch (`copy.recovery`).

The stops of a copy back are in the topic's way back. If the source holds what the target does not, the stop and the end
of the way back are one record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from kmigrate.errors import KmigrateError, StateLogBroken
from kmigrate.mirror.partition.lane import Lane
from kmigrate.model.eras import Direction, era_of
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import CopyIdentity, TopicRecord, WayBack
from kmigrate.model.sharing import owner_of, progress_of
from kmigrate.model.state import State
from kmigrate.model.stops import PartitionStop, Remedy
from kmigrate.net.clock import now_ms, sleep
from kmigrate.state.log import StateLog

__all__ = ["StopKeeper"]

_LOOK_S = 0.25
_RETRY_S = 1.0


async def _nothing_more(lane: Lane) -> str:
    return ""


class StopKeeper:
    """Keeps the records of a link's topics in step with the stopped lanes of one direction."""

    def __init__(
        self,
        log: StateLog,
        link: str,
        instance: str,
        direction: Direction = Direction.FORWARD,
        explain: Callable[[Lane], Awaitable[str]] = _nothing_more,
    ) -> None:
        """Create a keeper; `explain` returns what else is known of a lane's stop."""
        self._log = log
        self._link = link
        self._instance = instance
        self._direction = direction
        self._explain = explain
        self.trouble = ""

    async def run(self, lanes: Mapping[tuple[str, int], Lane]) -> None:
        """Write stops for ever; a state log that cannot be written now is tried again."""
        while True:
            unrecorded: dict[str, list[Lane]] = {}
            for lane in lanes.values():
                if lane.stopped and not lane.report.recorded and not lane.retired:
                    unrecorded.setdefault(lane.topic, []).append(lane)
            for topic, stopped in unrecorded.items():
                try:
                    await self._write(topic, stopped)
                    self.trouble = ""
                except StateLogBroken:
                    raise
                except KmigrateError as error:
                    self.trouble = error.summary
                    await sleep(_RETRY_S)
            await sleep(_LOOK_S)

    async def _write(self, topic: str, stopped: Iterable[Lane]) -> None:
        stops = {lane.partition: (lane, await self._stop(lane)) for lane in stopped}

        def decide(state: State) -> TopicRecord | None:
            record = state.topic(self._link, topic)
            if record is None:
                return None
            ours = {
                partition: stop
                for partition, (lane, stop) in stops.items()
                if self._is_of(state, record, lane) and owner_of(state, record, partition) == self._instance
            }
            new = {partition: stop for partition, stop in ours.items() if partition not in self._recorded(record)}
            return self._stopped(state, record, new) if new else None

        record = (await self._log.append(decide)).topic(self._link, topic)
        for lane, _ in stops.values():
            lane.stop_recorded(record is not None and lane.partition in self._recorded(record))

    async def _stop(self, lane: Lane) -> PartitionStop:
        stop, more = lane.report.stop_record(now_ms()), await self._explain(lane)
        return replace(stop, what=f"{stop.what}; {more}") if more else stop

    def _is_of(self, state: State, record: TopicRecord, lane: Lane) -> bool:
        """Return whether a lane belongs to the topic's present copy; the stops of a former copy no longer matter."""
        link = state.link(self._link)
        era = era_of(record, link.copy if link is not None else None)
        if era is None or era.direction is not self._direction:
            return False
        return era.is_first or era.identity == CopyIdentity(lane.target.producer_id, lane.target.first_epoch)

    def _recorded(self, record: TopicRecord) -> Mapping[int, PartitionStop]:
        if self._direction is Direction.FORWARD:
            return record.stops
        return record.way_back.stops if record.way_back is not None else {}

    def _stopped(self, state: State, record: TopicRecord, new: Mapping[int, PartitionStop]) -> TopicRecord:
        stops = {**self._recorded(record), **new}
        if self._direction is Direction.FORWARD or record.way_back is None:
            return replace(record, stops=stops)
        way_back = replace(record.way_back, stops=stops)
        final = [f"partition {partition}: {stop.text}" for partition, stop in new.items() if _is_final(stop)]
        return replace(record, way_back=self._ended(state, record, way_back, final[0]) if final else way_back)

    def _ended(self, state: State, record: TopicRecord, way_back: WayBack, reason: str) -> WayBack:
        """Return the way back as ended, with the positions that the mirrors have reported last."""
        progress = progress_of(state, record, self._log.alive(MirrorPresence))
        ended_at = {partition: seen.position for partition, seen in progress.items() if seen.position >= 0}
        return replace(way_back, ended=reason, ended_ms=self._log.now_ms(), ended_at=ended_at)


def _is_final(stop: PartitionStop) -> bool:
    """Return whether no resumed copy makes the source equal to the target again."""
    return stop.remedy is not Remedy.AGAIN
