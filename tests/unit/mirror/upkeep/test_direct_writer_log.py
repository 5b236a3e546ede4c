"""The state log keeps the direct writers of each mirrored topic."""

from __future__ import annotations

import asyncio

from kmigrate.mirror.partition.direct_writers import DirectSeen
from kmigrate.mirror.partition.steps import DirectBatches, Producer
from kmigrate.mirror.upkeep.direct_writer_log import MOST_WRITERS, DirectLog, joined
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import DirectRecord, DirectWriter, TopicRecord, TransactionRecord
from kmigrate.net.clock import monotonic
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING


def write(log: MemoryLog, seen: DirectSeen, partition: int = 0) -> DirectRecord | None:
    asyncio.run(DirectLog(log, "l").write("t", {("t", partition): seen}))  # type: ignore[arg-type]
    return log.state.direct("l", "t")


def noted(*producers: Producer, at_ms: int = 1_000) -> DirectSeen:
    seen = DirectSeen()
    for offset, producer in enumerate(producers):
        seen.note({producer: DirectBatches(2, offset)}, at_ms)
    return seen


def test_what_was_written_once_is_not_counted_again() -> None:
    log, seen = MemoryLog(LINK, PENDING), noted((9, 0))
    for _ in range(2):
        record = write(log, seen)
        assert record is not None
        assert [(each.producer_id, each.records) for each in record.writers] == [(9, 2)]


def test_a_mirror_that_starts_again_adds_to_what_another_one_wrote() -> None:
    log = MemoryLog(LINK, PENDING)
    write(log, noted((9, 0)))
    write(log, noted((9, 0), (8, 0)))
    record = write(log, noted((9, 0)), partition=1)
    assert record is not None
    told = {(each.partition, each.producer_id): each.records for each in record.writers}
    assert told == {(0, 9): 4, (0, 8): 2, (1, 9): 2}


def test_an_identity_that_turns_out_to_be_a_router_s_is_left_out() -> None:
    log = MemoryLog(LINK, PENDING, TransactionRecord("l", "till", 50, 3, 9, 8, ("t",)))
    seen = noted((9, 8), (9, 9))
    record = write(log, seen)
    assert record is not None
    assert [(each.producer_id, each.epoch) for each in record.writers] == [(9, 9)]
    assert list(seen.writers) == [(9, 9)]


def test_a_record_stays_small_and_says_how_many_writers_it_leaves_out() -> None:
    fresh = {
        (0, (number, 0)): DirectWriter(number, 0, 0, 1, number, number, number) for number in range(MOST_WRITERS + 40)
    }
    record = joined(DirectRecord("l", "t"), fresh, 3)
    assert (len(record.writers), record.more) == (MOST_WRITERS, 43)
    assert record.writers[-1].producer_id == MOST_WRITERS + 39, "the newest are kept"


def test_nothing_is_written_of_a_topic_that_is_mirrored_no_more() -> None:
    assert write(MemoryLog(LINK), noted((9, 0))) is None


def test_a_pause_that_is_longer_than_known_is_written_down_soon() -> None:
    log, seen = MemoryLog(LINK, TopicRecord("l", "t", TopicPhase.MIRRORING, 1)), noted((9, 0))
    keeper, lanes = DirectLog(log, "l"), {("t", 0): seen}  # type: ignore[arg-type]

    def due() -> str | None:
        keeper._written["t"] = monotonic() - 5
        return keeper._due(lanes)

    assert due() == "t"
    asyncio.run(keeper.write("t", lanes))
    assert due() is None
    seen.note({(9, 0): DirectBatches(1, 5)}, 1_200)
    assert due() is None, "a busy writer's record is written each half a minute"
    seen.note({(9, 0): DirectBatches(1, 6)}, 9_000)
    assert due() == "t"
