"""Once the target is gone, the source's notes and logs tell up to where the source is complete."""

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
from kmigrate.errors import AuthenticationFailed, KmigrateError, Refused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.way_back_notes import NoteState, WayBackNote, encode_note
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code
from kmigrate.records.build import one_record_batch
from kmigrate.workflow.verbs import target_lost
from kmigrate.workflow.verbs.target_lost import (
    PartitionAtSource,
    SourceFindings,
    examine_source,
    read_notes,
    refuse_living_target,
    release_groups,
    router_findings,
)

KEY = ("t", 0)
COPY = 500
NOTE = WayBackNote(NoteState.OPEN, 100, "tgt", COPY, 104, 9_000, 8_000)
SETTINGS = ClusterSettings("src", (("127.0.0.1", 1),))


def batch_at(offset: int, producer_id: int) -> bytes:
    batch = one_record_batch(b"", b"x", timestamp=1, producer_id=producer_id, epoch=0, sequence=0)
    return offset.to_bytes(8, "big") + batch[8:]


class Source:
    """The source as the report asks it: a log of single records, by producer id from an offset on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start: int = 100, *producers: int) -> None:
        self.settings = SETTINGS
        self.start = start
        self.log = list(producers)
        self.grows: list[int] = []
        """Producer ids of records that are written between the two looks."""
        self.first = 0
        self.positions: dict[str, Mapping[tuple[str, int], CommittedOffset]] = {}
        self.transactions: dict[tuple[str, int], OpenTransaction] = {}
        self.end_error = 0
        self.held: dict[str, bool] = {}
        for name in ("fetch_one", "read_positions", "read_all_positions", "open_transactions", "held_groups", "sleep"):
            monkeypatch.setattr(target_lost, name, getattr(self, name))

    async def refresh(self, _: object) -> None: ...

    def leader(self, *_: object) -> int:
        return 1

    async def log_start(self, _: object) -> LogOffset:
        return LogOffset(0, self.first, 1)

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return dict.fromkeys(wanted, LogOffset(self.end_error, self.start + len(self.log), 1))

    async def sleep(self, _: float) -> None:
        self.log += self.grows

    async def fetch_one(self, _: object, __: int, part: Any, **___: object) -> Any:
        assert part.offset >= self.first
        batches = b"".join(
            batch_at(offset, producer)
            for offset, producer in enumerate(self.log, self.start)
            if part.offset <= offset < part.offset + 3
        )
        return SimpleNamespace(error=0, records=batches)

    async def read_positions(self, _: object, group: str, *, stable: bool) -> Any:
        return self.positions.get(group, {})

    async def read_all_positions(self, _: object, groups: Any) -> Any:
        return {group: self.positions.get(group, {}) for group in groups}

    async def open_transactions(self, *_: object) -> Any:
        return self.transactions

    async def held_groups(self, _: object) -> dict[str, bool]:
        return dict(self.held)


def examined(source: Source, note: WayBackNote = NOTE, **notes: WayBackNote) -> SourceFindings:
    """Return the report on partition 0 of topic t, and of the topics that `notes` name."""
    others = {(topic, 0): each for topic, each in notes.items()}
    return asyncio.run(examine_source(cast("Any", source), "l", {KEY: note, **others}))


def row_of(source: Source, note: WayBackNote = NOTE) -> PartitionAtSource:
    (found,) = examined(source, note).partitions
    return found


def test_a_source_with_all_that_was_known_is_complete_as_of_the_last_look_at_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy went on after the last note: the source has more than the note's position."""
    row = row_of(Source(monkeypatch, 100, *[COPY] * 5))
    assert (row.complete_to, row.source_end, row.missing, row.complete_ms) == (105, 105, 0, 9_000)
    assert row.is_complete
    assert not row.foreign


def test_records_that_the_target_was_known_to_hold_are_counted_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examined(Source(monkeypatch, 100, COPY))
    (row,) = report.partitions
    assert (row.complete_to, row.missing, row.complete_ms, row.target_end_ms) == (101, 3, 8_000, 9_000)
    assert not report.is_complete


