"""No topic is copied back to its origin while a mirror may still copy the topic."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord
from kmigrate.workflow.verbs import loops, mirror
from tests.fakes.state_log import MemoryLog

THERE = LinkRecord("there", "u", ClusterRef("east", "h:1", "east-id"), ClusterRef("west", "h:2", "west-id"), 1)
COPIED = TopicRecord("there", "t", TopicPhase.MIRRORING, 1)


def cluster(name: str) -> Any:
    settings = SimpleNamespace(name=name, bootstrap_servers=f"{name}:9")
    return SimpleNamespace(settings=settings, metadata=SimpleNamespace(cluster_id=f"{name}-id"))


@pytest.mark.parametrize(
    ("record", "refused"),
    [
        (COPIED, ["mirror-loop"]),
        (replace(COPIED, forgotten_ms=7), ["mirror-loop"]),
        (replace(COPIED, phase=TopicPhase.PROMOTED), []),
    ],
    ids=["copied", "being-forgotten", "promoted"],
)
def test_what_comes_from_the_target_is_not_copied_back_before_its_mirror_has_let_go(
    record: TopicRecord, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def state(_: object) -> Any:
        return MemoryLog(THERE, record).state

    monkeypatch.setattr(loops, "read_state", state)
    found = asyncio.run(loops.loop_findings(cluster("west"), cluster("east"), ["t"]))
    assert [each.ref for each in found] == refused


@pytest.mark.parametrize("phase", [TopicPhase.MIRRORING, TopicPhase.PROMOTED])
def test_an_original_of_another_link_is_known_also_after_its_promote(
    phase: TopicPhase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def state(_: object) -> Any:
        return MemoryLog(THERE, replace(COPIED, phase=phase)).state

    monkeypatch.setattr(loops, "read_state", state)
    known = loops.copied_back_by(cluster("west"), cluster("east"), "t")
    assert asyncio.run(known) == "there"
    assert asyncio.run(loops.copied_back_by(cluster("west"), cluster("east"), "other")) == ""
    assert asyncio.run(loops.copied_back_by(cluster("west"), cluster("south"), "t")) == ""
    advice = asyncio.run(mirror._unless_needed(cluster("west"), cluster("east"), "t"))
    assert advice == "keep topic t on east: link there copies that topic from there to west"
    assert "if no client and no other link" in asyncio.run(
        mirror._unless_needed(cluster("west"), cluster("south"), "t")
    )
