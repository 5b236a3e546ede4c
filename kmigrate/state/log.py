"""The state log on its cluster: a fold that follows the log, and appends by compare-and-set.

Rules of a write (facts M1, B1, W1, W5, M5):
1. All writers use a constant producer id that no broker allocated; epoch and sequence follow its newest batch.
2. A write succeeded only if the writer reads the record back at the expected offset with its own nonce. A success
   answer alone proves nothing, because a broker answers an exact repeat with the old offset.
3. On any other result the writer reads on and decides again on the new state: decisions are repeated, never replayed.

Presences (reports of running processes) go to a second topic by plain appends: none makes a compare-and-set fail.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from kmigrate.cluster.acls import DENIED, denied, is_denied
from kmigrate.cluster.append import append_alone
from kmigrate.cluster.client import LATEST, LOG_END, ClusterClient, LogOffset
from kmigrate.cluster.fetch import PlaceLostError, Tail
from kmigrate.cluster.leaders import while_it_leads
from kmigrate.errors import Failed, KmigrateError, Refused, StateLogBroken, Unreachable, WaitTimedOut
from kmigrate.model.presences import (
    PRESENCE_KEYS,
    ControllerPresence,
    FencedProgress,
    MirrorPresence,
    RehearsalPresence,
    RouterPresence,
)
from kmigrate.model.record_json import Record
from kmigrate.model.records import SIZE_LIMIT
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep, steady_ms
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import ProduceAnswer
from kmigrate.records.batch import Batch
from kmigrate.records.build import one_record_batch, read_single_record
from kmigrate.state.codec import (
    ENVELOPE_HEADER,
    NEWER_LOG,
    OLDER_LOG,
    Envelope,
    Presence,
    PresenceReader,
    PresenceWriter,
    Report,
    StrayRecordError,
    Strays,
    encode_envelope,
)
from kmigrate.state.fold import CompactedUnreadError, Fold, state_producer_id
from kmigrate.state.read import read_whole
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC, single_partition_topic

__all__ = ["Decide", "Presence", "StateLog", "state_producer_id"]

_PRESENCE_MS = 60_000
_LATELY_MS = 1_000
"""Greatest age of the newest presence while processes run, if all clocks agree."""
_CLOCK_KEY = b"clock"
_FORGET_S = 600.0
"""Seconds of silence until a process is forgotten: twice a mirror's longest `lease_s`, so silent to all others, too."""
_LONGEST_INTERVAL_MS = 3_600_000
_UNKNOWN_KIND = "unknown-record"
_PAUSE_S = 0.1
"""Seconds before a read of the log is tried again."""
_APPEND_S, _GRACE_S = 10.0, 2.0
"""Seconds that a broker has for an append, and seconds more that we wait for its answer."""
_LOST_S = 5.0
"""Seconds without an answer to a read after which the log counts as lost; a read waits for 0.5 s at most."""
_MOST_REPAIRS = 16
"""Most keys that a write repairs beforehand: endless strays must not keep every writer busy."""
_TOO_LARGE = (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)

Decide = Callable[[State], Record | tuple[str, None] | None]
"""A function from the state to the record to write, (key, None) to delete, or None for nothing; may raise Refused."""

_P = TypeVar("_P", MirrorPresence, RouterPresence, ControllerPresence, RehearsalPresence)


def _without_topics(record: MirrorPresence, why: str) -> MirrorPresence:
    """Return a mirror's presence with a note for its partitions: all held, none applied, so no promote counts on it."""
    count = sum(len(partitions) for partitions in record.topics.values())
    note = f"presence-too-large: what mirror process {record.instance} says of {count} partitions is not told: {why}"
    return replace(record, topics={}, upkeep={}, problems={}, applied=-1, generation=-1, notes=(note,))


