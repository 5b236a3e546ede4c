"""Control markers on the target, for many partitions in one request, with or without the batches before them.

The windows of a group (`partition/lane.py`, L) leave together on one connection: Produce with acks=0 and
WriteTxnMarkers, once or several times, and at last ListOffsets for the log ends. Brokers work on a connection's
requests one after another (P1). A broker that refuses a Produce request with acks=0 closes the connection, and never
reads the requests behind it (P2).

Markers are *not* compare-and-set (W5). So only a partition's owner writes markers, under the producer id of the data:

- The producer epoch is the owner's own. The owner's first marker raises the epoch on the log, and the broker refuses
  all batches and markers of earlier owners from then on.
- The coordinator epoch is the owner's term. Its low bits count the requests with unknown outcome under that term: such
  a request may still wait in a broker's memory when the owner asks again on a new connection.

A broker's answer does not say how many markers were written, nor whether other writes came between. So the log end
decides. The next group of a connection leaves once the last group is answered, because a broker takes a connection's
next request only when the replicas have the markers (P7). A connection that owes an answer for too long is left by
reset (P9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple
from zlib import crc32

from kmigrate.cluster.client import MARKERS, ClusterClient
from kmigrate.errors import Failed, Unreachable
from kmigrate.net.broker import BrokerConnection, OutgoingRequest
from kmigrate.net.clock import monotonic
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import PRODUCE_VERSION, Buffer, encode_produce
from kmigrate.protocol.markers import (
    MARKERS_VERSION,
    Marks,
    decode_marker_codes,
    encode_log_ends,
    encode_markers,
)
from kmigrate.protocol.offsets import LIST_OFFSETS_VERSION, LogOffset, decode_offsets

__all__ = ["NOT_SENT", "Filling", "Made", "MarkerWriter", "Marking", "Piece", "marker_purpose"]

_CONNECTIONS = 2
"""Number of connections to each broker that leads partitions with holes."""
_RETRY_BITS = 10
"""Number of the coordinator epoch's 31 bits that count the requests without a known outcome under a term."""
_MOST_MARKERS = 5_000
"""Most markers of a request: less than a second's work between looks at the lease (M2)."""
_MOST_PARTITIONS = 500
_MOST_BYTES = 4 << 20
"""Bytes of batches above which no further batch joins a group."""
_LOOK_S = 3.0
"""Interval at which a group without an answer is looked after; a broker answers earlier requests within this time."""

Key = tuple[str, int]


class Made(NamedTuple):
    """The result of a hole: the broker's error code, or the log end right after the hole."""

    error: int
    end: int = -1
    """Log end after the hole; −1 if the broker did not report one."""
    epoch: int = -1
    """Producer epoch of the markers; −1 if the hole was filled without markers."""


NOT_SENT = Made(Code.CONCURRENT_TRANSACTIONS)
"""The result of a hole for which no request has left."""


class Piece(NamedTuple):
    """Control markers, and the batches right before them."""

    markers: int
    batches: Sequence[Buffer] = ()


_NOTHING = Piece(0)
_NO_END = LogOffset(Code.NONE, -1, -1)
"""The log end of a partition that the broker's answer does not name."""


class Marking(NamedTuple):
    """The writes to one partition in a group."""

    pieces: Sequence[Piece]
    end: int
    """The log end once everything is written."""
    epoch: int
    term: int

    @property
    def markers(self) -> int:
        return sum(piece.markers for piece in self.pieces)

    @property
    def size(self) -> int:
        return sum(len(batch) for piece in self.pieces for batch in piece.batches)


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """A partition that waits for its place in a group."""

    key: Key
    begin: Callable[[], Marking | None]
    """Returns the writes when the group leaves; None if the partition must not be written now."""
    ended: Callable[[Made], None]
    failed: Callable[[Failed], None]
    """Called instead of `ended` if the outcome is unknown."""


class _Group(NamedTuple):
    """The fillings of requests that leave together, and the futures of the answers: the log ends come last."""

    connection: BrokerConnection
    sent: float
    fillings: list[tuple[Filling, Marking]]
    answers: list[asyncio.Future[bytearray]]

    @property
    def answered(self) -> int:
        """Number of answers that have come."""
        return sum(answer.done() for answer in self.answers)


