"""The map topic translates every record of the target, at any moment of any history."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kmigrate.errors import StateLogBroken
from kmigrate.model import offset_map_ledger
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.offset_map_ledger import (
    ChunkKey,
    MapChunk,
    MapLedger,
    decode_chunk,
    encode_chunk,
    fold_chunks,
    parse_key,
)

TOPIC_ID = "T1"
whose = st.sampled_from((0, 0, 0, 0, 1, 2))
"""Mostly the owner of the lease, sometimes an earlier owner."""
gaps = st.sampled_from((0, 1, 1, 3))


class Writers(RuleBasedStateMachine):
    """Successive lease terms over a compacted topic; an owner that lost the lease may still write to the topic.

    Within a term the owner may break off at any write and begin anew, with a ledger made from the stored chunks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, MapChunk] = {}
        self.log: list[int] = []
        self.ledgers: list[MapLedger] = []
        self.numbers: dict[int, int] = {}
        """The number behind the highest number ever written, by term."""
        self.storing: tuple[MapLedger, int] | None = None
        """The owner's write that is in the topic, but that the owner has not heard of yet."""
        self.begin(1)

    def folded(self, before: tuple[int, int] | None = None) -> OffsetMap:
        chunks = ((parse_key(key), chunk) for key, chunk in self.store.items())
        made = fold_chunks((c for c in chunks if before is None or c[0].place < before), TOPIC_ID)
        made.close(len(self.log))
        return made

    def begin(self, term: int) -> None:
        self.storing = None if self.ledgers and term == self.ledgers[-1].begins[0] else self.storing
        self.ledgers.append(
            MapLedger(
                "uuid",
                "t",
                0,
                term=term,
                number=self.numbers.get(term, 0),
                target_topic_id=TOPIC_ID,
                stored=self.folded(),
            )
        )

    def writer(self, which: int) -> MapLedger:
        """Return a ledger that may still write: within a term only the newest ledger may."""
        newest = {it.begins[0]: it for it in self.ledgers}
        return list(newest.values())[-1 - which % len(newest)]

    def put(self, ledger: MapLedger) -> None:
        ledger.written(self.begin_to_put(ledger))

    def begin_to_put(self, ledger: MapLedger, records: int | None = None) -> int:
        token, chunks = ledger.unwritten()
        for key, chunk in chunks[:records]:
            self.numbers[key.term] = max(self.numbers.get(key.term, 0), key.number + 1)
            if chunk is None:
                self.store.pop(str(key), None)
            else:
                self.store[str(key)] = decode_chunk(str(key), encode_chunk(chunk))
        return token

    @rule()
    def take_over(self) -> None:
        self.begin(self.ledgers[-1].begins[0] + 1)

    @rule()
    def begin_anew_under_the_same_term(self) -> None:
        """A stopped partition is resumed, or the process lost its connections: the lease stays the same."""
        self.begin(self.ledgers[-1].begins[0])

    @rule(which=whose, runs=st.lists(st.tuples(gaps, st.integers(1, 4)), min_size=1, max_size=9))
    def plan(self, which: int, runs: list[tuple[int, int]]) -> None:
        ledger = self.writer(which)
        for gap, count in runs:
            ledger.plan(max(0, ledger.map.source_end) + gap, max(0, ledger.map.target_end), count)

    @rule(which=whose)
    def write(self, which: int) -> None:
        ledger = self.writer(which)
        if self.storing is None or self.storing[0] is not ledger:  # a lane has a single store request open at a time
            self.put(ledger)

    @rule(which=whose, records=st.integers(1, 3))
    def write_and_break_off(self, which: int, records: int) -> None:
        """Write some records; the later records are refused, or the process ends."""
        ledger = self.writer(which)
        if self.storing is None or self.storing[0] is not ledger:
            self.begin_to_put(ledger, records)

    @precondition(lambda self: self.storing is None)
    @rule()
    def begin_to_write(self) -> None:
        """The owner's plans may be cut, and new plans made, before the owner hears that the plans are stored."""
        self.storing = self.ledgers[-1], self.begin_to_put(self.ledgers[-1])

    @precondition(lambda self: self.storing is not None)
    @rule()
    def hear_of_it(self) -> None:
        assert self.storing is not None
        (ledger, token), self.storing = self.storing, None
        ledger.written(token)

    @rule(count=st.integers(1, 30))
    def send(self, count: int) -> None:
        """Send the owner's next batches, as far as their runs are stored."""
        owner = self.ledgers[-1]
        for _ in range(count):
            place = owner.map.to_source(len(self.log))
            if place is None or not place.is_record or not owner.is_stored(place.offset):
                return
            self.log.append(place.offset)

    @rule()
    def recover(self) -> None:
        self.ledgers[-1].cut(len(self.log))

    @precondition(lambda self: self.storing is None and len(self.ledgers) > 1)
    @precondition(lambda self: self.ledgers[-1].map.target_end <= len(self.log))
    @rule()
    def a_late_batch_of_the_owner_before_is_adopted(self) -> None:
        owner, late = self.ledgers[-1], self.ledgers[-2]
        if late.map.target_end <= len(self.log) or list(late.map.runs())[: len(owner.map)] != list(owner.map.runs()):
            return
        place = late.map.to_source(len(self.log))
        assert place is not None
        if late.begins[0] < owner.begins[0]:
            self.put(late)
        elif not late.is_stored(place.offset):
            return
        self.log.append(place.offset)
        owner.adopt(self.folded(owner.begins))
        self.put(owner)

    @invariant()
    def the_stored_map_is_right_for_every_record(self) -> None:
        made = self.folded()
        assert [made.to_target(source) for source in self.log] == [(at, True) for at in range(len(self.log))]
        assert made.target_end == (len(self.log) or -1)