def _as_ours(error: BaseException, which: str) -> KmigrateError:
    """Return an unexpected error as an error of kmigrate."""
    if isinstance(error, KmigrateError):
        return error
    return StateLogBroken(
        "state-log-reader-died",
        f"reading the {which} log failed: {error!r:.200}",
        still_true="nothing was decided on what was not read",
        next_step="report this error; kmigrate doctor names records that kmigrate did not write",
    )


def _without_fences(record: RouterPresence, why: str) -> RouterPresence:
    """Return a router's presence without fences, groups and clients, with the reason; no promote counts on it."""
    return replace(
        record,
        fences={},
        holds_ms={},
        groups={},
        clients=(),
        more_clients=record.more_clients + len(record.clients),
        waiting=None,
        trouble=f"presence-too-large: what router {record.name} says is not told: {why}",
    )


class StateLog:
    """An open state log on a cluster; `state` is the newest fold, `epoch` its offset."""

    def __init__(self, client: ClusterClient, topic: str = STATE_TOPIC, presence_topic: str = PRESENCE_TOPIC) -> None:
        self._client = client
        self.topic = topic
        self._presence_topic = presence_topic
        self._producer_id = state_producer_id(topic)
        self._fold = Fold(self._producer_id)
        self._presence: dict[str, tuple[Presence, float]] = {}
        self._writer = PresenceWriter()
        self._reader = PresenceReader()
        self._announced: dict[str, tuple[bytes, Report]] = {}
        """Our own newest presences by key, as bytes and as value: bytes that we read back need no decoding."""
        self._presence_strays = Strays()
        self._unread_kinds: tuple[str, ...] = ()
        """Beginnings of the keys of presences that this process does not read."""
        self._presence_rest_s = 0.0
        """Seconds between two reads of the presence log."""
        self._heard_any = False
        """True if a presence was taken in since the newest wake."""
        self._written_before = 0
        """The end of the presence log when we opened the state log."""
        self._ahead_ms = 0
        """Milliseconds by which the clock of the presence log's broker is ahead of ours."""
        self._tail = Tail(client, topic, 0, self._fold.take, purpose="state-read")
        self._presence_tail = self._tail_of_presence()
        self._changed = asyncio.Event()
        self._state_changed = asyncio.Event()
        self._told: State | None = None
        """The newest state that callers which wait for the state alone were woken for."""
        self._lock = asyncio.Lock()
        self._tasks = TaskOwner(self._on_failure)
        self._broken: KmigrateError | None = None
        self._opened = False
        self._following: asyncio.Task[None]
        self.trouble: KmigrateError | None = None
        """The newest error that the reader retries after; None when all is well."""
        self._read_at = monotonic()
        """Time of the newest answer to a read of the state log."""

    def read_only(self, *kinds: type[Presence], rest_s: float = 0.0) -> None:
        """Read no presences of other kinds, and the presences of these kinds every `rest_s` seconds.

        All processes of a link write presences after a state record. A process that needs few of them, and none at
        once, saves most of its processor time this way, and a fence waits for the processor.
        """
        self._presence_rest_s = rest_s
        others = PRESENCE_KEYS.keys() - set(kinds)
        self._unread_kinds = tuple(prefix for kind in others for prefix in PRESENCE_KEYS[kind])
        self._presence = {key: known for key, known in self._presence.items() if not key.startswith(self._unread_kinds)}

    # reading

    async def open(self) -> State:
        """Start to follow the log; return when every record written before this call is folded in."""
        await self._check_exists()
        self._following = self._tasks.start(self._follow(), "state-log")
        self._ahead_ms = await self._difference()
        await self._begin_presence()
        self._tasks.start(self._follow_presence(), "presence-log")
        await self.read_to_end()
        await self._presence_to_end()
        self._opened = True
        return self.state

    async def _follow(self) -> None:
        """Read the log for ever; begin again if compaction removed unread offsets (invariant D of `fold`)."""
        while True:
            await self._read_whole()
            self._broken = None
            with suppress(CompactedUnreadError, PlaceLostError):
                await self._tail.run(self._read_on, self._on_trouble)

    async def _read_whole(self) -> None:
        """Fold the log anew; the state stays until then, and never goes back; raise StateLogBroken for another log."""
        while True:
            fold, tail = await read_whole(
                self._client,
                self.topic,
                purpose="state-read",
                on_progress=self._read_on,
                on_trouble=self._on_trouble,
            )
            if fold.contradicts(self._fold):
                raise self._cut("holds other records than it did")
            if tail.reached >= self._tail.reached:
                break
            await self._refuse_cut()
        fold.following = True
        self._fold, self._tail = fold, tail
        self._progress()

    async def _refuse_cut(self) -> None:
        """Raise StateLogBroken if the log end (a new leader's high watermark may be lower) is below our offset."""
        key = (self.topic, 0)
        try:
            reported = (await self._client.list_offsets({key: LATEST}, replica_id=LOG_END, purpose="state-end"))[key]
        except Failed as error:
            self._on_trouble(error)
        else:
            if not reported.error and reported.offset < self._tail.reached:
                raise self._cut(f"ends at {reported.offset}")
        await sleep(_PAUSE_S)

    def _cut(self, what: str) -> StateLogBroken:
        return StateLogBroken(
            "log-cut",
            f"the state log {what}, and was read to {self._tail.reached}",
            still_true="nothing was decided on what it holds now",
            next_step="stop mirrors and controllers, let routers run, and look at the log (docs/state-log.md)",
        )

    def _tail_of_presence(self) -> Tail:
        return Tail(self._client, self._presence_topic, 0, self._take_presence, purpose="presence-read")

    async def _begin_presence(self) -> None:
        tail = self._tail_of_presence()
        tail.position = await self._recent_presence()
        self._written_before = (await self._end((self._presence_topic, 0), 30.0)).offset
        self._presence_tail = tail

    async def _follow_presence(self) -> None:
        """Read presences for ever, whatever fails: else all seem silent; compacted or cut presences are sent again."""
        while True:
            try:
                with suppress(PlaceLostError):
                    await self._presence_tail.run(
                        self._presence_read, self._on_trouble, rest_s=lambda: self._presence_rest_s
                    )
                await self._begin_presence()
            except Exception as error:
                self._on_trouble(_as_ours(error, "presence"))
                await sleep(_PAUSE_S)

    async def changed_or_broken(self, timeout: float, *, state_only: bool = False) -> KmigrateError | None:
        """Wait as `changed` does, and return why the log cannot be read; None if all is well.

        The caller keeps the state; the reader starts again. Raise only for a record of another version's format.
        """
        if self._broken is None:
            with suppress(StateLogBroken):
                await self.changed(timeout, state_only=state_only)
        if self._broken is not None:
            if self._broken.ref in (NEWER_LOG, OLDER_LOG):
                raise self._broken
            await sleep(timeout)
            self.read_again()
        return self._broken

    def read_again(self) -> None:
        """Start the reader again after a failure; if that fails again, all waiting callers get the error again."""
        if self._broken is not None and self._following.done():
            self._following = self._tasks.start(self._follow(), "state-log")

    async def _recent_presence(self) -> int:
        """Return where the last minute of the presence log begins; older presences do not tell which processes live."""
        key = (self._presence_topic, 0)
        found = await self._offset(key, self.now_ms() - _PRESENCE_MS, 30.0)
        return found.offset if found.offset >= 0 else (await self._end(key, 30.0)).offset

    async def _difference(self) -> int:
        """Return how far the broker's clock is ahead of ours; 0 if nothing shows a difference.

        A tombstone's response has the append time, and compaction removes it; without the right to write, return 0.
        """
        newest = await self._newest_presence_ms()
        if newest < 0 or 0 <= steady_ms() - newest <= _LATELY_MS:
            return 0
        asked = one_record_batch(_CLOCK_KEY, None, timestamp=steady_ms(), producer_id=-1, epoch=-1, sequence=-1)
        try:
            appended = await self._append(self._presence_topic, asked)
        except Failed:
            return 0
        return appended.log_append_time - steady_ms() if appended.log_append_time >= 0 else 0

    async def _newest_presence_ms(self) -> int:
        """Return when the newest presence was written, by the broker's clock; −1 if there is none or the read fails."""
        found = [-1]
        tail = Tail(
            self._client,
            self._presence_topic,
            0,
            lambda batch: found.append(batch.max_timestamp),
            purpose="presence-read",
        )
        tail.position = (await self._end((self._presence_topic, 0), 30.0)).offset - 1
        try:
            if tail.position >= 0:
                await tail.poll(0)
        except Failed:
            return -1
        return found[-1]

    def now_ms(self) -> int:
        """Return the time by the presence log's broker: processes on several machines record comparable times."""
        return steady_ms() + self._ahead_ms

    async def close(self) -> None:
        await self._tasks.close()

    async def __aenter__(self) -> StateLog:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _check_exists(self) -> None:
        for topic in (self.topic, self._presence_topic):
            if await single_partition_topic(self._client, topic) is None:
                raise Refused(
                    "no-state-log",
                    f"cluster {self._client.settings.name} has no topic {topic}",
                    still_true="nothing was changed",
                    next_step="create the first link: kmigrate link create NAME --source C --target C",
                )

    @property
    def state(self) -> State:
        return self._fold.state

    @property
    def presence(self) -> Mapping[str, tuple[Presence, float]]:
        """Newest presence of each process, with the moment (monotonic, s) from which the presence counts."""
        return self._presence

    async def find_presence_strays(self, timeout: float = 30.0) -> Strays:
        """Read the whole presence log once, and return the strays; needs no `open`."""
        end = (await self._end((self._presence_topic, 0), timeout)).offset
        tail = self._tail_of_presence()
        while tail.reached < end:
            await tail.poll(100)
        return self._presence_strays

    def strays(self) -> dict[str, Strays]:
        """Return the records in the two topics that kmigrate did not write, by topic."""
        return {self.topic: self._fold.strays, self._presence_topic: self._presence_strays}

    def alive(self, kind: type[_P], within_s: float = 0.0) -> list[_P]:
        """Return presences of a kind heard within `within_s` (default: three of their own intervals, at least 3 s)."""
        now = monotonic()
        out: list[_P] = []
        for record, seen in self._presence.values():
            limit = within_s or max(3.0, 3 * record.interval_ms / 1000)
            if isinstance(record, kind) and now - seen <= limit:
                out.append(record)
        return out

    async def read_to_end(self, timeout: float = 30.0) -> State:
        """Fold in every record committed before this call."""
        key = (self.topic, 0)
        end = (await self._end(key, timeout)).offset
        await self._until(lambda: self._tail.reached >= end or None, timeout, "reading the state log to its end")
        return self.state

    async def _presence_to_end(self, timeout: float = 30.0) -> None:
        end = (await self._end((self._presence_topic, 0), timeout)).offset
        await self._until(
            lambda: self._presence_tail.reached >= end or None,
            timeout,
            "reading the presence log to its end",
        )

    async def _end(self, key: tuple[str, int], timeout: float) -> LogOffset:
        return await self._offset(key, LATEST, timeout)

    async def _offset(self, key: tuple[str, int], at: int, timeout: float) -> LogOffset:
        """Return the leader's ListOffsets answer for a time or for the log's end; repeat while there is no leader."""
        tries = Backoff(_PAUSE_S, within_s=timeout)
        while True:
            try:
                asking = self._client.list_offsets({key: at}, purpose="state-end")
                answer = (await while_it_leads(self._client, *key, asking))[key]
                if not answer.error:
                    return answer
                await self._client.refresh([key[0]])
                problem = row(answer.error).name
                if answer.error in DENIED and (not self._opened or tries.over):
                    raise denied(self._client.settings, answer.error, ("DESCRIBE", f"topic {key[0]}"))
            except Unreachable as error:
                problem = error.what
                await self._refresh()
            await tries.pause(Unreachable("state-log-unreachable", f"the end of {key[0]} cannot be read: {problem}"))

    T = TypeVar("T")

    @property
    def lost(self) -> str:
        """The reason why this process does not know the newest state; '' while the log's leader answers."""
        if self._broken is not None:
            return self._broken.what
        silent_s = monotonic() - self._read_at
        if silent_s <= _LOST_S:
            return ""
        return f"the state log was last read {silent_s:.0f} s ago" + (f": {self.trouble.what}" if self.trouble else "")

    async def wait(self, found: Callable[[State], T | None], timeout: float, what: str) -> T:
        """Wait until `found(state)` is not None; look again after every change of state or presence."""
        return await self._until(lambda: found(self.state), timeout, what)

    async def _until(self, found: Callable[[], T | None], timeout: float, what: str) -> T:
        deadline = monotonic() + timeout
        while True:
            changed = self._changed
            if self._broken is not None:
                raise self._broken
            value = found()
            if value is not None:
                return value
            left = deadline - monotonic()
            if self.trouble is not None and is_denied(self.trouble) and (not self._opened or left <= 0):
                raise self.trouble
            if left <= 0:
                raise WaitTimedOut(
                    "wait-timed-out",
                    f"waited {timeout:g} s for {what}" + (f" ({self.trouble.what})" if self.trouble else ""),
                    still_true="what was written stays written",
                )
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                continue

    async def changed(self, timeout: float, *, state_only: bool = False) -> None:
        """Wait for the next change of state or presence, at most `timeout` seconds; `state_only`: of the state.

        A state record causes several presences, and each costs a caller another look.
        """
        event = self._state_changed if state_only else self._changed
        if self._broken is not None:
            raise self._broken
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return

    def _read_on(self) -> None:
        self._read_at = monotonic()
        self._progress()

    def _progress(self) -> None:
        self.trouble = None
        self._wake()

    def _presence_read(self) -> None:
        self.trouble = None
        if self._heard_any or not self._opened:
            self._heard_any = False
            self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()
        if self.state is not self._told or self._broken is not None:
            self._told = self.state
            event, self._state_changed = self._state_changed, asyncio.Event()
            event.set()

    def _on_trouble(self, error: KmigrateError) -> None:
        self.trouble = error
        if is_denied(error):
            self._wake()

    def _on_failure(self, error: BaseException) -> None:
        self._broken = _as_ours(error, "state")
        self._wake()

    def _take_presence(self, batch: Batch) -> None:
        """Take in a presence; a record that no process of kmigrate can have written is a stray (`codec`)."""
        if batch.is_control or not batch.count:
            return
        try:
            key, value = read_single_record(batch)
            name = key.decode()
            if name.startswith(self._unread_kinds):
                return
            record = self._read_presence(name, value)
        except StateLogBroken as newer:
            if newer.ref != _UNKNOWN_KIND:
                self._presence_strays.note(batch, newer)
            return  # perhaps from a newer version: an unknown presence says nothing and decides nothing
        except Exception as error:  # somebody else wrote this
            self._presence_strays.note(batch, error)
            return
        self._heard_any = True
        if record is None:
            self._drop(name)
        elif isinstance(record, FencedProgress):
            self._apply_progress(record)
        else:
            if name not in self._presence:
                self._forget()
            self._presence[name] = (record, self._heard(name, batch))

    def _read_presence(self, name: str, value: bytes | None) -> Report | None:
        """Return the presence in a record's value; None for a withdrawn presence. A stray raises any error."""
        if value is None:
            return None
        announced = self._announced.get(name)
        record = announced[1] if announced is not None and announced[0] == value else self._reader.read(value)
        if not isinstance(record, Presence | FencedProgress):
            raise StrayRecordError("is no word of a process")
        if record.key != name:
            raise StrayRecordError("speaks for another process than its key names")
        if not isinstance(record, FencedProgress) and not 0 < record.interval_ms <= _LONGEST_INTERVAL_MS:
            raise StrayRecordError("names an interval that no process has")
        return record

    def _apply_progress(self, fenced: FencedProgress) -> None:
        """Update a mirror's presence by its progress on fenced topics; the moment of the presence stays unchanged."""
        presence, heard = self._presence.get(fenced.presence_key, (None, 0.0))
        if isinstance(presence, MirrorPresence):
            applied = fenced.applied if presence.applied >= 0 else -1  # a partial presence stays partial
            now = replace(presence, applied=applied, topics={**presence.topics, **fenced.topics})
            self._presence[fenced.presence_key] = (now, heard)

    def _forget(self) -> None:
        """Drop presences of processes that are gone for long: presences are large, and each start has a new name.

        A router that fences may wait for stays: a silent router still holds its fence. Our own presence stays while a
        newer presence of ours is unread, which would otherwise count as another process's, written just now.
        """
        past = monotonic() - _FORGET_S
        awaited = {router.instance for router in self.state.routers()}
        awaited.update(instance for stray in self.state.strays() for instance in stray.instances)
        for name, (presence, heard) in list(self._presence.items()):
            kept = isinstance(presence, RouterPresence) and presence.instance in awaited
            if heard < past and not kept and self._announced.get(name, (b"", presence))[1] is presence:
                self._drop(name)

    def _drop(self, name: str) -> None:
        presence, _ = self._presence.pop(name, (None, 0.0))
        if presence is not None:
            self._reader.forget(presence)
        if isinstance(presence, MirrorPresence) and self._announced.pop(name, None) is not None:
            # our own presence: the link is gone
            self._announced.pop(f"fenced/{presence.link}/{presence.instance}", None)
            self._writer.forget(presence)

    def _heard(self, name: str, batch: Batch) -> float:
        """Return the moment from which a presence counts, on our monotonic clock.

        Another process's presence counts from when we read it; if written before we opened the log, from its append
        time (max timestamp) by the broker's clock. Our own counts from when we sent it (base timestamp), by our clock
        alone: after a standstill of this process, the first presences that we read were sent long ago.
        """
        if name in self._announced:
            self._compare(batch.max_timestamp - batch.base_timestamp)
            age_ms = steady_ms() - batch.base_timestamp
        elif batch.base_offset < self._written_before:
            age_ms = self.now_ms() - batch.max_timestamp
        else:
            return monotonic()
        return monotonic() - max(0.0, age_ms / 1000)

    def _compare(self, ahead_ms: int) -> None:
        """Correct the clock difference by append minus sending time; ignore up to 1 s more, the time on the way."""
        if not 0 <= ahead_ms - self._ahead_ms <= _LATELY_MS:
            self._ahead_ms = ahead_ms

    # writing

    async def append(self, decide: Decide, timeout: float = 30.0) -> State:
        """Write the record that `decide` wants; return the state with it. `decide` may run often: it must be pure."""
        deadline = monotonic() + timeout
        fresh, repairs = False, 0
        async with self._lock:
            while True:
                if self._broken is not None:
                    raise self._broken
                if monotonic() > deadline:
                    raise WaitTimedOut(
                        "state-log-busy",
                        f"no write to the state log succeeded within {timeout:g} s",
                        still_true="nothing was changed by this call, or it will be found when it is repeated",
                    )
                repair = self._fold.repair()
                if repair is not None and repairs < _MOST_REPAIRS:
                    repairs += 1
                    await self._attempt(repair[0], repair[1], deadline)
                    continue
                try:
                    wanted = decide(self.state)
                except Refused:
                    if fresh:
                        raise
                    wanted = None
                if wanted is None:
                    if fresh:
                        return self.state
                    await self.read_to_end(max(0.1, deadline - monotonic()))
                    fresh = True
                    continue
                key, record = (wanted[0], None) if isinstance(wanted, tuple) else (wanted.key, wanted)
                if await self._attempt(key, record, deadline):
                    return self.state
                fresh = False

    async def _attempt(self, key: str, record: Record | None, deadline: float) -> bool:
        """Try a compare-and-set; return True only if the record was read back at the expected offset with our nonce."""
        expected = self._fold.next_offset
        nonce = secrets.token_hex(8)
        envelope = encode_envelope(Envelope(expected, self._fold.last_nonce, nonce, record))
        batch = one_record_batch(
            key.encode(),
            envelope if record is not None else None,
            header=(ENVELOPE_HEADER, envelope) if record is None else None,
            timestamp=steady_ms(),
            producer_id=self._producer_id,
            epoch=self._fold.producer_epoch,
            sequence=self._fold.sequence,
        )
        try:
            error = (await self._append(self.topic, batch)).error
        except Unreachable:
            error = Code.REQUEST_TIMED_OUT
        if error in DENIED:
            raise denied(self._client.settings, error, ("WRITE", f"topic {self.topic}"))
        if error not in (0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER) and not row(error).retriable:
            raise Failed(
                "state-log-write-refused",
                f"the broker refused a write of {len(envelope)} bytes to {self.topic}: {row(error).name} ({error})",
                still_true="nothing was changed by this write",
                next_step=f"raise {SIZE_LIMIT} of the topic (docs/state-log.md)" if error in _TOO_LARGE else "",
            )
        if error:
            if row(error).refresh:
                await self._refresh()
            await sleep(0.02)
            try:
                await self.read_to_end(max(0.1, deadline - monotonic()))
            except (Unreachable, WaitTimedOut):
                return False
        else:
            await self._until(
                lambda: self._fold.next_offset > expected or None,
                max(0.1, deadline - monotonic()),
                "reading back a write to the state log",
            )
        return self._fold.nonces.get(expected) == nonce

    async def announce(self, record: Report) -> None:
        """Write a presence of this process; raise Unreachable for every error, as the next presence repairs a loss.

        A mirror's or router's presence too large for the topic is written without partitions or fences, and says so.
        """
        value = self._writer.write(record)
        error = await self._announce(record, value)
        if error in _TOO_LARGE and isinstance(record, MirrorPresence) and record.topics:
            short = _without_topics(record, self._too_large(len(value)))
            error = await self._announce(short, PresenceWriter().write(short))
        elif error in _TOO_LARGE and isinstance(record, RouterPresence):
            bare = _without_fences(record, self._too_large(len(value)))
            await self._announce(bare, self._writer.write(bare))
        if error in _TOO_LARGE:
            raise Unreachable("presence-too-large", self._too_large(len(value)))
        if error:
            await self._refresh()
            if error in DENIED:
                refused = denied(self._client.settings, error, ("WRITE", f"topic {self._presence_topic}"))
                raise Unreachable("presence-refused", refused.what, next_step=refused.next_step)
            raise Unreachable("presence-refused", f"{self._presence_topic}: {row(error).name}")

    def _too_large(self, size: int) -> str:
        return f"{size} bytes are more than {self._presence_topic} takes: raise {SIZE_LIMIT} of the topic"

    async def _announce(self, record: Report, value: bytes) -> int:
        self._announced[record.key] = (value, record)
        batch = one_record_batch(
            record.key.encode(),
            value,
            timestamp=steady_ms(),
            producer_id=-1,
            epoch=-1,
            sequence=-1,
        )
        error = (await self._append(self._presence_topic, batch)).error
        if not error:
            self._writer.stored(record.key)
        return error

    async def _refresh(self) -> None:
        try:
            await self._client.refresh([self.topic, self._presence_topic])
        except Unreachable:
            return

    async def _append(self, topic: str, batch: bytearray) -> ProduceAnswer:
        """Return the leader's answer for a batch; raise Unreachable."""
        try:
            appending = append_alone(
                self._client, topic, 0, batch, purpose="state-write", timeout_s=_APPEND_S, grace_s=_GRACE_S
            )
            return await while_it_leads(self._client, topic, 0, appending)
        except Unreachable:
            await self._refresh()
            raise