class MarkerWriter:
    """Writes the control markers of a copier; `producer_of` returns the producer id of a partition's copy."""

    def __init__(self, target: ClusterClient, producer_of: Callable[[Key], int]) -> None:
        self._target = target
        self._producer_of = producer_of
        self._lines: dict[tuple[int, str], _Line] = {}
        self._unknown: dict[Key, tuple[int, int]] = {}
        """A term, and the number of requests for markers without a known outcome under that term, by partition."""
        self.window_s = 0.0
        """Seconds that the last group with a single request for markers took."""

    def is_ready(self, key: Key) -> bool:
        """Return whether the requests for a partition would leave at once."""
        return self._target.is_open(self._target.leader(*key), marker_purpose(key))

    def add(self, filling: Filling) -> None:
        """Fill a partition's hole with the next group of its connection."""
        place = self._target.leader(*filling.key), marker_purpose(filling.key)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _Line(self._target, self, *place)
        line.add(filling)

    def requests(self, fillings: Sequence[tuple[Filling, Marking]]) -> list[OutgoingRequest]:
        """Return the requests of a group; the outcome of its markers counts as unknown from now on."""
        fences = [self._fence(filling.key, marking.term) for filling, marking in fillings]
        requests: list[OutgoingRequest] = []
        marks: dict[tuple[int, ...], list[Buffer]] = {}
        for pieces in zip_longest(*(marking.pieces for _, marking in fillings), fillvalue=_NOTHING):
            for batches in zip_longest(*(piece.batches for piece in pieces)):
                found = zip(fillings, batches, strict=True)
                body = encode_produce([(*filling.key, batch) for (filling, _), batch in found if batch], acks=0)
                requests.append(OutgoingRequest(ApiKey.PRODUCE, PRODUCE_VERSION, body, True, is_answered=False))
            counts = tuple([piece.markers for piece in pieces])
            if counts not in marks:  # most transactions of a group have the same markers
                marks[counts] = self._marks(fillings, fences, counts)
            requests.append(OutgoingRequest(ApiKey.WRITE_TXN_MARKERS, MARKERS_VERSION, marks[counts], True))
        ends = encode_log_ends(filling.key for filling, _ in fillings)
        return [*requests, OutgoingRequest(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, ends, False)]

    def _marks(
        self, fillings: Sequence[tuple[Filling, Marking]], fences: Sequence[int], counts: Sequence[int]
    ) -> list[Buffer]:
        """Return the body of the request for so many markers of each partition."""
        return encode_markers(
            Marks(*filling.key, count, marking.epoch, fence, self._producer_of(filling.key))
            for (filling, marking), fence, count in zip(fillings, fences, counts, strict=True)
        )

    def _fence(self, key: Key, term: int) -> int:
        """Return the coordinator epoch of the next markers, and count them as markers with unknown outcome."""
        under, unknown = self._unknown.get(key, (term, 0))
        unknown = unknown if under == term else 0
        self._unknown[key] = term, unknown + 1
        return (term << _RETRY_BITS) + min(unknown, (1 << _RETRY_BITS) - 1)

    def outcome(self, key: Key, marking: Marking, made: Made) -> None:
        """Note the outcome of markers, unless the broker's answer leaves the outcome unknown."""
        # This process may have raised the coordinator epoch before this object was created.
        refused = made.error not in (0, Code.TRANSACTION_COORDINATOR_FENCED)
        if refused or (not made.error and made.end == marking.end):
            term, unknown = self._unknown[key]
            self._unknown[key] = term, unknown - 1


