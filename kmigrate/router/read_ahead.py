"""What a consumer will ask for next, asked before it does: one connection's fetch session on both sides of the router.

A consumer that is behind asks a broker again only once it has handed out all that it had (Kafka's own, from 4.0), so
nothing is on its way while it works, and on its way everything passes one socket more than without a router. What it
will ask is known from what it was given: the same session, each partition that records came of behind its last batch.
So the router asks for it at once, holds the answer, and has it when the client asks.

    asked ahead ── the client asks just that, in time ──▶ used: its answer
         │
         └── it asks otherwise, or too late ──▶ dropped: the router asks for all that the client's session reads

An answer is used only for the request that the client sends, so nobody reads what was not asked for, and it is no
older than `STALE_S`, as long as a broker may take for any answer. Where a guess was wrong the broker's session
(KIP-227) has gone on without the client: a full request opens another one, and from then on ids and epochs are
translated. The client sees one session throughout. Each wrong guess makes the next one rarer.

Memory: an answer that is asked ahead has at most `MOST_BYTES`, or one batch, and all of a router's together no more
than `Room` has. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from kmigrate.router.apis.fetch_ends import AnswerHead, End
from kmigrate.router.apis.fetch_requests import FetchRequest, Partition, Place

__all__ = ["LARGE", "MOST_BYTES", "STALE_S", "Ahead", "Fate", "Pass", "ReadAhead", "Room"]

LARGE = 1 << 20
"""Bytes of an answer from which on a reader counts as being behind."""
MOST_BYTES = 8 << 20
STALE_S = 0.5
"""Consumers let a broker wait as long for records (`fetch.max.wait.ms`)."""
_SURE_AFTER = 16
"""As many right guesses in a row, and wrong ones are forgotten."""
_FIRST_REST = 4
_LONGEST_REST = 4096
"""Large answers without a guess after wrong ones."""
_NO_SESSION, _LAST_EPOCH = -1, (1 << 31) - 1


class Fate(Enum):
    """What becomes of an answer that was asked ahead."""

    USED = "used"
    DROPPED = "dropped"


@dataclass(slots=True)
class Room:
    """Memory for all answers of a router that are asked ahead."""

    limit: int
    taken: int = 0
    fates: Counter[Fate] = field(default_factory=Counter)

    def take(self) -> bool:
        """Room for one more, if there is."""
        if self.taken + MOST_BYTES > self.limit:
            return False
        self.taken += MOST_BYTES
        return True

    def give_back(self, fate: Fate) -> None:
        self.taken -= MOST_BYTES
        self.fates[fate] += 1


@dataclass(slots=True, eq=False)
class Ahead:
    """One request asked ahead, and its answer once that is there."""

    request: FetchRequest
    answer: bytearray | None = None
    came_at: float = 0.0
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
        self._reads: dict[Partition, Place] | None = None
        """What the client's session reads; None where that is not known."""
        self._asked: FetchRequest | None = None
        """The client's last request."""
        self._shown = self._own = 0
        """The session's id as the client knows it, and the broker's."""
        self._next_shown = self._next_own = 0
        """The epoch that each expects next."""
        self._opening = False
        """A full request is on its way: its answer names the broker's session."""
        self._behind = False
        self._ahead: Ahead | None = None
        self._rest = self._penalty = self._right = 0

    # requests

    def asked(self, request: FetchRequest) -> Pass | Ahead:
        """A client's request: how to pass it, or the one that was asked ahead and has its answer."""
        ahead, self._ahead = self._ahead, None
        if not self._is_next(request):
            if ahead is not None:
                self._drop(ahead)
            return self._begin(request)
        fits = ahead is not None and self._fits(request, ahead)
        self._follow(request)
        if ahead is None:
            own, self._next_own = self._next_own, _after(self._next_own)
            return Pass(self._own, own, whole=self._may_guess())
        if fits:
            self._room.give_back(Fate.USED)
            self._right += 1
            if self._right >= _SURE_AFTER:
                self._penalty = 0
            return ahead
        if not ahead.dropped:
            self._drop(ahead)
        self._next_own, self._opening = 1, True
        full = replace(request, session_id=self._own, epoch=0, places=dict(self._reads or {}), forgotten=())
        return Pass(self._own, 0, full)

    def _is_next(self, request: FetchRequest) -> bool:
        """Whether it goes on with the session that is known here."""
        known = self._reads is not None and not self._opening
        return known and (request.session_id, request.epoch) == (self._shown, self._next_shown)

    def _begin(self, request: FetchRequest) -> Pass:
        """A session begins anew, ends, or is one that began elsewhere."""
        ours = self._shown != 0 and request.session_id == self._shown
        passed = Pass(self._own if ours else request.session_id, request.epoch)
        self._reads = None
        self._behind = False
        if request.epoch == 0:
            self._reads, self._asked, self._opening = dict(request.places), request, True
            self._next_shown = self._next_own = 1
            self._shown = 0
        return passed

    def _follow(self, request: FetchRequest) -> None:
        assert self._reads is not None
        self._asked = request
        self._next_shown = _after(self._next_shown)
        for gone in request.forgotten:
            self._reads.pop(gone, None)
        for partition, place in request.places.items():
            self._reads.pop(partition, None)  # who was read last comes last
            self._reads[partition] = place

    def _fits(self, request: FetchRequest, ahead: Ahead) -> bool:
        assert self._asked is not None
        return (
            not ahead.dropped
            and not request.forgotten
            and request.manner == self._asked.manner
            and request.places == ahead.request.places
        )

    # answers

    def answered(self, head: AnswerHead) -> int:
        """The broker has answered a request that was passed: the session id that the client shall see."""
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
        """An answer of that size has gone to the client; nothing was asked ahead behind it."""
        self._behind = size >= LARGE
        if self._behind and self._rest:
            self._rest -= 1

    def _may_guess(self) -> bool:
        return self._behind and not self._rest and self._room.taken + MOST_BYTES <= self._room.limit

    def guess(self, head: AnswerHead, ends: Mapping[Partition, End] | None) -> Ahead | None:
        """What the client will ask when it has had this answer, to be asked now; None where nobody can tell."""
        if ends is None:
            self._punish()
            return None
        reads, asked = self._reads, self._asked
        if reads is None or asked is None or not ends or head.throttle or not ends.keys() <= reads.keys():
            return None
        if sum(min(end.left, end.read) for end in ends.values()) * 2 < sum(end.read for end in ends.values()):
            self._behind = False  # little is left: a broker might wait for more before it answers
            return None
        if not self._room.take():
            return None
        own, self._next_own = self._next_own, _after(self._next_own)
        request = replace(
            asked,
            session_id=self._own,
            epoch=own,
            max_bytes=min(asked.max_bytes, MOST_BYTES),
            places={partition: _behind(reads[partition], end) for partition, end in ends.items()},
            forgotten=(),
        )
        self._ahead = Ahead(request)
        return self._ahead

    def came(self, ahead: Ahead, answer: bytearray, now: float) -> bool:
        """The answer that was asked ahead is there; False where nobody wants it any more."""
        ahead.answer, ahead.came_at = answer, now
        return not ahead.dropped

    def look(self, now: float) -> None:
        """Drop an answer that has grown too old; to be called before each request."""
        ahead = self._ahead
        if ahead is not None and ahead.answer is not None and now - ahead.came_at > STALE_S:
            self._drop(ahead)

    def close(self) -> None:
        """The client is gone."""
        if self._ahead is not None and not self._ahead.dropped:
            self._drop(self._ahead)
        self._ahead = self._reads = None

    @property
    def committed(self) -> bool:
        """Whether the client reads committed records only."""
        return self._asked is not None and self._asked.isolation == 1

    @property
    def held(self) -> int:
        """Bytes that wait for the client to ask for them."""
        return len(self._ahead.answer) if self._ahead is not None and self._ahead.answer is not None else 0

    def _drop(self, ahead: Ahead) -> None:
        ahead.dropped, ahead.answer = True, None
        self._room.give_back(Fate.DROPPED)
        self._punish()

    def _punish(self) -> None:
        self._right = 0
        self._rest = self._penalty = min(_LONGEST_REST, max(_FIRST_REST, 4 * self._penalty))


def _after(epoch: int) -> int:
    return epoch + 1 if epoch < _LAST_EPOCH else 1


def _behind(place: Place, end: End) -> Place:
    """Where a reader goes on after its end; it names the leader epoch of what it has read if it did before."""
    epoch = end.leader_epoch if place.last_fetched_epoch >= 0 else place.last_fetched_epoch
    return place._replace(offset=end.offset, last_fetched_epoch=epoch)
