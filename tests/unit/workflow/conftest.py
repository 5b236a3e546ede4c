"""Fixtures for clusters in memory, which serve few APIs; groups have no members unless a test adds members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.committed_offsets import Committed, read_positions
from kmigrate.workflow.base import broker_settings
from kmigrate.workflow.base.broker_settings import BrokerSettings
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.groups import admission, handover, misplaced, readers, uncopied
from kmigrate.workflow.status import group_figures
from kmigrate.workflow.verbs import groups, mirror


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> list[BrokerSettings]:
    """Return the broker settings of source and target, which a test fills in."""
    both: list[BrokerSettings] = [{}, {}]

    async def told(*_: Any) -> tuple[BrokerSettings, BrokerSettings]:
        return both[0], both[1]

    async def told_by_target(*_: Any) -> BrokerSettings:
        return both[1]

    async def none_refused(*_: Any) -> list[Finding]:
        return []

    monkeypatch.setattr(mirror, "creation_findings", none_refused)
    for module in (broker_settings, groups, mirror):
        monkeypatch.setattr(module, "read_both", told)
    monkeypatch.setattr(admission, "read_settings", told_by_target)
    return both


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[GroupMember, ...]]:
    """Return the members by group, the same for both clusters; a test adds members."""
    members: dict[str, tuple[GroupMember, ...]] = {}

    async def told(_: Any, group: str) -> tuple[GroupMember, ...]:
        return members.get(group, ())

    async def states(_: Any, names: Iterable[str]) -> dict[str, GroupState]:
        return {name: GroupState(name, "stable", "classic", members.get(name, ())) for name in names}

    for module in (misplaced, groups, handover):
        monkeypatch.setattr(module, "group_members", told)
    monkeypatch.setattr(misplaced, "describe_groups", states)
    return members


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask clusters in memory by their own methods, which know one group at a time."""

    async def describe(cluster: Any, names: Iterable[str]) -> dict[str, GroupState]:
        states: dict[str, GroupState] = await cluster.describe_groups(list(names))
        return states

    async def positions(cluster: Any, names: Iterable[str]) -> dict[str, Committed]:
        return {name: await read_positions(cluster, name, stable=False) for name in names}

    for module in (readers, group_figures):
        monkeypatch.setattr(module, "describe_groups", describe)
    for reading in (readers, groups, group_figures, misplaced, uncopied):
        monkeypatch.setattr(reading, "read_all_positions", positions)
