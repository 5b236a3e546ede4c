"""Writes that are relayed whole: nobody can see from outside which of the two ways decided a write."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import Serve, TopicRoute
from kmigrate.records.batch import check_crc, walk
from kmigrate.router.produce.fast_path import FastForward
from kmigrate.router.shared.state import Outcome
from kmigrate.router.wire.produce import PartitionAnswer, encode_answer
from tests.unit.router.router_fakes import SHIFT, Sent, Stage, batch, route


@pytest.mark.parametrize("version", range(3, 12))
def test_a_request_for_one_leader_leaves_as_it_came_but_for_ids_and_sums_and_its_answer_passes(version: int) -> None:
    stage = Stage(route("a", Serve.FORWARD), route("b", Serve.FORWARD))
    mine = [batch(producer=5, sequence=n) for n in range(3)]
    stage.produce(("a", 0, mine[0]), ("a", 4, mine[1]), ("b", 1, mine[2]), version=version)
    (sent,) = stage.edge.sent
    request = sent.request
    assert (request.version, [(part.topic, part.partition) for part in request.parts]) == (
        version, [("a", 0), ("a", 4), ("b", 1)]
    )  # fmt: skip
    for came, left in zip(mine, request.parts, strict=True):
        (found,) = walk(left.records)
        assert found.producer_id == 5 + SHIFT
        assert check_crc(found.view)
        assert came[57:] == left.records[57:]
    told = [PartitionAnswer(part.topic, part.partition, 0, 77, -1, 3) for part in request.parts]
    answer = bytearray(encode_answer(told, version=version, correlation=1, throttle_ms=250))
    sent.answered_with(answer)
    assert stage.edge.replies == [answer]
    assert stage.shared.forwards.in_flight == {"topic/l/a": 0, "topic/l/b": 0}


def test_what_was_relayed_is_told_at_the_fence() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=3)), ("t", 1, batch(producer=6, epoch=2, sequence=8)))
    stage.swap(route("t", Serve.HOLD, fence_epoch=9))
    assert stage.shared.forwards.fences(stage.shared.table)["topic/l/t"].in_flight == 2
    stage.edge.sent[0].answer()
    ack = stage.shared.forwards.fences(stage.shared.table)["topic/l/t"]
    assert (ack.in_flight, stage.backend.drains) == (0, 1)
    assert ack.producers == {0: (ProducerMark(5, 0, 3),), 1: (ProducerMark(6, 2, 8),)}


def test_an_answer_that_leaves_out_a_partition_acknowledges_nothing_of_it() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch()), ("t", 1, batch(sequence=8)))
    half = encode_answer([PartitionAnswer("t", 0, 0, 5)], version=9, correlation=1)
    stage.edge.sent[0].answered_with(bytearray(half))
    stage.swap(route("t", Serve.HOLD, fence_epoch=9))
    assert stage.shared.forwards.fences(stage.shared.table)["topic/l/t"].producers == {0: (ProducerMark(5, 0, 0),)}


# The two ways


@dataclass(frozen=True)
class Write:
    """A request: topic, partition, producer id, epoch and sequence of each batch, and the index of the broken batch."""

    batches: tuple[tuple[str, int, int, int, int], ...]
    version: int
    acks: int
    broken: int


@dataclass(frozen=True)
class Answer:
    """The outcome of a request in flight: errors by partition, or an end without an answer."""

    which: int
    errors: tuple[int, ...]
    sent: bool | None = None


@dataclass(frozen=True)
class Swap:
    """Another phase of topic `a`."""

    route: TopicRoute


@dataclass(frozen=True)
class Lead:
    """Another leader of partition 0 of topic `a`."""

    node: int


Step = Write | Answer | Swap | Lead
_BATCH = st.tuples(
    st.sampled_from(("a", "a", "b", "free")),
    st.integers(0, 2),
    st.sampled_from((5, 5, 6, -1)),
    st.integers(0, 1),
    st.integers(0, 3),
)
_WRITES = st.builds(
    Write,
    st.lists(_BATCH, min_size=1, max_size=4, unique_by=lambda one: one[:2]).map(tuple),
    st.sampled_from((3, 7, 8, 9, 9, 11)),
    st.sampled_from((-1, -1, 1, 0)),
    st.sampled_from((-1, -1, -1, 0)),
)
_ERRORS = st.lists(st.sampled_from((0, 0, 0, 0, 2, 3, 6, 19, 45, 10, 47)), min_size=4, max_size=4).map(tuple)
_MARKS = {0: (ProducerMark(5, 0, 1),), 1: (ProducerMark(6, 1, 0),)}
_PHASES = (
    *(route("a", serve, fence_epoch=9) for serve in (Serve.FORWARD, Serve.HOLD, Serve.LOCAL)),
    route("a", Serve.FORWARD, fence_epoch=9, gate=_MARKS, generation=1),
)
_STEPS = st.lists(
    _WRITES
    | _WRITES
    | st.builds(Answer, st.integers(0, 3), _ERRORS, st.sampled_from((None, None, None, True, False)))
    | st.builds(Swap, st.sampled_from(_PHASES))
    | st.builds(Lead, st.integers(1, 2)),
    max_size=14,
)
_OF_B = route("b", Serve.FORWARD)


class Played:
    """A script on a stage where partition 2 of both topics has another leader, and no leader supports version 10."""

    def __init__(self) -> None:
        self.stage = Stage(route("a", Serve.FORWARD), _OF_B)
        self.stage.backend.leaders = {("a", 2): 2, ("b", 2): 2}
        self.stage.backend.produce_version = 9
        self._open: list[Sent] = []
        self._seen = 0

    def step(self, step: Step) -> None:
        stage = self.stage
        if isinstance(step, Swap):
            stage.swap(step.route, _OF_B)
        elif isinstance(step, Lead):
            stage.backend.leaders["a", 0] = step.node
        elif isinstance(step, Write):
            made = [(t, p, batch(producer, epoch, sequence)) for t, p, producer, epoch, sequence in step.batches]
            if step.broken >= 0:
                made[step.broken][2][-1] ^= 1
            stage.produce(*made, version=step.version, acks=step.acks)
        elif self._open:
            self._end(self._open.pop(step.which % len(self._open)), step)
        for ask in stage.backend.ids:
            ask(900)
        stage.backend.ids.clear()
        while stage.backend.asked_source:
            _, _, producer, tell = stage.backend.asked_source.pop(0)
            tell(ProducerMark(producer, -1, -1))
        self._open += [sent for sent in stage.edge.sent[self._seen :] if sent.done is not None]
        self._seen = len(stage.edge.sent)

    def _end(self, sent: Sent, step: Answer) -> None:
        if step.sent is None or sent.where == "target":
            sent.answer(*step.errors[: len(sent.request.parts)])
        else:
            assert sent.done is not None
            sent.done(Outcome(None, sent=step.sent))

    @property
    def seen(self) -> tuple[object, ...]:
        """Everything by which clients, brokers and the controller could tell the two ways apart."""
        stage, account = self.stage, self.stage.shared.forwards
        return (
            [(sent.where, bytes(sent.frame)) for sent in stage.edge.sent],
            [bytes(reply) for reply in stage.edge.replies],
            stage.edge.closed,
            stage.backend.refreshed,
            stage.backend.drains,
            account.in_flight,
            (account.total, account.bytes),
            account.fences(stage.shared.table),
            account._acked,
            stage.session.waiting_bytes,
        )


@given(_STEPS)
def test_nobody_can_tell_whether_a_write_was_relayed_or_judged_partition_by_partition(
    steps: list[Step],
) -> None:
    relayed, judged = Played(), Played()
    judged.stage.session._writes._fast_path.look = lambda request: None  # type: ignore[method-assign]
    for step in steps:
        relayed.step(step)
        judged.step(step)
        assert relayed.seen == judged.seen


def test_the_common_write_is_relayed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(
        FastForward, "send", lambda self, way, head, *rest: sent.append((way.node, head.correlation_id))
    )
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch()), ("t", 1, batch()))
    assert sent == [(1, 1)]


@pytest.mark.parametrize("at", [20, 21, 40, 50, 52, 60, -1])
def test_a_damaged_batch_is_as_damaged_when_it_leaves_for_the_source_that_refuses_it(at: int) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    damaged = batch()
    damaged[at] ^= 1
    stage.produce(("t", 0, damaged), ("t", 1, batch(sequence=4)))
    bad, good = stage.edge.sent[0].request.parts
    assert not check_crc(bad.records)
    assert check_crc(good.records)
    stage.edge.sent[0].answer(2, 0)
    assert stage.told() == [(1, [("t", 0, 2), ("t", 1, 0)])]
    assert struct.unpack_from(">q", good.records, 43) == (5 + SHIFT,)


def test_a_source_of_an_older_version_gets_what_it_speaks() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.backend.produce_version = 9
    stage.produce(("t", 0, batch()), version=11)
    assert stage.edge.sent[0].request.version == 9
    stage.edge.sent[0].answer()
    assert stage.told(11) == [(1, [("t", 0, 0)])]
