"""Fixtures for clusters in memory, which serve few APIs; groups have no members unless a test adds members."""

from __future__ import annotations

from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember
from kmigrate.workflow.base import broker_settings
from kmigrate.workflow.base.broker_settings import BrokerSettings
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.groups import admission, handover, misplaced
from kmigrate.workflow.status import snapshot as status
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

    for module in (misplaced, status, groups, handover):
        monkeypatch.setattr(module, "group_members", told)
    return members
