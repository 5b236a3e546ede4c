"""Reading from the source: one fetch session per leader, each answer handed to its lanes.

What an error means is in `reactions`. It holds back the partition that was answered and no other: readers go round a
partition that waits, and whatever has to be asked about it is asked by a task of its own.

Back-pressure in three sentences: a lane with more than `backlog_bytes` unacknowledged is left out of the next fetch;
the fetch then waits briefly only, so that it is taken in again soon; where all lanes together hold too much, each has
less room. In a promote every partition is asked for each time, and those that producers wait for come first: a broker
answers in the order of the request until its answer is full.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from kmigrate.cluster.client import EARLIEST, LATEST, LOG_END, ClusterClient
from kmigrate.cluster.fetcher import FetchSession
from kmigrate.errors import Failed, Unreachable
from kmigrate.mirror.lane import Key, Lane
from kmigrate.mirror.lanes import LOOK_S, Lanes, Signals
from kmigrate.mirror.metrics import LinkMeter, Slowed
from kmigrate.mirror.reactions import Action, Asked, Found, cause, reaction_to, told
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.throttle import Throttle
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.hot import FetchedPartition, FetchPartition

__all__ = ["SourceReader"]

_SHORT_WAIT_MS = 10
_HEARD_MS = 100
_SURE_S = 2.0
"""A source's log that ends too early must do so for this long: a broker that stood still while others took its
place tells of the past until it hears of them."""
_ASK_ENDS_S = 2.0
_LEAST_BACKLOG = 64 << 10


class SourceReader:
    """Fetches for the lanes from the source's leaders; `got_on` hears of each lane that was given an answer."""

    def __init__(
        self,
        source: ClusterClient,
        lanes: Lanes,
        settings: MirrorSettings,
        throttle: Throttle,
        meter: LinkMeter,
        signals: Signals,
        tasks: TaskOwner,
        *,
        got_on: Callable[[Lane], None],
        check_anew: Callable[[ClusterClient, str], Awaitable[None]],
    ) -> None:
        self._source = source
        self._lanes = lanes
        self._settings = settings
        self._throttle = throttle
        self._meter = meter
        self._signals = signals
        self._tasks = tasks
        self._got_on = got_on
        self._check_anew = check_anew
        self._heard_ms: dict[int, int] = {}
        """When the lanes of a source broker were last told that it has answered."""
        self._suspected: dict[Key, float] = {}
        self._leaders = 0
        """From how many brokers is read."""

    async def run(self, node: int) -> None:
        """Fetch from one source leader for ever."""
        settings = self._settings
        session = FetchSession(self._source, node, "mirror-read", max_bytes=settings.fetch_max_bytes)
        asked: dict[Key, FetchPartition] = {}
        slowed = False
        turn = 0
        self._leaders += 1
        while True:
            moved = self._signals.moved
            reading = [lane for lane in self._lanes.led_by(self._source, node) if lane.reads]
            now = monotonic()
            room = self._room(reading)
            owed = self._throttle.wait_s(now)
            chosen = [
                lane
                for lane in reading
                if lane.queued_bytes < room and lane.read_after <= now and (not owed or lane.urgent)
            ]
            if not chosen:
                await self._signals.wait(moved, min([LOOK_S, *([owed] if owed else []), *_until(reading, now)]))
                if owed and reading:
                    self._meter.slowed_s[Slowed.LINK_THROTTLE] += monotonic() - now
                continue
            session.max_bytes = self._throttle.most(settings.fetch_max_bytes)
            full = any(lane.urgent for lane in chosen)
            waits = len(chosen) == len(reading) and not full
            if full:
                turn += 1
                chosen = _urgent_first(chosen, turn)
            most = self._throttle.most(min(settings.partition_max_bytes, room))
            asked = _questions(chosen, most, asked)
            try:
                answer = await session.fetch(
                    asked, max_wait_ms=settings.fetch_wait_ms if waits else _SHORT_WAIT_MS, full=full
                )
            except Unreachable as error:
                self._signals.trouble = error.what
                self._signals.look_now.set()
                await sleep(0.1)
                continue
            size = self.take(asked, answer.partitions)
            self._heard(chosen, node, answer.error)
            self._throttle.charge(size, monotonic(), exempt=bool(owed))
            if answer.throttle_ms or slowed:
                slowed = answer.throttle_ms > 0
                self._meter.slowed_s[Slowed.SOURCE_QUOTA] += answer.throttle_ms / 1000
                for lane in chosen:
                    lane.slow(Asked.FETCH, node, answer.throttle_ms)
            if answer.error or slowed:
                await sleep(max(answer.throttle_ms / 1000, 0.05))

    def _room(self, lanes: Sequence[Lane]) -> int:
        """How many bytes each of a leader's lanes may have read and not yet acknowledged."""
        settings = self._settings
        together = settings.backlog_total_bytes // self._leaders
        if sum(lane.queued_bytes for lane in lanes) < together:
            return settings.backlog_bytes
        return max(min(_LEAST_BACKLOG, settings.backlog_bytes), min(settings.backlog_bytes, together // len(lanes)))

    def take(self, wanted: Mapping[Key, FetchPartition], parts: Iterable[FetchedPartition]) -> int:
        """Give each partition's answer to its lane; the bytes that were read."""
        size = 0
        now = now_ms()
        for part in parts:
            size += len(part.records)
            key = (part.topic, part.partition)
            lane, asked = self._lanes.get(key), wanted.get(key)
            if lane is None or asked is None or lane.stopped:
                continue
            if part.diverging is not None:
                self._suspect_cut(lane, part.diverging[1])
            elif part.error:
                self._refused(lane, asked.offset, part.error)
            else:
                self._suspected.pop(key, None)
                lane.take(asked.offset, part, now)
            self._got_on(lane)
        self._signals.wake()
        return size

    def _suspect_cut(self, lane: Lane, end: int) -> None:
        """Believe that the source was cut to `end` once it has said so for a while, whoever leads it by then."""
        now = monotonic()
        if now - self._suspected.setdefault(lane.key, now) >= _SURE_S:
            del self._suspected[lane.key]
            lane.cut(end)
            return
        ref = reaction_to(Asked.FETCH, Found.CUT).ref
        lane.read_failed(f"{ref}: the source ends at {end}, and more of it was read", now, named=True)
        self._signals.look_now.set()

    def _heard(self, asked: Iterable[Lane], node: int, error: int) -> None:
        """Partitions that an answer leaves out end where they did: said of all of them, but not every time."""
        now = now_ms()
        if not error and not 0 <= now - self._heard_ms.get(node, 0) < _HEARD_MS:
            self._heard_ms[node] = now
            for lane in asked:
                if not lane.reading_trouble:
                    lane.tally.heard_ms = now

    async def ask_ends(self) -> None:
        """Learn for ever where partitions end that are not read now: paused, stopped, held back or refused ones."""
        while True:
            await sleep(_ASK_ENDS_S)
            asked_ms = now_ms()
            silent = [lane for lane in self._lanes.values() if asked_ms - lane.tally.heard_ms > _ASK_ENDS_S * 1000]
            try:
                ends = await self._source.list_offsets({lane.key: LATEST for lane in silent}) if silent else {}
            except Failed:
                continue  # who reads says so
            for lane in silent:
                end = ends[lane.key]
                if not end.error and lane.tally.heard_ms < asked_ms:
                    lane.ends_at(end.offset, asked_ms)

    def _refused(self, lane: Lane, asked: int, error: int) -> None:
        reaction = reaction_to(Asked.FETCH, error)
        trouble = told(reaction, error, f"reading offset {asked} was refused")
        if reaction.action is Action.STOP:
            lane.stop(trouble)
            return
        lane.tally.retried(Asked.FETCH, cause(reaction, error))
        lane.read_failed(trouble, monotonic(), named=bool(reaction.ref))
        if reaction.action is Action.LOOK:
            lane.looking = True
            self._tasks.start(self._look_at(lane, asked), f"look-{lane.key}")
        elif reaction.action is Action.REFRESH:
            self._signals.look_now.set()

    async def _look_at(self, lane: Lane, asked: int) -> None:
        """The source does not know the offset to be read, or the topic: name what is lost, never jump (W7, W8)."""
        try:
            await self._check_anew(self._source, lane.topic)
            if lane.stopped or self._source.leader(*lane.key) < 0:
                return
            start = (await self._source.list_offsets({lane.key: EARLIEST}))[lane.key]
            end = (await self._source.list_offsets({lane.key: LATEST}, replica_id=LOG_END))[lane.key]
        except Failed as error:
            lane.reading_trouble = f"{error.ref}: {error.what}"
            return
        else:
            if start.error or end.error:
                self._signals.look_now.set()
            elif asked < start.offset:
                lane.deleted(asked, start.offset)
            elif asked > end.offset:
                self._suspect_cut(lane, end.offset)
        finally:
            lane.looking = False
            self._got_on(lane)
            self._signals.wake()


def _urgent_first(lanes: Sequence[Lane], turn: int) -> list[Lane]:
    """Lanes in a promote, then the others, which begin at another one with every turn."""
    others = [lane for lane in lanes if not lane.urgent]
    at = turn % len(others) if others else 0
    return [*(lane for lane in lanes if lane.urgent), *others[at:], *others[:at]]


def _questions(
    lanes: Sequence[Lane], most_bytes: int, before: Mapping[Key, FetchPartition]
) -> dict[Key, FetchPartition]:
    """Where to read each lane on; the same values as `before` where nothing has moved, as for most of many lanes."""
    out: dict[Key, FetchPartition] = {}
    for lane in lanes:
        key, at, epoch = lane.key, lane.read_at, lane.leader_epoch
        part = before.get(key)
        same = part is not None and part.offset == at and part.last_fetched_epoch == epoch
        if part is None or not same or part.max_bytes != most_bytes:
            part = FetchPartition(lane.topic, lane.partition, at, most_bytes, last_fetched_epoch=epoch)
        out[key] = part
    return out


def _until(lanes: Iterable[Lane], now: float) -> list[float]:
    """How long each lane that rests after an error goes on resting."""
    return [lane.read_after - now for lane in lanes if lane.read_after > now]
