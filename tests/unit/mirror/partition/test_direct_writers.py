"""A lane remembers the producers that write to the source without a router."""

from __future__ import annotations

from kmigrate.mirror.partition.direct_writers import DirectSeen
from kmigrate.mirror.partition.steps import DirectBatches, Producer

NINE: Producer = (9, 0)


def note(seen: DirectSeen, at_ms: int, offset: int, producer: Producer = NINE, records: int = 1) -> None:
    seen.note({producer: DirectBatches(records, offset)}, at_ms)


def test_the_longest_interval_between_batches_is_kept() -> None:
    seen = DirectSeen()
    for offset, at_ms in enumerate((1_000, 9_000, 10_000)):
        note(seen, at_ms, offset)
    writer = seen.writers[NINE]
    assert (writer.first_ms, writer.last_ms, writer.slowest_ms, writer.unsaved, writer.offset) == (
        1_000, 10_000, 8_000, 3, 2,
    )  # fmt: skip


def test_a_lane_that_stood_still_knows_no_interval() -> None:
    seen = DirectSeen()
    note(seen, 1_000, 0)
    seen.paused(50_000)
    note(seen, 50_000, 1)
    assert seen.writers[NINE].slowest_ms == -1
    note(seen, 53_000, 2)
    assert seen.writers[NINE].slowest_ms == 3_000


def test_an_identity_that_the_state_log_names_is_no_direct_writer_and_the_next_epoch_is() -> None:
    seen = DirectSeen()
    seen.is_routed = lambda producer: producer[0] == 9 and producer[1] <= 4
    note(seen, 1_000, 0, (9, 4))
    assert (seen.writers, seen.newest) == ({}, None)
    note(seen, 1_000, 1, (9, 5))
    assert list(seen.writers) == [(9, 5)]


def test_writers_beyond_the_bound_are_counted() -> None:
    seen = DirectSeen()
    for number in range(100):
        note(seen, 1_000 + number, number, (number, 0))
    assert (len(seen.writers), seen.dropped) == (64, 36)
    assert (99, 0) in seen.writers
