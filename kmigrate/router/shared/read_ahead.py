"""Asks ahead for a consumer's next fetch: a connection's fetch session on both sides of the router.

Kafka's own consumer, from 4.0 on, asks a broker again only once the consumer has handed out all records. So nothing is
under way while a consumer that is behind works, and through a router each answer passes an additional socket.

The answer tells the router the consumer's next request: the same session, and each partition that had records, from
behind the last batch. So the router sends that request at once, and holds the answer until the client asks.

    asked ahead ── the client asks just that, in time ──▶ used: the client gets the answer
         └── the client asks otherwise, or too late ──▶ dropped: the router asks for all that the client's session reads

An answer is used only for the request that the client sends, so no client reads records that it has not asked for. The
answer is used within `STALE_S`, as long as a broker may take. After a wrong guess the broker's session (KIP-227) has
gone on without the client. Then a full request opens another session, and ids and epochs are translated; the client
sees the same session throughout. Each wrong guess makes the next guess rarer.

Memory: an answer that is asked ahead, or awaited whole before asking ahead, has at most `MOST_BYTES`, or a single
batch. All such answers together take no more than `Room` has. Requests of a connection are handled one at a time, as at
a broker. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from kmigrate.router.wire.fetch_session import AnswerHead, End, FetchRequest, Partition, Position

__all__ = ["LARGE", "LATE_S", "MOST_BYTES", "STALE_S", "Ahead", "Fate", "Pass", "ReadAhead", "Room"]

LARGE = 1 << 20
"""Bytes of an answer from which on a reader counts as being behind; smaller answers asked ahead are not used."""
MOST_BYTES = 8 << 20
STALE_S = 0.5
"""Time after arrival in which an answer may be used; consumers let a broker wait as long (`fetch.max.wait.ms`)."""
LATE_S = 5.0
"""Time for the answer to arrive after the request: a client that does not read keeps the answer from arriving."""
_SURE_AFTER = 16
"""Number of right guesses in a row after which wrong guesses are forgotten."""
_FIRST_REST = 4
_LONGEST_REST = 4096
"""Limits of the number of large answers without a guess after wrong guesses."""
_MOST_PARTITIONS = 500
"""Maximum partitions of a followed session: the session's partitions are kept for as long as the connection lives."""
_MANY = 50
_PARTITION_BYTES = 300
"""Memory per partition of a session; sessions of up to `_MANY` partitions are not counted."""
_LAST_EPOCH = (1 << 31) - 1


class Fate(Enum):
    """The fate of an answer that was asked ahead."""

    USED = "used"
    DROPPED = "dropped"


@dataclass(slots=True)
class Room:
    """Memory for all answers of a router that are asked ahead; counts their fates."""

    limit: int
    taken: int = 0
    fates: Counter[Fate] = field(default_factory=Counter)

    @property
    def exists(self) -> bool:
        """True if there is any room at all."""
        return self.limit >= MOST_BYTES

    def take(self) -> bool:
        """Take room for another answer; return False if there is none."""
        if self.taken + MOST_BYTES > self.limit:
            return False
        self.taken += MOST_BYTES
        return True

    def give_back(self) -> None:
        """Give back the room of an answer."""
        self.taken -= MOST_BYTES


@dataclass(slots=True, eq=False)
class Ahead:
    """A request asked ahead, with the answer once arrived."""

    request: FetchRequest
    until: float
    """Time at which the answer is too old."""
    answer: bytearray | None = None
    since: int = 0
    """The epoch of the routing table under which the request was sent."""
    begun: bool = False
    """True once the answer has begun to arrive, so that memory is kept for the answer."""
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """The form in which a client's request goes to the broker."""

    session_id: int
    epoch: int
    full: FetchRequest | None = None
    """Request that is sent in place of the client's own."""
    whole: bool = False
    """True if the answer is kept until whole, so that the router can ask ahead."""


