"""An idempotent producer behind a router while leaders of both sides move:

order is kept, and no write waits for ever.
"""

from __future__ import annotations

import random
from struct import unpack_from

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import Code
from kmigrate.router.session.session import Session
from kmigrate.router.wire.produce import parse_answer
from tests.unit.router.router_fakes import FakeClientLink, Stage, batch, route

_IN_FLIGHT = 5
_TROUBLED, _CALM = 400, 100
"""Number of rounds; a round is a tenth of a second."""


class _Source:
    """A partition: the leader of two brokers, and the log with a known producer's sequences."""

    def __init__(self) -> None:
        self.leader, self.log = 1, [0]

    def append(self, node: int, sequence: int) -> int:
        if node != self.leader:
            return Code.NOT_LEADER_OR_FOLLOWER
        if sequence == self.log[-1] + 1:
            self.log.append(sequence)
        return 0 if sequence <= self.log[-1] else Code.OUT_OF_ORDER_SEQUENCE_NUMBER


class _Play:
    """A client that keeps five batches in flight to the known leader.

    The client resends in order, as Kafka's producer does.
    """

    def __init__(self, seed: int) -> None:
        self.dice, self.source = random.Random(seed), _Source()
        self.stage = stage = Stage(route("t", Serve.FORWARD))
        second = FakeClientLink()
        self.edges = [stage.edge, second]
        self.sessions = [stage.session, Session(stage.shared, second)]
        self.asked: list[list[int]] = [[], []]
        self.at, self.next, self.again_at = 0, 1, 0.0
        self.due: list[int] = []
        """Sequences without an acknowledgement."""
        self.under_way: set[int] = set()

    def may(self, share: float) -> bool:
        return self.dice.random() < share

    def round(self, *, troubled: bool) -> None:
        for edge in self.edges:
            edge.clock += 0.1
        if troubled:
            self.source.leader = self.dice.choice([1, 2]) if self.may(0.2) else self.source.leader
            self.at = self.dice.choice([0, 1]) if not self.under_way and self.may(0.3) else self.at
        if not troubled or self.may(0.2):
            self.stage.backend.leaders["t", 0] = self.source.leader
        self.send(more=troubled)
        self.answer(troubled=troubled)
        self.hear()

    def send(self, *, more: bool) -> None:
        stage, edge = self.stage, self.edges[self.at]
        if edge.clock < self.again_at or (self.under_way and self.under_way != set(self.due)):
            return
        while more and len(self.due) < _IN_FLIGHT and self.may(0.6):
            self.due.append(self.next)
            self.next += 1
        stage.session = self.sessions[self.at]
        for sequence in self.due:
            if sequence not in self.under_way:
                self.under_way.add(sequence)
                self.asked[self.at].append(sequence)
                stage.produce(("t", 0, batch(sequence=sequence)))

    def answer(self, *, troubled: bool) -> None:
        """Answer as the source: in order per connection, some later, and about the producer's sequences in the log."""
        for edge in self.edges:
            while edge.sent and not (troubled and self.may(0.3)):
                sent = edge.sent.pop(0)
                (part,) = sent.request.parts
                (sequence,) = unpack_from(">i", part.records, 53)
                sent.answer(self.source.append(int(sent.where.split()[1]), sequence))
        sought = self.stage.backend.sought
        while sought and self.may(0.5):
            *_, stored, then = sought.pop()
            then(None if troubled and self.may(0.3) else self.source.log[-1] >= stored.sequence)

    def hear(self) -> None:
        for asked, edge in zip(self.asked, self.edges, strict=True):
            assert edge.closed == []
            while edge.replies:
                (told,), _, _ = parse_answer(edge.replies.pop(0), 9)
                sequence = asked.pop(0)
                self.under_way.discard(sequence)
                if told.error:
                    assert told.error == Code.NOT_LEADER_OR_FOLLOWER, f"of {sequence}, while {self.due} are due"
                    self.again_at = edge.clock + 0.2
                else:
                    self.due.remove(sequence)


@pytest.mark.parametrize("seed", range(20))
def test_order_is_kept_and_nobody_stands_still_whatever_leaders_do(seed: int) -> None:
    play = _Play(seed)
    for _ in range(_TROUBLED):
        play.round(troubled=True)
    for _ in range(_CALM):
        play.round(troubled=False)
    assert play.due == []
    assert play.source.log == list(range(play.next))
    assert play.next > _TROUBLED // 10
