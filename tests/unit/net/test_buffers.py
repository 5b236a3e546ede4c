"""Memory of frames: reused only when nobody holds that memory any more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.net.buffers import FrameBuffers

MB = 1 << 20


def test_a_frame_that_nobody_holds_is_filled_again() -> None:
    buffers = FrameBuffers()
    first = buffers.take(4 * MB)
    address = id(first)
    del first
    again = buffers.take(3 * MB)
    assert (id(again), len(again)) == (address, 3 * MB)
    del again
    grown = buffers.take(4 * MB)
    assert (id(grown), len(grown)) == (address, 4 * MB)


def test_a_frame_is_left_alone_while_a_view_of_a_view_of_it_lives() -> None:
    buffers = FrameBuffers()
    frame = buffers.take(MB)
    frame[:4] = b"mine"
    view = memoryview(frame)[:8][:4]
    del frame
    other = buffers.take(MB)
    other[:4] = b"else"
    assert bytes(view) == b"mine"
    del view
    assert buffers.take(MB) is not other


def test_a_much_smaller_frame_gets_memory_of_its_own() -> None:
    buffers = FrameBuffers()
    address = id(buffers.take(4 * MB))
    small = buffers.take(MB)
    assert id(small) != address
    assert len(small) == MB


def test_small_frames_are_not_remembered() -> None:
    buffers = FrameBuffers()
    for size in (1, MB - 1):
        assert len(buffers.take(size)) == size
    assert not buffers._kept


def test_no_more_is_kept_than_was_allowed_and_free_frames_make_room_for_others() -> None:
    buffers = FrameBuffers(4 * MB)
    held = buffers.take(3 * MB)
    assert len(buffers.take(2 * MB)) == 2 * MB, "handed out, though not kept"
    assert [len(kept) for kept, _ in buffers._kept] == [3 * MB]
    del held
    last = buffers.take(MB)
    assert [kept is last for kept, _ in buffers._kept][-1]
    assert sum(capacity for _, capacity in buffers._kept) <= 4 * MB


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=60))
def test_no_two_holders_ever_share_memory(wishes: list[tuple[int, bool]]) -> None:
    buffers = FrameBuffers(20_000, 1)
    held: list[tuple[memoryview, int]] = []
    for number, (size, release) in enumerate(wishes):
        if release and held:
            held.pop(number % len(held))
        frame = buffers.take(size)
        assert len(frame) == size
        frame[:] = bytes([number]) * size
        held.append((memoryview(frame), number))
        del frame
        for view, mark in held:
            assert set(view) == {mark}