class ReadAhead:
    """The fetch session of a client connection."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._has_room = False
        """True while room is taken for an answer that is awaited whole, or asked ahead."""
        self._by_ids = False
        """True if the session names topics by id: a broker refuses to go on otherwise."""
        self._reads: dict[Partition, Position] | None = None
        """Partitions that the client's session reads; None where they are not known."""
        self._manner = FetchRequest(0, 0, 0, 0, 0, 0, {})
        """The client's last request, without partitions."""
        self._shown = self._own = 0
        """Ids of the session: the id that the client knows, and the broker's."""
        self._next_shown = self._next_own = 0
        """Next epoch that the client uses, and next epoch that the broker expects."""
        self._opening = False
        """True while a full request is under way, whose answer names the broker's session."""
        self._behind = False
        self._ahead: Ahead | None = None
        self._unwanted: Ahead | None = None
        """Request dropped while the answer was arriving: the request keeps its room until the answer has arrived."""
        self._rest = self._penalty = self._right = 0

    # requests

    def asked(self, request: FetchRequest, *, by_ids: bool) -> Pass | Ahead:
        """Take a client's request; return how to pass it, or the request that was asked ahead in its place."""
        ahead, self._ahead = self._ahead, None
        reads = self._reads
        if reads is None or (request.session_id, request.epoch) != (self._shown, self._next_shown):
            self._drop(ahead)
            return self._begin(request, by_ids=by_ids)
        if ahead is not None and by_ids == self._by_ids:
            fits = self._fits(request, ahead)
            self._follow(request, reads)
            if fits:
                return ahead
            self._drop(ahead)
            return Pass(self._own, 0, self.instead())
        self._drop(ahead)
        self._follow(request, reads)
        own, self._next_own = self._next_own, _after(self._next_own)
        plain = (self._own, own) == (request.session_id, request.epoch)
        if by_ids != self._by_ids or (plain and len(reads) > _MOST_PARTITIONS):
            self._reads = None
        return Pass(self._own, own, whole=self._awaits_whole(request))

    def _begin(self, request: FetchRequest, *, by_ids: bool) -> Pass:
        """Handle a session that begins anew, ends, or began elsewhere."""
        ours = self._shown != 0 and request.session_id == self._shown
        passed = Pass(self._own if ours else request.session_id, request.epoch)
        self._reads = None
        self._behind = False
        if request.epoch == 0 and len(request.positions) <= _MOST_PARTITIONS:
            self._by_ids, self._reads, self._opening = by_ids, dict(request.positions), True
            self._manner = request.of({}, 0, 0)
            self._next_shown = self._next_own = 1
            self._shown = 0
        return passed

    def _follow(self, request: FetchRequest, reads: dict[Partition, Position]) -> None:
        """Follow the next request of the client's session."""
        self._manner = request.of({}, 0, 0)
        self._next_shown = _after(self._next_shown)
        for partition, place in request.positions.items():
            reads.pop(partition, None)  # the partition that was read last comes last
            reads[partition] = place
        for gone in request.forgotten:
            reads.pop(gone, None)

    def _fits(self, request: FetchRequest, ahead: Ahead) -> bool:
        same = not request.forgotten and request.manner == self._manner.manner
        return same and not ahead.dropped and request.positions == ahead.request.positions

    def _awaits_whole(self, request: FetchRequest) -> bool:
        """Return whether the answer may lead to a guess, and has room."""
        may = self._reads is not None and self._behind and not self._rest and request.min_bytes <= LARGE
        self._has_room = self._has_room or (may and self._room.take())
        return may and self._has_room

    def instead(self) -> FetchRequest:
        """Return a request for all that the session reads; the broker's session has gone on without the client."""
        self._next_own, self._opening = 1, True
        return self._manner.of(dict(self._reads or {}), self._own, 0)

    # answers

    def answered(self, head: AnswerHead) -> int:
        """Take the head of the broker's answer; return the session id that the client shall see."""
        opening, self._opening = self._opening, False
        if self._reads is None:
            return head.session_id
        if head.error or not head.session_id:
            self._reads = None
            return head.session_id
        if opening:
            self._own = head.session_id
            self._shown = self._shown or self._own
        return self._shown

    def passed(self, size: int) -> None:
        """Note that an answer of that size goes to the client, and that nothing is asked ahead."""
        self._leave_room()
        self._behind = size >= LARGE
        if self._behind and self._rest:
            self._rest -= 1

    def guess(self, head: AnswerHead, ends: Mapping[Partition, End] | None, now: float) -> Ahead | None:
        """Return the client's probable next request, to be asked now; None where the next request cannot be known."""
        reads, manner = self._reads, self._manner
        if reads is None:
            self._leave_room()
        elif not ends or head.throttle or not ends.keys() <= reads.keys():
            self._leave_room()
            self._punish()
        elif sum(min(end.left, end.read) for end in ends.values()) * 2 < sum(end.read for end in ends.values()):
            self._leave_room()
            self._behind = False  # little is left: perhaps not even the size at which such an answer is used
        elif self._has_room:
            own, self._next_own = self._next_own, _after(self._next_own)
            places = {partition: _behind(reads[partition], end) for partition, end in ends.items()}
            request = replace(
                manner.of(places, self._own, own),
                max_wait_ms=0,  # nothing else of this connection shall wait behind this request
                max_bytes=min(manner.max_bytes, MOST_BYTES),
            )
            self._ahead = Ahead(request, now + LATE_S)
        return self._ahead

    def came(self, ahead: Ahead, answer: bytearray, now: float) -> bool:
        """Take the answer to a request asked ahead; return False where the answer is not to be used."""
        if len(answer) < LARGE:
            self._drop(ahead)
        if not ahead.dropped:
            ahead.answer, ahead.until = answer, now + STALE_S
        elif self._unwanted is ahead:
            self._unwanted = None
            self._leave_room()
        return not ahead.dropped

    def used(self) -> None:
        """Note that the answer goes to the client: the next guess gets the room of this answer."""
        self._room.fates[Fate.USED] += 1
        self._right += 1
        if self._right >= _SURE_AFTER:
            self._penalty = 0

    def look(self, now: float) -> None:
        """Drop an answer that has grown too old; to be called before each request."""
        if self._ahead is not None and now > self._ahead.until:
            self._drop(self._ahead)

    def close(self) -> None:
        """Drop everything, because the client is gone."""
        self._drop(self._ahead)
        self._leave_room()
        self._ahead = self._unwanted = self._reads = None

    @property
    def committed(self) -> bool:
        """True if the client reads committed records only."""
        return self._manner.isolation == 1

    @property
    def held(self) -> int:
        """Bytes that wait for the client to ask, and the memory of a large session."""
        waiting = self._ahead.answer if self._ahead is not None else None
        reads = len(self._reads) if self._reads is not None else 0
        return (len(waiting) if waiting is not None else 0) + (reads * _PARTITION_BYTES if reads > _MANY else 0)

    def _drop(self, ahead: Ahead | None) -> None:
        if ahead is None or ahead.dropped:
            return
        self._room.fates[Fate.DROPPED] += 1
        self._punish()
        ahead.dropped = True
        if ahead.begun and ahead.answer is None:
            self._unwanted = ahead
        else:
            ahead.answer = None
            self._leave_room()

    def _leave_room(self) -> None:
        if self._has_room:
            self._has_room = False
            self._room.give_back()

    def _punish(self) -> None:
        self._right = 0
        self._rest = self._penalty = min(_LONGEST_REST, max(_FIRST_REST, 4 * self._penalty))


def _after(epoch: int) -> int:
    return epoch + 1 if epoch < _LAST_EPOCH else 1


def _behind(place: Position, end: End) -> Position:
    """Return the reader's next position, with a leader epoch only if the reader named a leader epoch before."""
    epoch = end.leader_epoch if place.last_fetched_epoch >= 0 else place.last_fetched_epoch
    return place._replace(offset=end.offset, last_fetched_epoch=epoch)
