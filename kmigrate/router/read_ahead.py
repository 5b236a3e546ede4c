"""What a consumer will ask for next, asked before it does: one connection's fetch session on both sides of the router.

A consumer that is behind asks a broker again only once it has handed out all that it had (Kafka's own, from 4.0), so
nothing is on its way while it works, and on its way everything passes one socket more than without a router. What it
will ask is known from what it was given: the same session, each partition that records came of behind its last batch.
So the router asks for it at once, holds the answer, and has it when the client asks.

    asked ahead ── the client asks just that, in time ──▶ used: its answer
         │
         └── it asks otherwise, or too late ──▶ dropped: the router asks for all that the client's session reads

An answer is used only for the request that the client sends, so nobody reads what was not asked for, and within
`STALE_S`, as long as a broker may take for any answer. Where a guess was wrong the broker's session
(KIP-227) has gone on without the client: a full request opens another one, and from then on ids and epochs are
translated. The client sees one session throughout. Each wrong guess makes the next one rarer.

Memory: an answer that is asked ahead, or awaited whole to see what comes next, has at most `MOST_BYTES`, or one batch,
and all of a router's together no more than `Room` has. Requests of one connection are looked at one at a time, as a
broker does it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from kmigrate.router.apis.fetch_ends import AnswerHead, End
from kmigrate.router.apis.fetch_requests import FetchRequest, Partition, Place

__all__ = ["LARGE", "LATE_S", "MOST_BYTES", "STALE_S", "Ahead", "Fate", "Pass", "ReadAhead", "Room"]

LARGE = 1 << 20
"""Bytes of an answer from which on a reader counts as being behind. Nothing less is used of what was asked ahead."""
MOST_BYTES = 8 << 20
STALE_S = 0.5
"""After it has come. Consumers let a broker wait as long for records (`fetch.max.wait.ms`)."""
LATE_S = 5.0
"""After it was asked for: a client that does not read keeps it from coming."""
_SURE_AFTER = 16
"""As many right guesses in a row, and wrong ones are forgotten."""
_FIRST_REST = 4
_LONGEST_REST = 4096
"""Large answers without a guess after wrong ones."""
_MOST_PARTITIONS = 500
"""Of a session that is followed: what it reads is kept for as long as its connection lives."""
_MANY = 50
_PARTITION_BYTES = 300
"""What one of these takes; few of them are not worth being counted."""
_LAST_EPOCH = (1 << 31) - 1


class Fate(Enum):
    """What becomes of an answer that was asked ahead."""

    USED = "used"
    DROPPED = "dropped"


@dataclass(slots=True)
class Room:
    """Memory for all answers of a router that are asked ahead; what becomes of them is counted."""

    limit: int
    taken: int = 0
    fates: Counter[Fate] = field(default_factory=Counter)

    @property
    def exists(self) -> bool:
        """Whether there is any room at all."""
        return self.limit >= MOST_BYTES

    def take(self) -> bool:
        """Room for one more, if there is."""
        if self.taken + MOST_BYTES > self.limit:
            return False
        self.taken += MOST_BYTES
        return True

    def give_back(self) -> None:
        self.taken -= MOST_BYTES


@dataclass(slots=True, eq=False)
class Ahead:
    """One request asked ahead, and its answer once that is there."""

    request: FetchRequest
    until: float
    """When it is too old."""
    answer: bytearray | None = None
    since: int = 0
    """The epoch of the routing table under which the request was sent."""
    begun: bool = False
    """Whether memory is kept for it already."""
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """How a client's request goes to the broker."""

    session_id: int
    epoch: int
    full: FetchRequest | None = None
    """To be asked in place of the client's own."""
    whole: bool = False
    """Whether its answer is kept until it is whole, to see what comes next."""


