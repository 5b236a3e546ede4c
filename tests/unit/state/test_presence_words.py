"""Presences of processes as JSON and back: each presence stands alone, whatever the earlier presences held."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.errors import StateLogBroken
from kmigrate.model.lag import Pace
from kmigrate.model.presences import (
    ControllerPresence,
    FencedProgress,
    MirrorPresence,
    PartitionProgress,
    RouterPresence,
)
from kmigrate.model.record_json import decode_record, encode_record, plain
from kmigrate.state import codec
from kmigrate.state.codec import PresenceReader, PresenceWriter
from kmigrate.state.strays import StrayRecordError

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
