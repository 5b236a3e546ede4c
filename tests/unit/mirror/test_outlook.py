"""Whether a topic can have identical offsets, told before anything is written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.mirror import outlook as module
from kmigrate.mirror.outlook import why_mapped
from kmigrate.mirror.settings import MirrorSettings

SETTINGS = MirrorSettings(hole_limit=100, align_limit=1_000)


class _Source:
    """Partitions with their log ends, each with its widest gap."""

    def __init__(self, gaps: dict[int, int]) -> None:
        self.gaps = gaps

    async def list_offsets(self, wanted: Any, **_: Any) -> Any:
        return {key: LogOffset(0, 5_000, 0) for key in wanted}

    async def has_wide_gap(self, _: Any, __: str, partition: int, start: int, end: int, limit: int) -> bool:
        assert (start, end) == (partition, 5_000)
        return self.gaps[partition] > limit


def why(monkeypatch: pytest.MonkeyPatch, gaps: dict[int, int], starts: dict[int, int] | None = None) -> str:
    source = _Source(gaps)
    monkeypatch.setattr(module, "has_wide_gap", source.has_wide_gap)
    return asyncio.run(why_mapped(source, SETTINGS, "t", starts or {p: p for p in gaps}))  # type: ignore[arg-type]


def test_every_partition_of_every_topic_is_probed_for_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is compacted now: a cleaner that worked there once has left its gaps."""
    assert why(monkeypatch, dict.fromkeys(range(40), 100)) == ""
    told = why(monkeypatch, {**dict.fromkeys(range(40), 0), 33: 101})
    assert told == "compaction left gaps in partition 33 that are too wide to be filled"


def test_a_log_that_begins_beyond_the_limit_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    told = why(monkeypatch, {0: 0, 1: 0}, {0: 0, 1: 1_001})
    assert told == "partition 1 begins at 1001; padding ends at 1000"
