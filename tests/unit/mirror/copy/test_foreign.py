"""Records of another writer behind an idle copy are found by a look at the written log's end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy import foreign as module
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.foreign import ForeignWatch, foreign_batch
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.protocol.hot import FetchedPartition
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched
from tests.unit.mirror.partition.test_lane import lane, send


class Written:
    """The written cluster, which answers each request for log ends with the given ends."""

    def __init__(self, *ends: int, error: int = 0) -> None:
        self.ends, self.error = ends, error
        self.asked: list[tuple[str, int]] = []

    async def log_ends(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogOffset]:
        self.asked = list(keys)
        if not self.ends:
            raise Unreachable("no-answer", "the cluster is away")
        return {key: LogOffset(self.error, end, 0) for key, end in zip(self.asked, self.ends, strict=True)}

    def leader(self, topic: str, partition: int) -> int:
        return 1


def looked(written: Written, *lanes: Lane) -> int:
    """Look one time; return the number of calls for a look at the clusters."""
    client = cast("ClusterClient", written)
    context = CopyContext(client, client, CopyIdentity(7, 0), cast("HoleMaker", None), MirrorSettings())
    for number, each in enumerate(lanes):
        context.lanes["t", number] = each
    before = context.signals.look_now
    asyncio.run(ForeignWatch(context).look())
    return int(context.signals.look_now is not before)


def test_a_lane_at_rest_reads_the_tail_if_the_log_ends_beyond_its_position() -> None:
    it = lane(5, 100)
    assert looked(Written(6), it) == 1
    assert it.must_recover
    assert it.report.trouble == "the written log ends at 6, beyond the position 5"


@pytest.mark.parametrize("written", [Written(5), Written(4), Written(6, error=6), Written()])
def test_a_log_that_does_not_end_beyond_the_position_or_cannot_be_read_changes_nothing(written: Written) -> None:
    it = lane(5, 100)
    assert looked(written, it) == 0
    assert it.state is LaneState.PRIMING


def test_a_lane_with_a_batch_in_flight_is_not_asked_for() -> None:
    busy, idle, written = lane(0, 100, batch(0, 1)), lane(0, 100), Written(0)
    send(busy)
    looked(written, busy, idle)
    assert len(written.asked) == 1


def test_a_lane_that_wrote_during_the_look_is_left_alone() -> None:
    it = lane(0, 100, batch(0, 1))

    class Slow(Written):
        async def log_ends(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogOffset]:
            sent = send(it)
            it.answered(sent.step, 0, 0)
            return await super().log_ends(keys)

    assert looked(Slow(1), it) == 0
    assert (it.state, it.target.position) == (LaneState.PIPING, 1)


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (batch(5, 1, producer=4242) + batch(6, 1, producer=77), "offset 5 holds a batch of producer 4242"),
        (batch(3, 3, producer=4) + batch(6, 2, producer=-1), "offset 6 holds a batch of producer -1"),
        (batch(5, 1, producer=4, attributes=CONTROL | TRANSACTIONAL) + batch(6, 1, producer=77), ""),
        (b"", ""),
    ],
)
def test_the_first_batch_of_another_writer_from_the_position_on_is_named(
    monkeypatch: pytest.MonkeyPatch, log: bytes, text: str
) -> None:
    async def fetch_one(*_: object, **__: object) -> FetchedPartition:
        return fetched(log)

    monkeypatch.setattr(module, "fetch_one", fetch_one)
    assert asyncio.run(foreign_batch(cast("ClusterClient", Written(9)), lane(5, 100))) == text


def test_a_log_that_cannot_be_read_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch_one(*_: object, **__: object) -> FetchedPartition:
        raise Unreachable("no-answer", "the cluster is away")

    monkeypatch.setattr(module, "fetch_one", fetch_one)
    assert asyncio.run(foreign_batch(cast("ClusterClient", Written(9)), lane(5, 100))) == ""
