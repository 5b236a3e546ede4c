"""Which offsets are compared: nothing that the copy has lost is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from kmigrate.cli import compared
from kmigrate.cluster.client import EARLIEST, LogOffset
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.offsetmap import OffsetMap, Run
from kmigrate.model.records import PartitionBarrier, TopicRecord, VerifiedRange
from kmigrate.parity.plan import TopicRange

KEY = ("t", 0)
MIRRORED = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 10})
PROMOTED = TopicRecord(
    "l", "t", TopicPhase.PROMOTED, 1, partitions=1, starts={0: 10}, barrier={0: PartitionBarrier(50, 1)}, promoted_ms=5
)


class Cluster:
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    async def refresh(self, _: Any) -> None: ...

    async def list_offsets(self, wanted: Mapping[Any, int], **_: Any) -> dict[Any, LogOffset]:
        return {key: LogOffset(0, self.start if at == EARLIEST else self.end, 0) for key, at in wanted.items()}


def compared_range(
    record: TopicRecord, source: Cluster, target: Cluster, *, before: VerifiedRange | None = None, follow: bool = False
) -> TopicRange:
    it, waiting = cast("Any", type("E", (), {"target": target, "log": None})()), cast("Any", None)
    verified = {} if before is None else {KEY: before}
    ranges = asyncio.run(
        compared.ranges_of(it, cast("Any", source), [record], verified, 1.0, waiting, reached=follow)
    )
    return ranges[0]


@pytest.mark.parametrize("follow", [True, False])
def test_the_beginning_that_a_mirrored_copy_has_lost_is_compared(follow: bool) -> None:
    """Somebody has deleted records there: neither a mirror nor its target does so by itself."""
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


@pytest.mark.parametrize(("first", "verified_from"), [(200, 10), (205, None)])
def test_of_mapped_offsets_the_targets_own_count(
    first: int, verified_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's first records are a hole that no map knows of."""

    async def maps(*_: Any) -> Any:
        return {KEY: OffsetMap([Run(20, 200, 30)])}

    monkeypatch.setattr(compared, "_maps_up_to", maps)
    mapped = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 10}, mapped=True)
    before = VerifiedRange(10, 40, 7, 10, 0)
    got = compared_range(mapped, Cluster(0, 50), Cluster(first, 230), before=before)
    assert got.verified_from == verified_from
