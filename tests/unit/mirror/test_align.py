"""Where a mirrored partition's log begins on the target: looked at again and again, whatever its start is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from kmigrate.cluster.client import EARLIEST, ClusterClient, LogOffset
from kmigrate.errors import Diverged
from kmigrate.mirror.align import Aligner
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import CopyIdentity, TopicRecord

RECORD = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=3, starts={0: 0, 1: 7, 2: 9})


class Target:
    def __init__(self, *begins: int) -> None:
        self.begins = dict(enumerate(begins))

    async def list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
        assert set(wanted.values()) == {EARLIEST}
        return {key: LogOffset(0, self.begins[key[1]], 0) for key in wanted}

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        self.begins.update(before)
        return {partition: (0, offset) for partition, offset in before.items()}


def aligner(target: Target) -> Aligner:
    return Aligner(cast("ClusterClient", target), CopyIdentity(1, 0, 2, 0), MirrorSettings())


def test_a_log_start_that_a_broker_forgot_is_moved_again() -> None:
    target = Target(0, 7, 0)
    asyncio.run(aligner(target).recheck(RECORD))
    assert target.begins == RECORD.starts


@pytest.mark.parametrize("begins", [(1, 7, 9), (0, 8, 9)])
def test_records_that_somebody_deleted_on_the_target_are_missed_also_where_the_log_began_at_zero(
    begins: tuple[int, int, int],
) -> None:
    with pytest.raises(Diverged, match="log-start-too-high"):
        asyncio.run(aligner(Target(*begins)).recheck(RECORD))
