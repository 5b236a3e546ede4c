"""What a copier makes of a source that says less than it said before."""

from __future__ import annotations

from typing import cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror import reading as module
from kmigrate.mirror.copier import Copier, MirroredTopic
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.lane import Lane
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.protocol.hot import FetchedPartition, FetchPartition

KEY = ("t", 0)
CUT = FetchedPartition("t", 0, 0, 5, 5, 0, (), -1, memoryview(b""), diverging=(3, 5))
NOTHING_NEW = FetchedPartition("t", 0, 0, 10, 10, 0, (), -1, memoryview(b""))


class Scene:
    """A copier whose lane has read up to offset 10, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        nowhere = cast("ClusterClient", None)
        self.copier = Copier(nowhere, nowhere, CopyIdentity(1, 0, 2, 0), cast("HoleMaker", None), MirrorSettings())
        self.copier.assign([MirroredTopic("t", "", "", {0: 0})])
        self.lane: Lane = self.copier.lanes[KEY]
        self.lane.recovered(10, 0, 10)
        monkeypatch.setattr(self.copier, "_attend", lambda lane, told: None)  # recovery is the lane's own affair

    def answer(self, part: FetchedPartition, after_s: float = 0.0) -> None:
        self.now += after_s
        self.copier._reader.take({KEY: FetchPartition("t", 0, 10, 1)}, [part])


def test_a_source_that_ends_too_early_stops_the_partition_only_if_it_says_so_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    for after_s in (0.0, 1.0):
        scene.answer(CUT, after_s)
        assert not scene.lane.must_recover
        assert scene.lane.reading_trouble.startswith("source-truncated")
    scene.answer(CUT, 1.1)
    assert scene.lane.must_recover
    scene.lane.recovered(10, 0, 10)
    assert scene.lane.problem.startswith("source-truncated")


def test_a_broker_that_was_behind_for_a_moment_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for part in (CUT, NOTHING_NEW, CUT, NOTHING_NEW, CUT):
        scene.answer(part, 1.5)
    assert not scene.lane.must_recover
    assert not scene.lane.stopped