Writers.TestCase.settings = settings(max_examples=200, stateful_step_count=50)


class TestWhateverWritersDoTheStoredMapIsRight(Writers.TestCase):  # type: ignore[valid-type,misc]
    """The same with two runs a chunk, so that short histories have many chunks."""

    @pytest.fixture(autouse=True)
    def _small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(offset_map_ledger, "_RUNS", 2)


def test_a_topic_made_anew_has_a_map_of_its_own() -> None:
    runs = OffsetMap([Run(5, 0, 3)]).encode()
    chunks = [(ChunkKey("u", "t", 0, 1, 0), MapChunk("old", runs))]
    assert len(fold_chunks(chunks, "new")) == 0
    assert list(fold_chunks(chunks, "old").runs()) == [Run(5, 0, 3)]


def test_records_of_somebody_else_in_the_map_topic_are_refused_by_name() -> None:
    for refused in (lambda: parse_key("orders"), lambda: decode_chunk("k", b"{}"), lambda: decode_chunk("k", b"\0")):
        with pytest.raises(StateLogBroken, match="offset map"):
            refused()
    with pytest.raises(StateLogBroken, match="newer"):
        decode_chunk("k", b'{"schema":2}')


def ledger(term: int = 1, stored: OffsetMap | None = None) -> MapLedger:
    return MapLedger("uuid", "t", 0, term=term, target_topic_id=TOPIC_ID, stored=stored or OffsetMap())


def store_of(*ledgers: MapLedger) -> dict[ChunkKey, MapChunk]:
    """Return the topic after each ledger has stored its chunks."""
    store: dict[ChunkKey, MapChunk] = {}
    for each in ledgers:
        keep(store, each)
    return store


def keep(store: dict[ChunkKey, MapChunk], of: MapLedger) -> None:
    token, chunks = of.unwritten()
    store.update({key: chunk for key, chunk in chunks if chunk is not None})
    for key in (key for key, chunk in chunks if chunk is None):
        store.pop(key, None)
    of.written(token)


