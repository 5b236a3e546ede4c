"""A mirror notes at the source how far each copy back is, and what has become of the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.cluster.transactions import OpenTransaction
from kmigrate.errors import Unreachable
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.upkeep import way_back_notes
from kmigrate.mirror.upkeep.way_back_notes import NoteWriter
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import CopyIdentity, GroupRecord, RouterRecord, TopicRecord, TransactionRecord, WayBack
from kmigrate.model.rehearsals import link_of
from kmigrate.model.way_back_notes import NoteState, WayBackNote, decode_note
from kmigrate.protocol.codes import Code
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

COPY = CopyIdentity(500, 0)
WAY = WayBack({0: 70, 1: 80}, copy=COPY)
TOPIC = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, partitions=2, way_back=WAY)
GROUPS = (
    GroupRecord("l", "billing", GroupPhase.PROMOTED, 1, promoted_ms=7, written={"t": {0: 60}}),
    GroupRecord("l", "elsewhere", GroupPhase.PROMOTED, 1, promoted_ms=7, written={"other": {0: 60}}),
    GroupRecord("l", "waiting", GroupPhase.MIRRORED, 1),
)
ROUTER = RouterRecord("edge", "r1", "host", "host:9092", 1)


def lane_at(partition: int, position: int) -> Lane:
    lane = Lane("t", partition, producer_id=COPY.data_id, epoch=0, hole_limit=1)
    lane.recovered(position, -1, position)
    return lane


class Stage:
    """A writer whose commits are kept by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *records: Record, link: str = "l", leads: bool = True) -> None:
        self.log = MemoryLog(ROUTER, *GROUPS, *records)
        self.lanes = {("t", p): lane_at(p, 100 + p) for p in range(2)}
        self.ends = {key: LogOffset(0, 105, 1) for key in self.lanes}
        self.now_ms = 1_000
        self.commits: list[tuple[str, Mapping[tuple[str, int], CommittedOffset]]] = []
        self.refused: dict[tuple[str, int], str] = {}
        self.failure: Exception | None = None
        self.target_failure: Exception | None = None
        source = SimpleNamespace(settings=SimpleNamespace(name="s", security=SimpleNamespace(principal="User:k")))
        target = SimpleNamespace(settings=SimpleNamespace(name="tgt"), log_ends=self._log_ends)
        own = cast("StateLog", self.log), "me", cast("Any", None)
        made = MirroredLink(cast("Any", source), cast("Any", target), cast("Any", None), cast("Any", None), link, *own)
        self.writer = NoteWriter(made, lambda: self.lanes, lambda: leads)
        self.open: dict[tuple[str, int], OpenTransaction] = {}
        """Transactions at the target that partitions wait for."""
        self.asked: list[tuple[str, int]] = []
        """Partitions for which an open transaction was asked for."""
        monkeypatch.setattr(way_back_notes, "write_positions", self._commit)
        monkeypatch.setattr(way_back_notes, "open_transactions", self._open)
        monkeypatch.setattr(way_back_notes, "now_ms", lambda: self.now_ms)

    async def _log_ends(self, keys: Any) -> Mapping[tuple[str, int], LogOffset]:
        if self.target_failure is not None:
            raise self.target_failure
        self.now_ms += 500  # the answer takes time
        return {key: self.ends[key] for key in keys}

    async def _open(self, _: object, keys: Any) -> Mapping[tuple[str, int], OpenTransaction]:
        self.asked += keys
        return {key: each for key, each in self.open.items() if key in keys}

    async def _commit(self, _: object, group: str, positions: Any, allowed: Any) -> dict[tuple[str, int], str]:
        await allowed()
        if self.failure is not None:
            raise self.failure
        self.commits.append((group, positions))
        return self.refused

    def written(self) -> dict[tuple[str, int], WayBackNote]:
        """Return the notes of one round."""
        self.commits.clear()
        asyncio.run(self.writer.write())
        notes = {key: decode_note(each.offset, each.metadata) for _, some in self.commits for key, each in some.items()}
        assert None not in notes.values()
        return cast("dict[tuple[str, int], WayBackNote]", notes)


def test_each_partition_is_noted_with_the_copys_position_and_the_targets_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, TOPIC)
    notes = stage.written()
    assert [group for group, _ in stage.commits] == ["kmigrate-way-back-l"]
    first, second = notes["t", 0], notes["t", 1]
    assert (first.state, first.position, first.target_end, first.seen_ms) == (NoteState.OPEN, 100, 105, 1_000)
    assert (first.target, first.producer_id) == ("tgt", 500)
    assert (first.groups, first.routers) == ({"billing": 7}, {"edge": "host:9092"})
    assert (second.position, second.groups, second.routers) == (101, {}, {})


def test_a_topics_note_names_the_transactions_that_write_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    written = (("held", ("t",), ()), ("till", ("t", "u"), ("copiers",)), ("other", ("u",), ()))
    ids = [TransactionRecord("l", name, 1, 0, -1, -1, topics, groups) for name, topics, groups in written]
    stage = Stage(monkeypatch, TOPIC, *ids)
    first, second = (stage.written()["t", 0], decode_note(0, stage.commits[0][1]["t", 1].metadata))
    assert (first.transactional_ids, first.more_transactional_ids) == (("held", "till"), 0)
    assert (first.coupled_topics, first.coupled_groups) == (("t", "u"), ("copiers",))
    assert second is not None and second.transactional_ids == ()
    for number in range(20):
        record = TransactionRecord("l", f"x-{number:02}", 1, 0, -1, -1, ("t",))
        stage.log._put(record.key, record)
    many = stage.written()["t", 0]
    assert (len(many.transactional_ids), many.more_transactional_ids) == (10, 12)


