"""What a copier makes of a source that says less than it said before."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kmigrate.cluster.client import EARLIEST, ClusterClient, LogOffset
from kmigrate.mirror import copier as module
from kmigrate.mirror.copier import Copier, MirroredTopic
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.lane import Lane
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchedPartition, FetchPartition

KEY = ("t", 0)
CUT = FetchedPartition("t", 0, 0, 5, 5, 0, (), -1, memoryview(b""), diverging=(3, 5))
OUT_OF_RANGE = FetchedPartition("t", 0, Code.OFFSET_OUT_OF_RANGE, -1, -1, -1, (), -1, memoryview(b""))
NOTHING_NEW = FetchedPartition("t", 0, 0, 10, 10, 0, (), -1, memoryview(b""))


class ShortSource:
    """A source whose log ends at 5."""

    async def list_offsets(self, wanted: dict[tuple[str, int], int], **_: object) -> dict[tuple[str, int], LogOffset]:
        return {key: LogOffset(0, 0 if what == EARLIEST else 5, 7) for key, what in wanted.items()}


class Scene:
    """A copier whose lane has read up to offset 10, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        source = cast("ClusterClient", ShortSource())
        self.copier = Copier(source, source, CopyIdentity(1, 0, 2, 0), cast("HoleMaker", None), MirrorSettings())
        self.copier.assign([MirroredTopic("t", "", "", {0: 0})])
        self.lane: Lane = self.copier.lanes[KEY]
        self.lane.recovered(10, 0, 10)

    def answer(self, part: FetchedPartition, after_s: float = 0.0) -> bool:
        self.now += after_s
        return asyncio.run(self.copier._take({KEY: FetchPartition("t", 0, 10, 1)}, [part]))


@pytest.mark.parametrize(("part", "name"), [(CUT, "source-truncated"), (OUT_OF_RANGE, "source-shorter")])
def test_a_source_that_ends_too_early_stops_the_partition_only_if_it_says_so_for_a_while(
    monkeypatch: pytest.MonkeyPatch, part: FetchedPartition, name: str
) -> None:
    scene = Scene(monkeypatch)
    for after_s in (0.0, 1.0):
        assert scene.answer(part, after_s)  # to be asked again
        assert not scene.lane.stopped
        assert scene.lane.trouble.startswith(name)
    scene.answer(part, 1.1)
    assert scene.lane.stopped
    assert scene.lane.problem.startswith(name)


def test_a_broker_that_was_behind_for_a_moment_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for part in (CUT, NOTHING_NEW, CUT, NOTHING_NEW, OUT_OF_RANGE):
        scene.answer(part, 1.5)
    assert not scene.lane.stopped