class _Line:
    """A connection for markers: a group in flight, and the partitions that wait for the next group."""

    def __init__(self, target: ClusterClient, writer: MarkerWriter, node: int, purpose: str) -> None:
        self._target = target
        self._writer = writer
        self._node = node
        self._purpose = purpose
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Key, Filling] = {}
        self._group: _Group | None = None
        self._heard = 0, 0.0
        """Number of answers to the group, and the time when that number was first seen."""
        self._leaves = False
        """True if the next group is about to leave."""
        self._watched = False

    def add(self, filling: Filling) -> None:
        self._waiting[filling.key] = filling
        self._next()

    def _next(self) -> None:
        if self._waiting and self._group is None and not self._leaves:
            self._leaves = True
            self._loop.call_soon(self._leave)  # other partitions, whose answers came together, may join

    def _leave(self) -> None:
        self._leaves = False
        connection = self._target.open_connection(self._node, self._purpose)
        if connection is None:  # waiting for a connection, an owner may lose its partition
            waiting, self._waiting = self._waiting, {}
            for filling in waiting.values():
                filling.ended(NOT_SENT)
            return
        fillings = self._gather()
        if fillings:
            self._send(connection, fillings)
        else:
            self._next()

    def _gather(self) -> list[tuple[Filling, Marking]]:
        """Return the fillings of a group, with what each of them writes."""
        fillings: list[tuple[Filling, Marking]] = []
        markers = size = 0
        while self._waiting and markers < _MOST_MARKERS and size < _MOST_BYTES and len(fillings) < _MOST_PARTITIONS:
            filling = self._waiting.pop(next(iter(self._waiting)))
            marking = filling.begin()
            if marking is not None:
                fillings.append((filling, marking))
                markers += marking.markers
                size += marking.size
        return fillings

    def _send(self, connection: BrokerConnection, fillings: list[tuple[Filling, Marking]]) -> None:
        answers = connection.send_together(*self._writer.requests(fillings))
        self._group = group = _Group(connection, monotonic(), fillings, answers)
        self._heard = 0, group.sent
        answers[-1].add_done_callback(lambda _: self._answered(group))
        if not self._watched:
            self._watched = True
            self._loop.call_later(_LOOK_S, self._look)

    def _answered(self, group: _Group) -> None:
        """Hand the answers to a group, or their absence, to the partitions."""
        self._group = None
        failures = [answer.exception() for answer in group.answers]  # an exception that nobody takes would be logged
        failure = next(filter(None, failures), None)
        if failure is None:
            try:
                self._ended(group)
            except Failed as error:
                failure = error
        if isinstance(failure, Failed):
            self._failed(group, failure)
        elif failure is not None:
            raise failure
        self._next()

    def _ended(self, group: _Group) -> None:
        *marked, ended = group.answers
        codes: dict[Key, int] = {}
        for answer in marked:
            for key, code in decode_marker_codes(answer.result()).items():
                codes[key] = codes.get(key, 0) or code
        ends = decode_offsets(ended.result())
        self._target.health.heard(group.connection.address)
        if len(marked) == 1:
            self._writer.window_s = monotonic() - group.sent
        for filling, marking in group.fillings:
            end = ends.get(filling.key, _NO_END)
            made = Made(codes.get(filling.key, 0) or end.error, end.offset, marking.epoch)
            self._writer.outcome(filling.key, marking, made)
            filling.ended(made)

    def _failed(self, group: _Group, failure: Failed) -> None:
        if isinstance(failure, Unreachable):
            self._target.health.failed(group.connection.address, failure)
        for filling, _ in group.fillings:
            filling.failed(failure)

    def _look(self) -> None:
        """Leave a connection by reset if its broker owes an answer for too long, or leads the partitions no more."""
        group = self._group
        self._watched = group is not None
        if group is None:
            return
        if group.answered != self._heard[0]:
            self._heard = group.answered, monotonic()
        waited = monotonic() - self._heard[1]
        moved = any(self._target.leader(*filling.key) not in (self._node, -1) for filling, _ in group.fillings)
        if waited >= self._target.settings.request_timeout_s:
            group.connection.give_up(f"markers had no answer in {waited:.0f} s")
        elif moved and waited >= _LOOK_S:
            group.connection.give_up("another broker leads a partition whose markers had no answer")
        self._loop.call_later(_LOOK_S, self._look)


def marker_purpose(key: Key) -> str:
    """Return the name of the connection for a partition's markers; always the same, so that markers stay in order."""
    topic, partition = key
    return f"{MARKERS}-{(crc32(topic.encode()) + partition) % _CONNECTIONS}"