def test_the_copy_ends_before_the_first_record_of_another_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(Source(monkeypatch, 100, *[COPY] * 4, 7, 7))
    assert (row.complete_to, row.source_end, row.missing) == (104, 106, 0)
    assert row.foreign == "offset 104: producer 7"


def test_a_source_that_was_cut_below_the_notes_position_lacks_these_records(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(Source(monkeypatch, 98))
    assert (row.complete_to, row.missing) == (98, 6)


def test_a_log_whose_retention_has_passed_the_note_is_read_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, 100, *[COPY] * 9)
    source.first = 107
    assert row_of(source).complete_to == 109


def test_an_ended_way_back_lacks_an_unknown_number_and_a_rolled_back_topic_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = row_of(Source(monkeypatch, 100), WayBackNote(NoteState.ENDED, 100, producer_id=COPY, reason="foreign"))
    assert (ended.missing, ended.is_complete, ended.reason) == (-1, False, "foreign")
    back = row_of(Source(monkeypatch, 100, 7, 7), WayBackNote(NoteState.ROLLED_BACK, 100))
    assert (back.missing, back.is_complete, back.complete_to, back.foreign) == (0, True, 102, "")
    unknown = row_of(Source(monkeypatch, 100), replace(NOTE, target_end=-1))
    assert (unknown.missing, unknown.is_complete) == (-1, False)


def test_a_copy_that_goes_on_is_refused_and_other_writers_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, 100, COPY)
    source.grows = [COPY]
    with pytest.raises(Refused) as caught:
        examined(source)
    assert caught.value.ref == "copy-back-goes-on"
    clients = Source(monkeypatch, 100, *[COPY] * 4)
    clients.grows = [7]
    assert row_of(clients).complete_to == 104


def test_an_open_transaction_at_the_source_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, 100, *[COPY] * 4)
    source.transactions = {KEY: OpenTransaction(102, 9, 1, "till")}
    assert row_of(source).waits_for == OpenTransaction(102, 9, 1, "till")


def test_a_promoted_group_stands_at_the_source_where_its_promote_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, 100, *[COPY] * 4)
    source.positions = {"billing": {KEY: CommittedOffset(60, ""), ("other", 0): CommittedOffset(1, "")}}
    report = examined(source, replace(NOTE, groups={"billing": 7}, more_groups=2))
    (group,) = report.groups
    assert (group.group, group.promoted_ms, group.offsets) == ("billing", 7, {"t": {0: 60}})
    assert report.more_groups == 2


def test_a_held_group_is_named_also_where_the_notes_had_no_room_and_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch, 100, *[COPY] * 4)
    here = {KEY: CommittedOffset(60, "")}
    source.positions = {"billing": here, "unnamed": here, "elsewhere": {("other", 0): CommittedOffset(1, "")}}
    source.held = {"billing": True, "unnamed": True, "elsewhere": True, "rolled-back": False}
    report = examined(source, replace(NOTE, groups={"billing": 7}, more_groups=2))
    assert [(each.group, each.promoted_ms, each.held) for each in report.groups] == [
        ("billing", 7, True), ("unnamed", 0, True)
    ]  # fmt: skip
    assert report.more_groups == 1

    class Hold:
        def __init__(self, _: object, group: str) -> None:
            self._group = group

        async def release(self) -> None:
            source.held[self._group] = False

    monkeypatch.setattr(target_lost, "GroupHold", Hold)
    released = asyncio.run(release_groups(cast("Any", source), report))
    assert [each.held for each in released.groups] == [False, False]
    assert source.held["elsewhere"]