def test_a_copy_that_stands_still_names_the_transaction_that_the_copy_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, TOPIC)
    stage.open["t", 0] = OpenTransaction(100, 12, 1, "held")
    assert stage.written()["t", 0].reason == ""
    assert stage.asked == [], "nobody knows yet that the copy stands still"
    assert stage.written()["t", 0].reason == "the copy waited at offset 100 for the transaction of held (producer 12)"
    assert stage.asked == [("t", 0), ("t", 1)]
    stage.lanes["t", 0] = lane_at(0, 105)
    assert stage.written()["t", 0].reason == ""


def test_a_note_that_does_not_change_is_not_written_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, TOPIC)
    assert len(stage.written()) == 2
    assert stage.written() == {}, "another time alone is no news"
    stage.ends["t", 0] = LogOffset(0, 106, 1)
    assert [(key, note.target_end) for key, note in stage.written().items()] == [(("t", 0), 106)]
    monkeypatch.setattr(way_back_notes, "_REFRESH_S", 0.0)
    assert len(stage.written()) == 2


def test_the_moment_up_to_which_the_source_has_all_is_a_look_whose_end_the_copy_has_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, TOPIC)
    assert stage.written()["t", 0].fresh_ms == 0
    stage.now_ms, stage.ends["t", 0] = 5_000, LogOffset(0, 120, 1)
    assert stage.written()["t", 0].fresh_ms == 0
    stage.now_ms, stage.lanes["t", 0] = 8_000, lane_at(0, 110)
    assert stage.written()["t", 0].fresh_ms == 1_000, "the end of the first look, which was asked for at 1,000"
    stage.now_ms, stage.lanes["t", 0] = 9_000, lane_at(0, 120)
    note = stage.written()["t", 0]
    assert (note.fresh_ms, note.seen_ms) == (9_000, 9_000)


def test_a_copy_that_is_behind_for_hours_keeps_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, TOPIC)
    for number in range(500):
        stage.now_ms, stage.ends["t", 0] = 1_000 * (number + 1), LogOffset(0, 200 + number, 1)
        stage.written()
    assert len(stage.writer._ends["t", 0].ends) <= 101
    stage.lanes["t", 0] = lane_at(0, 200)
    assert stage.written()["t", 0].fresh_ms == 1_000, "the first look is kept"


def test_while_the_target_does_not_answer_the_last_notes_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, TOPIC)
    stage.ends["t", 1] = LogOffset(Code.LEADER_NOT_AVAILABLE, -1, -1)
    assert list(stage.written()) == [("t", 0)]
    stage.target_failure = Unreachable("cluster-unreachable", "no broker answers")
    stage.ends["t", 0] = LogOffset(0, 300, 1)
    assert stage.written() == {}
    assert stage.writer.trouble == ""


def test_a_copy_that_has_stopped_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, TOPIC)
    stage.lanes["t", 1].stop("target-refused: no room")
    assert "target-refused: no room" in stage.written()["t", 1].reason


def test_the_leader_notes_the_end_of_a_way_back_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    over = replace(TOPIC, way_back=replace(WAY, ended="a foreign record", ended_at={0: 90}))
    notes = Stage(monkeypatch, over).written()
    assert {key: (note.state, note.position, note.reason) for key, note in notes.items()} == {
        ("t", 0): (NoteState.ENDED, 90, "a foreign record"),
        ("t", 1): (NoteState.ENDED, 80, "a foreign record"),
    }
    assert Stage(monkeypatch, over, leads=False).written() == {}


def test_the_leader_notes_a_topic_that_was_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    back = replace(TOPIC, phase=TopicPhase.MIRRORING, way_back=None, generation=1, resumed={0: 110, 1: 120})
    notes = Stage(monkeypatch, back).written()
    assert [(note.state, note.position) for note in notes.values()] == [
        (NoteState.ROLLED_BACK, 110),
        (NoteState.ROLLED_BACK, 120),
    ]


def test_topics_without_a_way_back_and_rehearsals_leave_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Stage(monkeypatch, replace(TOPIC, way_back=None)).written() == {}
    assert Stage(monkeypatch, replace(TOPIC, phase=TopicPhase.MIRRORING, way_back=None)).written() == {}
    rehearsed = link_of("abc")
    assert Stage(monkeypatch, replace(TOPIC, link=rehearsed), link=rehearsed).written() == {}


def test_a_refused_note_names_the_missing_right_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, TOPIC)
    stage.refused = dict.fromkeys(stage.lanes, "GROUP_AUTHORIZATION_FAILED")
    stage.written()
    assert stage.writer.trouble.startswith("way-back-unnoted: the source refuses the note of t-0")
    assert "User:k needs READ on group kmigrate-way-back-l" in stage.writer.trouble
    stage.refused = {}
    assert len(stage.written()) == 2
    assert stage.writer.trouble == ""


def test_an_unreachable_source_is_named_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, TOPIC)
    stage.failure = Unreachable("cluster-unreachable", "no broker answers")
    stage.written()
    assert stage.writer.trouble == "way-back-unnoted: no broker answers"
    stage.failure = None
    assert len(stage.written()) == 2
    assert stage.writer.trouble == ""
