"""Tests of records that kmigrate did not write, and of presences as bytes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmigrate.errors import StateLogBroken
from kmigrate.model.lag import Pace
from kmigrate.model.offset_map_ledger import ChunkKey, MapChunk, encode_chunk
from kmigrate.model.presences import (
    ControllerPresence,
    FencedProgress,
    MirrorPresence,
    PartitionProgress,
    RouterPresence,
)
from kmigrate.model.record_json import KINDS, decode_record, encode_record, plain
from kmigrate.model.records import LeaseRecord
from kmigrate.records.batch import Batch, assemble, walk
from kmigrate.records.build import one_record_batch
from kmigrate.state import codec
from kmigrate.state.codec import Envelope, PresenceReader, PresenceWriter, StrayRecordError, encode_envelope
from kmigrate.state.fold import Fold, state_producer_id
from kmigrate.state.log import StateLog
from kmigrate.state.offset_maps import OffsetMaps
from kmigrate.state.topics import STATE_TOPIC

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(1 << 63) - 1, 1e308, float("nan"), float("inf")])
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = ["schema", "at", "prev", "nonce", "record", "kind", "instance", "link", "applied", "topics"]
_SHAPED = st.dictionaries(
    st.sampled_from([*_FIELDS, "interval_ms", "active", "name", "clients", "fences", "notes", "upkeep", "limits"]),
    _JSON | st.sampled_from(sorted(KINDS)),
)
_TEXTS = st.one_of(
    _JSON,
    _SHAPED,
    st.fixed_dictionaries({"kind": st.sampled_from(sorted(KINDS))}).flatmap(
        lambda kind: _SHAPED.map(lambda rest: {**rest, **kind})
    ),
).map(lambda value: json.dumps(value).encode())
_NESTED = st.sampled_from([b"[" * 100_000, b'{"kind":' * 5_000, b'{"a":[' * 400 + b"]}" * 400])
_VALUES = st.one_of(st.none(), st.binary(max_size=60), _TEXTS, _NESTED)
_KEYS = st.sampled_from([
    b"", b"lease/w", b"\xff\xfe", b"mirror/l/i", b"router/i", b"controller/i", b"fenced/l/i", b"clock",
    b"u/t/0/1/0", b"u/t/0/99999999999999999999/0", b"u/t/x/y/z",
]) | st.binary(max_size=20)  # fmt: skip


@st.composite
def _batches(draw: st.DrawFn) -> Batch:
    """Return a batch that a broker may hold: a single record, or anything behind a header."""
    offset = draw(st.integers(1, 5))
    if draw(st.booleans()):
        data = one_record_batch(
            draw(_KEYS), draw(_VALUES), timestamp=draw(st.integers(-1, 1 << 62)), producer_id=draw(st.integers(-1, 9)),
            epoch=0, sequence=draw(st.integers(-1, 9)),
            header=draw(st.none() | st.tuples(st.just(b"kmigrate"), st.binary(max_size=20) | _TEXTS)),
        )  # fmt: skip
    else:
        data = assemble(
            draw(st.binary(max_size=80)), count=draw(st.integers(0, 7)) or 1, attributes=draw(st.integers(0, 127)),
            base_timestamp=draw(st.integers(-1, 1 << 62)), max_timestamp=draw(st.integers(-1, 1 << 62)),
        )  # fmt: skip
    data[0:8] = offset.to_bytes(8, "big")
    batch = next(walk(memoryview(data)))
    return replace(batch, attributes=batch.attributes | draw(st.sampled_from([0, 0, 0, 0x10, 0x20])))


def _valid(offset: int, prev: str, term: int) -> Batch:
    text = encode_envelope(Envelope(offset, prev, f"n{offset}", LeaseRecord("w", "me", term)))
    data = one_record_batch(
        b"lease/w", text, timestamp=1, producer_id=state_producer_id(STATE_TOPIC), epoch=0, sequence=offset
    )
    data[0:8] = offset.to_bytes(8, "big")
    return next(walk(memoryview(data)))


@settings(max_examples=150, deadline=None)
@given(_batches())
def test_the_state_log_is_read_on_behind_anything_that_kmigrate_did_not_write(stray: Batch) -> None:
    fold = Fold(state_producer_id(STATE_TOPIC))
    fold.take(_valid(0, "", 1))
    fold.take(replace(stray, base_offset=1))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 1)
    at = fold.next_offset
    assert fold.sequence == 1
    fold.take(_valid(at, fold.last_nonce, 2))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)


def _log() -> StateLog:
    return StateLog(SimpleNamespace(settings=None))  # type: ignore[arg-type]


def _words() -> list[Any]:
    return [
        RouterPresence("i", "r1", 5, 500),
        ControllerPresence("i", 5, True, 500),
        MirrorPresence("i", "l", 5, True, 500),
        FencedProgress("i", "l", 6),
    ]


def _said(value: bytes | None, key: bytes, offset: int = 7) -> Batch:
    data = one_record_batch(key, value, timestamp=1, producer_id=-1, epoch=-1, sequence=-1)
    data[0:8] = offset.to_bytes(8, "big")
    return next(walk(memoryview(data)))


@settings(max_examples=150, deadline=None)
@given(_batches())
@example(_said(b'{"kind": ["RouterPresence"]}', b"router/i"))
def test_words_are_heard_behind_anything_that_no_process_said(stray: Batch) -> None:
    log, writer = _log(), PresenceWriter()
    for word in _words():
        log._take_presence(_said(writer.write(word), word.key.encode()))
    log._take_presence(stray)
    assert len([*log.alive(RouterPresence, 60), *log.alive(ControllerPresence, 60), *log.alive(MirrorPresence)]) <= 3
    for word in _words():
        log._take_presence(_said(writer.write(word), word.key.encode()))
    assert [word.instance for word in log.alive(RouterPresence, 60)].count("i") == 1


@pytest.mark.parametrize(
    "value",
    [
        b'{"kind": "RouterPresence", "instance": "i", "name": "r", "applied": 1, "interval_ms": %d}' % 10**400,
        b'{"kind": "RouterPresence", "instance": "i", "name": "r", "applied": 1, "interval_ms": 0}',
        b'{"kind": "RouterPresence", "instance": "i", "name": "r", "applied": true, "interval_ms": 500}',
        b'{"kind": "RouterPresence", "instance": "other", "name": "r", "applied": 1, "interval_ms": 500}',
        b'{"kind": "RouterPresence", "instance": "i", "name": "\\ud800", "applied": 1, "interval_ms": 500}',
        b'{"kind": "RouterPresence", "instance": "i", "name": "r", "applied": 1, "interval_ms": 500, "clients": "abc"}',
        b'{"kind": "LeaseRecord", "what": "w", "holder": "h", "term": 1}',
        b'{"kind": [], "instance": "i"}',
        b"[" * 100_000,
    ],
)
def test_a_word_that_no_process_said_is_counted_and_named(value: bytes) -> None:
    log = _log()
    log._take_presence(_said(value, b"router/i"))
    strays = log.strays()["__kmigrate_presence"]
    assert not log.presence
    assert (strays.count, strays.offset) == (1, 7)
    assert "1 records that kmigrate did not write" in strays.text("__kmigrate_presence")


def test_a_word_of_a_kind_that_is_not_known_yet_is_no_stray() -> None:
    log = _log()
    log._take_presence(_said(b'{"kind": "OfANewerVersion"}', b"newer/i"))
    assert not log.strays()["__kmigrate_presence"].count


class _OneTopic:
    """A cluster with nothing but the map topic; the test gives batches to the reader."""

    async def topic(self, _: str) -> None:
        return None


@settings(max_examples=150, deadline=None)
@given(_batches())
def test_offset_maps_are_read_on_behind_anything_that_kmigrate_did_not_write(stray: Batch) -> None:
    maps = OffsetMaps(_OneTopic())  # type: ignore[arg-type]
    key = ChunkKey("u", "t", 0, 1, 3)
    maps._take(_said(encode_chunk(MapChunk("id", b"")), str(key).encode()))
    maps._take(stray)
    maps.folded("u", "t", 0, "id", 0)
    assert 4 <= maps.next_number("u", "t", 0, term=1) < 1 << 63


@pytest.mark.parametrize("runs", ["", "AAAA", "gICAgICAgICAgA==", "/////w=="])
def test_runs_that_are_none_are_strays_and_never_folded(runs: str) -> None:
    maps = OffsetMaps(_OneTopic())  # type: ignore[arg-type]
    body = json.dumps({"schema": 1, "target_topic_id": "id", "runs": runs}).encode()
    maps._take(_said(body, b"u/t/0/1/0"))
    maps.folded("u", "t", 0, "id", 0)
    asyncio.run(maps.read_to_end())


Progress = dict[str, dict[int, PartitionProgress]]
names, problems = st.sampled_from(["t", 'odd "name', "ü"]), st.sampled_from(["", 'a "quote"', "ä"])
paces = st.builds(Pace, st.integers(0, 3))
progress = st.builds(PartitionProgress, st.integers(0, 9), problem=problems, pace=paces)
topics = st.dictionaries(names, st.dictionaries(st.integers(0, 4), progress, max_size=4))


@given(st.lists(st.tuples(st.booleans(), topics), max_size=5))
def test_word_after_word_it_is_what_encode_record_makes_of_it(words: list[tuple[bool, Progress]]) -> None:
    writer = PresenceWriter()
    for fenced, each in words:
        whole = MirrorPresence("i", "l", 5, True, 500, each, notes=("n",), problems={"u": "why"})
        said = FencedProgress("i", "l", 5, each) if fenced else whole
        told = json.loads(writer.write(said))
        assert told == encode_record(said)
        assert decode_record(told) == said


def test_others_are_written_as_they_are() -> None:
    for said in (RouterPresence("i", "r", 5, 500), ControllerPresence("i", 5, True, 500)):
        assert json.loads(PresenceWriter().write(said)) == encode_record(said)


def test_words_for_a_partition_are_made_once_while_it_is_the_same_value() -> None:
    one, two = PartitionProgress(1), PartitionProgress(2)
    writer = PresenceWriter()
    with mock.patch.object(codec, "plain", wraps=plain) as made:
        for second in (two, two, PartitionProgress(3)):
            writer.write(MirrorPresence("i", "l", 5, True, 500, {"t": {0: one, 1: second}}))
        assert made.call_count == 3
        writer.write(MirrorPresence("i", "l", 5, True, 500, {}))
        writer.write(MirrorPresence("i", "l", 5, True, 500, {"t": {0: one}}))
        assert made.call_count == 4, "what is not said any more is not kept"


def word(each: Progress, instance: str = "i") -> MirrorPresence:
    return MirrorPresence(instance, "l", 5, True, 500, each)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), topics), max_size=8))
def test_word_after_word_each_is_read_as_if_it_were_the_first(words: list[tuple[str, bool, Progress]]) -> None:
    reader = PresenceReader()
    for instance, fenced, each in words:
        said = FencedProgress(instance, "l", 5, each) if fenced else word(each, instance)
        assert reader.read(PresenceWriter().write(said)) == said


def test_what_is_said_again_is_the_very_same_value() -> None:
    reader = PresenceReader()

    def heard(each: Progress) -> MirrorPresence:
        read = reader.read(PresenceWriter().write(word(each)))
        assert isinstance(read, MirrorPresence)
        return read

    resting, moving = PartitionProgress(1), PartitionProgress(2)
    first = heard({"t": {0: resting, 1: moving}, "u": {0: resting}})
    second = heard({"t": {0: resting, 1: PartitionProgress(3)}, "u": {0: resting}})
    assert second.topics["t"][0] is first.topics["t"][0]
    assert second.topics["t"][1] == PartitionProgress(3)
    assert second.topics["u"] is first.topics["u"]
    assert first.topics["t"][1] == moving, "what was handed out stays as it was"


@pytest.mark.parametrize(
    "value",
    [
        *(b"[]", b"7", b"null", b'{"kind":"Other"}', b'{"kind":"MirrorPresence"}', b"{", b"\xff"),
        *(
            PresenceWriter().write(word({}))[:-3] + topics + b"}"
            for topics in (b"7", b'{"t":7}', b'{"t":null}', b'{"t":{"0":null}}', b'{"t":{"5":null}}', b'{"t":{"0":7}}')
        ),
        *(
            PresenceWriter().write(word({}))[:-3] + b'{"t":' + partitions + b"}}"
            for partitions in (b'{"x":{"position":1}}', b'{"0":{"position":"1"}}')
        ),
    ],
)
def test_what_cannot_be_read_is_refused_and_what_comes_then_is_read(value: bytes) -> None:
    reader = PresenceReader()
    good = word({"t": {0: PartitionProgress(1)}})
    reader.read(PresenceWriter().write(good))
    with pytest.raises((StateLogBroken, StrayRecordError, ValueError)):
        reader.read(value)
    assert reader.read(PresenceWriter().write(good)) == good


def test_nothing_is_kept_of_who_is_gone() -> None:
    reader = PresenceReader()
    said = word({"t": {0: PartitionProgress(1)}})
    before = reader.read(PresenceWriter().write(said))
    reader.forget(said)
    after = reader.read(PresenceWriter().write(said))
    assert isinstance(before, MirrorPresence)
    assert isinstance(after, MirrorPresence)
    assert after.topics["t"][0] is not before.topics["t"][0]
