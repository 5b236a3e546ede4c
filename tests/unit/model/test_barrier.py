"""The marks of several witnesses become the newest mark of each producer, even when sequences wrap around."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.barrier import barrier_chunks, merge_marks, sequence_after
from kmigrate.model.ids import SEQUENCES
from kmigrate.model.records import ProducerMark


def test_the_newest_epoch_wins_then_the_newest_sequence() -> None:
    marks = [ProducerMark(1, 0, 90), ProducerMark(1, 1, 3), ProducerMark(1, 1, 7), ProducerMark(2, 0, 5)]
    assert merge_marks(marks) == (ProducerMark(1, 1, 7), ProducerMark(2, 0, 5))


def test_a_wrapped_sequence_is_newer_than_one_just_before_the_wrap() -> None:
    assert sequence_after(3, SEQUENCES - 5)
    assert not sequence_after(SEQUENCES - 5, 3)
    assert merge_marks([ProducerMark(1, 0, SEQUENCES - 5), ProducerMark(1, 0, 3)]) == (ProducerMark(1, 0, 3),)


@given(st.integers(0, SEQUENCES - 1), st.integers(1, SEQUENCES // 2 - 1))
def test_the_order_of_two_different_sequences_is_strict(one: int, step: int) -> None:
    other = (one + step) % SEQUENCES
    assert sequence_after(other, one)
    assert not sequence_after(one, other)
    assert not sequence_after(one, one)


@given(
    st.lists(st.builds(ProducerMark, st.integers(0, 50), st.integers(0, 5), st.integers(0, 1000)), max_size=30),
    st.randoms(),
)
def test_merging_does_not_depend_on_the_order_of_witnesses(marks: list[ProducerMark], random: object) -> None:
    shuffled = sorted(marks, key=lambda m: (m.last_sequence, -m.producer_id))
    assert merge_marks(shuffled) == merge_marks(marks)


def test_chunks_hold_every_mark_once_and_stay_small() -> None:
    wanted = {p: tuple(ProducerMark(i, 0, i) for i in range(7_000)) for p in range(3)}
    chunks = barrier_chunks("l", "t", 4, wanted)
    found: dict[int, tuple[ProducerMark, ...]] = {}
    for chunk in chunks:
        assert sum(len(marks) for marks in chunk.producers.values()) <= 5_000
        for partition, marks in chunk.producers.items():
            found[partition] = found.get(partition, ()) + marks
    assert found == wanted
    assert [c.chunk for c in chunks] == list(range(len(chunks)))
    assert barrier_chunks("l", "t", 4, {}) == []