class ReadAhead:
    """The fetch session of one client connection."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._has_room = False
        """For an answer that is awaited whole, or asked ahead."""
        self._by_ids = False
        """Whether the session's topics are named by their ids: a broker refuses to go on with it otherwise."""
        self._reads: dict[Partition, Place] | None = None
        """What the client's session reads; None where that is not known."""
        self._manner: FetchRequest | None = None
        """The client's last request without its partitions."""
        self._shown = self._own = 0
        """The session's id as the client knows it, and the broker's."""
        self._next_shown = self._next_own = 0
        """The epoch that each expects next."""
        self._opening = False
        """A full request is on its way: its answer names the broker's session."""
        self._behind = False
        self._ahead: Ahead | None = None
        self._unwanted: Ahead | None = None
        """Dropped while it was coming: until it has come it has its room."""
        self._rest = self._penalty = self._right = 0

    # requests

    def asked(self, request: FetchRequest, *, by_ids: bool) -> Pass | Ahead:
        """A client's request: how to pass it, or the one that was asked ahead in its place."""
        ahead, self._ahead = self._ahead, None
        if self._reads is None or (request.session_id, request.epoch) != (self._shown, self._next_shown):
            self._drop(ahead)
            return self._begin(request, by_ids=by_ids)
        if ahead is not None and by_ids == self._by_ids:
            fits = self._fits(request, ahead)
            self._follow(request)
            if fits:
                return ahead
            self._drop(ahead)
            return Pass(self._own, 0, self.instead())
        self._drop(ahead)
        self._follow(request)
        own, self._next_own = self._next_own, _after(self._next_own)
        plain = (self._own, own) == (request.session_id, request.epoch)
        if by_ids != self._by_ids or (plain and len(self._reads) > _MOST_PARTITIONS):
            self._reads = None
        return Pass(self._own, own, whole=self._awaits_whole(request))

    def _begin(self, request: FetchRequest, *, by_ids: bool) -> Pass:
        """A session begins anew, ends, or is one that began elsewhere."""
        ours = self._shown != 0 and request.session_id == self._shown
        passed = Pass(self._own if ours else request.session_id, request.epoch)
        self._reads = None
        self._behind = False
        if request.epoch == 0 and len(request.places) <= _MOST_PARTITIONS:
            self._by_ids, self._reads, self._opening = by_ids, dict(request.places), True
            self._manner = request.of({}, 0, 0)
            self._next_shown = self._next_own = 1
            self._shown = 0
        return passed

    def _follow(self, request: FetchRequest) -> None:
        """The client's session goes on."""
        assert self._reads is not None
        self._manner = request.of({}, 0, 0)
        self._next_shown = _after(self._next_shown)
        for partition, place in request.places.items():
            self._reads.pop(partition, None)  # who was read last comes last
            self._reads[partition] = place
        for gone in request.forgotten:
            self._reads.pop(gone, None)

    def _fits(self, request: FetchRequest, ahead: Ahead) -> bool:
        assert self._manner is not None
        same = not request.forgotten and request.manner == self._manner.manner
        return same and not ahead.dropped and request.places == ahead.request.places

    def _awaits_whole(self, request: FetchRequest) -> bool:
        """Whether the answer may be guessed behind, and has room."""
        may = self._reads is not None and self._behind and not self._rest and request.min_bytes <= LARGE
        self._has_room = self._has_room or (may and self._room.take())
        return may and self._has_room

    def instead(self) -> FetchRequest:
        """All that the client's session reads, to be asked in place of the client's request: the broker's session has
        gone on without it."""
        assert self._manner is not None
        self._next_own, self._opening = 1, True
        return self._manner.of(dict(self._reads or {}), self._own, 0)

    # answers

    def answered(self, head: AnswerHead) -> int:
        """The broker has answered the client's request: the session id that the client shall see."""
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
        """An answer of that size goes to the client, and nothing is asked behind it."""
        self._leave_room()
        self._behind = size >= LARGE
        if self._behind and self._rest:
            self._rest -= 1

    def guess(self, head: AnswerHead, ends: Mapping[Partition, End] | None, now: float) -> Ahead | None:
        """What the client will ask when it has had this answer, to be asked now; None where nobody can tell."""
        reads, manner = self._reads, self._manner
        if reads is None or manner is None:
            self._leave_room()
        elif not ends or head.throttle or not ends.keys() <= reads.keys():
            self._leave_room()
            self._punish()
        elif sum(min(end.left, end.read) for end in ends.values()) * 2 < sum(end.read for end in ends.values()):
            self._leave_room()
            self._behind = False  # little is left: perhaps not even what is used of such an answer
        elif self._has_room:
            own, self._next_own = self._next_own, _after(self._next_own)
            places = {partition: _behind(reads[partition], end) for partition, end in ends.items()}
            request = replace(
                manner.of(places, self._own, own),
                max_wait_ms=0,  # nothing else of this connection shall wait behind it
                max_bytes=min(manner.max_bytes, MOST_BYTES),
            )
            self._ahead = Ahead(request, now + LATE_S)
        return self._ahead

    def came(self, ahead: Ahead, answer: bytearray, now: float) -> bool:
        """The answer that was asked ahead is there; False where it is not to be used."""
        if len(answer) < LARGE:
            self._drop(ahead)
        if not ahead.dropped:
            ahead.answer, ahead.until = answer, now + STALE_S
        elif self._unwanted is ahead:
            self._unwanted = None
            self._leave_room()
        return not ahead.dropped

    def used(self) -> None:
        """What was asked ahead goes to the client: the next guess has its room."""
        self._room.fates[Fate.USED] += 1
        self._right += 1
        if self._right >= _SURE_AFTER:
            self._penalty = 0

    def look(self, now: float) -> None:
        """Drop an answer that has grown too old; to be called before each request."""
        if self._ahead is not None and now > self._ahead.until:
            self._drop(self._ahead)

    def close(self) -> None:
        """The client is gone."""
        self._drop(self._ahead)
        self._leave_room()
        self._ahead = self._unwanted = self._reads = None

    @property
    def committed(self) -> bool:
        """Whether the client reads committed records only."""
        return self._manner is not None and self._manner.isolation == 1

    @property
    def held(self) -> int:
        """Bytes that wait for the client to ask for them, and what a large session takes."""
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


def _behind(place: Place, end: End) -> Place:
    """Where a reader goes on after its end; it names the leader epoch of what it has read if it did before."""
    epoch = end.leader_epoch if place.last_fetched_epoch >= 0 else place.last_fetched_epoch
    return place._replace(offset=end.offset, last_fetched_epoch=epoch)
