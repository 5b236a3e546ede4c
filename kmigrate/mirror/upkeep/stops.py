"""Writes the stopped partitions into the topics' records, so that no restart passes over a stop in silence.

Only a partition's owner writes the stop. Until a stop is written the lane holds the stop. If the process dies in
between, the next process finds the same situation in both logs, or compares the last batch (`copy.recovery`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kmigrate.errors import KmigrateError, StateLogBroken
from kmigrate.mirror.partition.lane import Lane
from kmigrate.model.lifecycle import COPIED
from kmigrate.model.records import TopicRecord
from kmigrate.model.sharing import owner_of
from kmigrate.model.state import State
from kmigrate.model.stops import PartitionStop
from kmigrate.net.clock import now_ms, sleep
from kmigrate.state.log import StateLog

__all__ = ["StopKeeper"]

_LOOK_S = 0.25
_RETRY_S = 1.0


class StopKeeper:
    """Keeps the records of a link's topics in step with the stopped lanes."""

    def __init__(self, log: StateLog, link: str, instance: str) -> None:
        self._log = log
        self._link = link
        self._instance = instance
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
        now = now_ms()
        stops: dict[int, PartitionStop] = {lane.partition: lane.report.stop_record(now) for lane in stopped}

        def decide(state: State) -> TopicRecord | None:
            record = state.topic(self._link, topic)
            if record is None or record.phase not in COPIED:
                return None  # the topic is copied anew: the old stop no longer matters
            ours = {p: stop for p, stop in stops.items() if owner_of(state, record, p) == self._instance}
            return None if ours.keys() <= record.stops.keys() else replace(record, stops={**ours, **record.stops})

        record = (await self._log.append(decide)).topic(self._link, topic)
        for lane in stopped:
            lane.stop_recorded(record is not None and lane.partition in record.stops)
