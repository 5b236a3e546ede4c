"""Verbs open sources with a short patience, and name the source that they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.errors import Unreachable
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow.base import connections as estates
from kmigrate.workflow.base.connections import Connections

LINK = LinkRecord("l", "u", ClusterRef("old", "h:1"), ClusterRef("new", "h:2", "target-id"), 1)


class Cluster:
    """A cluster that answers with its id; the cluster `old` answers only while `awake` is true."""

    awake = False

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.metadata = SimpleNamespace(cluster_id="")

    async def refresh(self, _: Any) -> None:
        if self.settings.name == "old" and not self.awake:
            await asyncio.Event().wait()
        self.metadata = SimpleNamespace(cluster_id=f"id of {self.settings.name}")


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    monkeypatch.setattr(estates, "ClusterClient", Cluster)
    monkeypatch.setattr(estates, "Admin", lambda _: None)
    monkeypatch.setattr(estates, "StateLog", lambda _: None)
    monkeypatch.setattr(estates, "PATIENCE_S", 0.01)
    return Connections(lambda name: ClusterSettings(name, (("h", 1),)), "new")


def test_a_source_that_says_nothing_is_unreachable_when_nobody_would_wait_any_longer(connections: Connections) -> None:
    """A source that accepts connections without answering is unreachable after the patience of a person.

    A request itself would wait half a minute for its answer.
    """
    with pytest.raises(Unreachable) as caught:
        asyncio.run(connections.source(LINK))
    assert caught.value.ref == "cluster-unreachable"
    assert "cluster old" in caught.value.what and "within 0.01 s" in caught.value.what
    assert "[clusters.old]" in caught.value.next_step


def test_it_is_told_which_source_is_asked_as_long_as_it_is(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    @contextmanager
    def asking(text: str) -> Iterator[None]:
        told.append(text)
        yield
        told.append("answered")

    monkeypatch.setattr(Cluster, "awake", True)
    connections.asking = asking
    opened = [asyncio.run(connections.source(LINK)) for _ in range(2)]
    assert cast("Any", opened[1][0]).metadata.cluster_id == "id of old"
    assert told == ["asking source old", "answered"]
