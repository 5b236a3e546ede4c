"""The compared offsets: records that the copy has lost are part of the comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from kmigrate.cluster.client import EARLIEST, LogOffset
from kmigrate.cluster.metadata import Metadata, PartitionInfo, TopicInfo
from kmigrate.errors import ParityMismatch, Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.records import PartitionBarrier, TopicRecord, VerifiedRange
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.stops import AcceptedLoss
from kmigrate.parity.plan import CLEANED, TopicRange
from kmigrate.verify import ranges as ranges_module
from kmigrate.verify.ranges import find_ranges

KEY = ("t", 0)
MIRRORED = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 10})
PROMOTED = TopicRecord(
    "l", "t", TopicPhase.PROMOTED, 1, partitions=1, starts={0: 10}, barrier={0: PartitionBarrier(50, 1)}, promoted_ms=5
)


class Cluster:
    def __init__(self, start: int, end: int, *, partitions: int = 1, topic_id: UUID | None = None) -> None:
        self.start, self.end = start, end
        self.settings = ClusterSettings("c", (("h", 1),))
        parts = {number: PartitionInfo(1, 0, (1,)) for number in range(partitions)}
        self.metadata = Metadata("c", topics={"t": TopicInfo("t", topic_id, parts)})

    async def refresh(self, _: Any) -> None: ...

    async def list_offsets(self, wanted: Mapping[Any, int], **_: Any) -> dict[Any, LogOffset]:
        return {key: LogOffset(0, self.start if at == EARLIEST else self.end, 0) for key, at in wanted.items()}


def compared_range(
    record: TopicRecord, source: Cluster, target: Cluster, *, before: VerifiedRange | None = None, follow: bool = False
) -> TopicRange:
    it, waiting = cast("Any", type("E", (), {"target": target, "log": None})()), cast("Any", None)
    verified = {} if before is None else {KEY: before}
    ranges = asyncio.run(find_ranges(it, cast("Any", source), [record], verified, 1.0, waiting, reached=follow))
    return ranges[0]


@pytest.mark.parametrize("follow", [True, False])
def test_the_beginning_that_a_mirrored_copy_has_lost_is_compared(follow: bool) -> None:
    """Somebody has deleted these records on the target: neither a mirror nor the target does so without a person."""
    got = compared_range(MIRRORED, Cluster(0, 50), Cluster(30, 50), follow=follow)
    assert (got.start, got.end, got.kept) == (10, 50, True)


@pytest.mark.parametrize("follow", [True, False])
def test_so_it_is_where_an_earlier_check_has_found_it_equal(follow: bool) -> None:
    before = VerifiedRange(10, 40, 7, 10, 0)
    lost = compared_range(MIRRORED, Cluster(0, 50), Cluster(30, 50), before=before, follow=follow)
    assert (lost.start, lost.verified_from) == (10, None)
    whole = compared_range(MIRRORED, Cluster(0, 50), Cluster(10, 50), before=before, follow=follow)
    assert (whole.start, whole.verified_from) == (40, 10)


def test_what_the_source_has_deleted_is_compared_by_nobody() -> None:
    got = compared_range(MIRRORED, Cluster(35, 50), Cluster(30, 50))
    assert (got.start, got.end) == (35, 50)


def test_a_promoted_topic_has_its_own_retention() -> None:
    got = compared_range(PROMOTED, Cluster(0, 60), Cluster(30, 90))
    assert (got.start, got.end, got.kept) == (30, 50, False)


@pytest.mark.parametrize("of", [MIRRORED, PROMOTED], ids=["mirrored", "promoted"])
def test_how_far_a_log_cleaner_has_worked_is_known_when_the_topic_is_plain_by_now(of: TopicRecord) -> None:
    """Otherwise a check would report records as extra that the log cleaner removed from the source after the copy."""
    clusters = Cluster(0, 60), Cluster(10, 60)
    assert compared_range(of, *clusters).cleaned_to == 0
    assert compared_range(replace(of, cleaned_to={0: 40}), *clusters).cleaned_to == 40
    assert compared_range(replace(of, compacted=True, cleaned_to={0: 40}), *clusters).cleaned_to == CLEANED


@pytest.mark.parametrize(("first", "verified_from"), [(200, 10), (205, None)])
def test_of_mapped_offsets_the_targets_own_count(
    first: int, verified_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's first records are a hole that no map knows of."""

    async def maps(*_: Any) -> Any:
        return {KEY: OffsetMap([Run(20, 200, 30)])}

    monkeypatch.setattr(ranges_module, "_maps_up_to", maps)
    mapped = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 10}, mapped=True)
    before = VerifiedRange(10, 40, 7, 10, 0)
    got = compared_range(mapped, Cluster(0, 50), Cluster(first, 230), before=before)
    assert got.verified_from == verified_from


MADE, MADE_ANEW = UUID(int=7), UUID(int=8)


def test_a_topic_made_anew_is_not_the_one_that_was_copied() -> None:
    """The new topic is empty, so every comparison would find both sides equal."""
    copied = replace(MIRRORED, source_topic_id=str(MADE))
    with pytest.raises(Refused, match="topic-recreated"):
        compared_range(copied, Cluster(0, 0, topic_id=MADE_ANEW), Cluster(10, 50))
    assert compared_range(copied, Cluster(0, 50, topic_id=MADE), Cluster(10, 50)).end == 50
    assert compared_range(copied, Cluster(0, 50), Cluster(10, 50)).end == 50, "brokers without ids"


def test_a_partition_that_no_mirror_has_taken_up_is_not_left_out_in_silence() -> None:
    with pytest.raises(Refused, match="partitions-not-mirrored"):
        compared_range(MIRRORED, Cluster(0, 50, partitions=2), Cluster(10, 50))
    assert compared_range(MIRRORED, Cluster(0, 50, partitions=2), Cluster(10, 50), follow=True).end == 50
    assert compared_range(PROMOTED, Cluster(0, 60, partitions=2), Cluster(10, 50)).end == 50, "it is its own by now"


def test_what_the_target_holds_behind_the_sources_end_was_written_by_somebody_else() -> None:
    with pytest.raises(ParityMismatch, match="target-ahead"):
        compared_range(MIRRORED, Cluster(0, 50), Cluster(10, 51))
    assert compared_range(PROMOTED, Cluster(0, 60), Cluster(10, 90)).end == 50, "it is written to there"
    accepted = replace(MIRRORED, losses={0: (AcceptedLoss(50, 59, "source-truncated", 5, "me"),)})
    assert compared_range(accepted, Cluster(0, 50), Cluster(10, 60)).end == 50, "left there by a person's word"


def test_a_copy_begun_behind_an_open_transaction_is_not_ahead_of_it() -> None:
    begun = replace(MIRRORED, starts={0: 60})
    assert compared_range(begun, Cluster(0, 50), Cluster(60, 60)).offsets == 0


@pytest.mark.parametrize(("end", "ahead"), [(230, False), (231, True)])
def test_behind_a_mapped_copy_too(end: int, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A map takes records behind its last run for copied records; the source has no such records."""

    async def maps(*_: Any) -> Any:
        made = OffsetMap([Run(20, 200, 30)])
        made.close(end)
        return {KEY: made}

    monkeypatch.setattr(ranges_module, "_maps_up_to", maps)
    mapped = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 10}, mapped=True)
    with pytest.raises(ParityMismatch) if ahead else nullcontext():
        assert compared_range(mapped, Cluster(0, 50), Cluster(200, end)).end == 50
