"""A window ends behind a hole, and has no more steps than may leave together."""

from __future__ import annotations

from kmigrate.mirror.partition.steps import Append, Hole, Step
from kmigrate.mirror.partition.window import Window, parts_of


def queue(*sizes: int, at: int = 10, size: int = 100) -> list[Step]:
    """Return steps from an offset on: a batch of so many records for a positive number, else a hole."""
    steps: list[Step] = []
    for count in sizes:
        end = at + abs(count)
        steps.append(Append(at, end, memoryview(bytearray(size)), 1_000) if count > 0 else Hole(at, end))
        at = end
    return steps


def shape(steps: list[Step], *, holes: int = 64, barrier: int | None = None, start: int = 10) -> list[tuple[int, int]]:
    """Return the number of batches of each part, and the end of its hole."""
    parts = parts_of(steps, start, holes=holes, barrier=barrier)
    return [(len(part.appends), part.hole.end) for part in parts]


def test_a_window_ends_behind_the_last_hole_that_may_be_in_it() -> None:
    steps = queue(2, -1, 1, 3, -2, 1, -1, 4)
    assert shape(steps) == [(1, 13), (2, 19), (1, 21)]
    assert shape(steps, holes=1) == [(1, 13)]
    assert shape(steps, holes=2) == [(1, 13), (2, 19)]
    window = Window(parts_of(steps, 10, holes=64), 3)
    assert (window.end, [append.start for append in window.appends]) == (21, [10, 13, 14, 19])


def test_there_is_no_window_without_a_batch_at_its_start_and_a_hole_behind() -> None:
    assert shape(queue()) == shape(queue(1)) == shape(queue(1, 1)) == shape(queue(-1, 1, -1)) == []
    assert shape(queue(1, -1), start=9) == [], "the batch is not the next"


def test_nothing_of_a_window_is_beyond_the_barrier() -> None:
    steps = queue(2, -2, 1, -1)
    assert shape(steps, barrier=12) == [], "at the barrier there is no hole"
    assert shape(steps, barrier=13) == [(1, 13)]
    assert shape(steps, barrier=14) == shape(steps, barrier=15) == [(1, 14)]
    assert shape(steps, barrier=16) == [(1, 14), (1, 16)]


def test_a_window_has_at_most_256_markers_and_1_mib() -> None:
    assert shape(queue(1, -257)) == []
    assert shape(queue(1, -256)) == [(1, 267)]
    assert shape(queue(1, -200, 1, -57)) == [(1, 211)]
    assert shape(queue(*[1] * 200, -1, at=10)) == [(200, 211)]
    assert shape(queue(*[1] * 256, -1, at=10)) == []
    assert shape(queue(1, -1, 1, -1, 1, -1, size=400 << 10)) == [(1, 12), (1, 14)]


def test_a_batch_that_must_go_alone_ends_the_window() -> None:
    steps = queue(1, -1, 2, -1)
    parts = parts_of(steps, 10, holes=64, goes_alone=lambda step: step.end - step.start == 2)
    assert [part.hole for part in parts] == [Hole(11, 12)]
