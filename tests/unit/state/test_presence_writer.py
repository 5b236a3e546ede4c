"""What a process says of itself as JSON: as `encode_record` has it, whatever was said before."""

from __future__ import annotations

import json
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.lag import Pace
from kmigrate.model.records import (
    ControllerPresence,
    MirrorPresence,
    PartitionProgress,
    RouterPresence,
    decode_record,
    encode_record,
    plain,
)
from kmigrate.state import codec
from kmigrate.state.codec import PresenceWriter

Progress = dict[str, dict[int, PartitionProgress]]
names, problems = st.sampled_from(["t", 'odd "name', "ü"]), st.sampled_from(["", 'a "quote"', "ä"])
paces = st.builds(Pace, st.integers(0, 3))
progress = st.builds(PartitionProgress, st.integers(0, 9), problem=problems, pace=paces)
topics = st.dictionaries(names, st.dictionaries(st.integers(0, 4), progress, max_size=4))


@given(st.lists(topics, max_size=5))
def test_word_after_word_it_is_what_encode_record_makes_of_it(words: list[Progress]) -> None:
    writer = PresenceWriter()
    for each in words:
        said = MirrorPresence("i", "l", 5, True, 500, each, notes=("n",), problems={"u": "why"})
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