def test_topics_of_the_same_transactions_are_whole_as_of_their_oldest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of till write t and u; those of copier write v, and commit offsets of group copiers."""
    source = Source(monkeypatch, 100, *[COPY] * 4)
    till = replace(NOTE, transactional_ids=("till",), coupled_topics=("t", "u"))
    late = replace(till, target_end=110, fresh_ms=5_000, transactional_ids=("held", "till"), more_transactional_ids=3)
    copier = replace(NOTE, transactional_ids=("copier",), coupled_topics=("v",), coupled_groups=("copiers",))
    first, second = examined(source, till, u=late, v=copier, plain=NOTE).units
    assert (first.topics, first.groups, first.transactional_ids) == (("t", "u"), (), ("held", "till"))
    assert (first.more_transactional_ids, first.whole_ms) == (3, 5_000)
    assert (second.topics, second.groups, second.transactional_ids) == (("v",), ("copiers",), ("copier",))
    assert second.whole_ms == 9_000
    assert examined(source, till).units[0].whole_ms == 0, "nobody looked at topic u"


def test_a_group_joins_the_topics_of_its_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, 100, *[COPY] * 4)
    one, other = (
        replace(NOTE, transactional_ids=(name,), coupled_topics=(topic,), coupled_groups=("copiers",))
        for name, topic in (("x-1", "t"), ("x-2", "u"))
    )
    (unit,) = examined(source, one, u=other).units
    assert (unit.topics, unit.transactional_ids) == (("t", "u"), ("x-1", "x-2"))


def test_a_log_end_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, 100)
    source.end_error = Code.LEADER_NOT_AVAILABLE
    with pytest.raises(Unreachable) as caught:
        examined(source)
    assert caught.value.ref == "no-log-end"


def test_notes_are_read_from_the_links_group(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    other = ("u", 0)
    kept = {KEY: CommittedOffset(100, encode_note(NOTE)), other: CommittedOffset(3, "somebody's own metadata")}
    source.positions = {"kmigrate-way-back-l": kept}
    assert asyncio.run(read_notes(cast("Any", source), "l", [])) == {KEY: NOTE}
    assert asyncio.run(read_notes(cast("Any", source), "l", ["t"])) == {KEY: NOTE}
    for link, topics in (("l", ["u"]), ("l", ["tt", "t"]), ("m", [])):
        with pytest.raises(Refused) as caught:
            asyncio.run(read_notes(cast("Any", source), link, topics))
        assert caught.value.ref == "no-way-back-note"


@pytest.mark.parametrize("answer", [None, AuthenticationFailed("login-refused", "the broker refuses the login")])
def test_a_target_that_answers_is_not_lost(monkeypatch: pytest.MonkeyPatch, answer: KmigrateError | None) -> None:
    async def reached(_: object) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(target_lost, "reach", reached)
    with pytest.raises(Refused) as caught:
        asyncio.run(refuse_living_target(SETTINGS))
    assert caught.value.ref == "target-not-lost"


def test_a_silent_target_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_: object) -> None:
        raise Unreachable("cluster-unreachable", "no broker answers")

    monkeypatch.setattr(target_lost, "reach", silent)
    asyncio.run(refuse_living_target(SETTINGS))


@pytest.mark.parametrize(
    ("answer", "taken", "stopped", "found"),
    [
        ({ApiKey.PRODUCE: 9}, True, True, ["router-answers"]),
        (AuthenticationFailed("login-refused", "no"), True, True, ["router-answers"]),
        ({ApiKey.WRITE_TXN_MARKERS: 1}, True, False, []),
        (Unreachable("silent", "nothing"), True, False, ["router-answers"]),
        (Unreachable("silent", "nothing"), True, True, ["router-address-taken"]),
        (Unreachable("silent", "nothing"), False, False, []),
    ],
)
def test_a_router_that_answers_at_its_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: Any, taken: bool, stopped: bool, found: list[str]
) -> None:
    async def versions(_: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def takes(_: str) -> bool:
        return taken

    monkeypatch.setattr(target_lost, "api_versions", versions)
    monkeypatch.setattr(target_lost, "takes_connections", takes)
    findings = asyncio.run(
        router_findings({KEY: replace(NOTE, routers={"edge": "host:9092"})}, SETTINGS, stopped=stopped)
    )
    assert [each.ref for each in findings] == found
    if found == ["router-answers"]:
        source = Source(monkeypatch, 100)
        with pytest.raises(Refused):
            asyncio.run(examine_source(cast("Any", source), "l", {KEY: NOTE}, findings))