def test_a_run_that_grew_before_the_next_chunk_began_is_stored_with_its_growth() -> None:
    it = ledger()
    for number in range(512):
        it.plan(number * 10, number, 1)
    store = store_of(it)
    it.plan(5111, 512, 4)
    assert not it.dirty and it.is_stored(5111)
    it.plan(9000, 516, 1)
    assert it.dirty and not it.is_stored(9000)
    keep(store, it)
    assert fold_chunks(store.items(), TOPIC_ID) == it.map
    assert len(store) == 2


def test_a_stored_plan_that_the_log_did_not_take_is_stored_anew_before_another_is_sent() -> None:
    it = ledger()
    for source, target in ((0, 0), (20, 5), (40, 8)):
        it.plan(source, target, 3 + 2 * (source == 0))
    store = store_of(it)
    it.cut(4)
    it.plan(4, 4, 9)
    assert it.dirty and not it.is_stored(4)
    keep(store, it)
    assert list(fold_chunks(store.items(), TOPIC_ID).runs()) == [Run(0, 0, 13)]


def test_plans_that_were_cut_while_they_were_being_stored_are_not_taken_for_stored() -> None:
    """After a barrier inside a merged batch the mirror reads the source again, where a cleaner may have been."""
    ledger = MapLedger("uuid", "t", 0, term=1, target_topic_id=TOPIC_ID, stored=OffsetMap())
    for source, target in ((0, 0), (5, 2), (9, 4)):
        ledger.plan(source, target, 2)
    token, _ = ledger.unwritten()
    ledger.cut(2)
    ledger.plan(6, 2, 1)
    ledger.written(token)
    assert ledger.dirty
    assert not ledger.is_stored(6)


def test_a_later_term_goes_on_in_chunks_of_its_own_and_a_late_write_of_the_one_before_changes_nothing() -> None:
    first = ledger()
    first.plan(0, 0, 5)
    store = store_of(first)
    known = fold_chunks(store.items(), TOPIC_ID)
    known.close(5)
    second = ledger(2, known)
    second.plan(7, 5, 2)
    keep(store, second)
    first.plan(6, 5, 4)
    first.plan(99, 9, 1)
    keep(store, first)
    assert list(fold_chunks(store.items(), TOPIC_ID).runs()) == [Run(0, 0, 5), Run(7, 5, 2)]


def test_a_ledger_that_begins_anew_under_its_own_term_writes_over_none_of_the_chunks_before_it() -> None:
    it = ledger()
    for number in range(1300):  # transactions: a marker after every nine records
        it.plan(number * 10, number * 9, 9)
    store = store_of(it)
    again = MapLedger(
        "uuid", "t", 0, term=1, number=3, target_topic_id=TOPIC_ID, stored=fold_chunks(store.items(), TOPIC_ID)
    )
    again.plan(13_000, 11_700, 9)
    keep(store, again)
    assert [key.number for key in store] == [0, 1, 2, 3]
    assert fold_chunks(store.items(), TOPIC_ID) == again.map
    assert len(again.map) == 1301


@pytest.mark.parametrize("acknowledged", [True, False])
def test_chunks_of_plans_that_were_cut_go_before_others_take_their_place(acknowledged: bool) -> None:
    """A reader could not read old chunks behind a run that starts later in the source.

    The write may end between any two chunks.
    """
    it = ledger()
    for number in range(1300):
        it.plan(number * 10, number, 1)
    token, chunks = it.unwritten()
    store = {key: chunk for key, chunk in chunks if chunk is not None}
    if acknowledged:
        it.written(token)
    it.cut(2)
    it.plan(99_000, 2, 1)
    for key, chunk in it.unwritten()[1]:
        store.pop(key)
        if chunk is not None:
            store[key] = chunk
        made = fold_chunks(store.items(), TOPIC_ID)
        made.close(2)
        assert list(made.runs()) == [Run(0, 0, 1), Run(10, 1, 1)]
    assert len(store) == 1
