"""Clusters in memory serve few APIs: groups have no members at the wrong cluster, unless a test names some."""

from __future__ import annotations

from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember
from kmigrate.workflow import misplaced, status


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[GroupMember, ...]]:
    """Members by group, whichever cluster is asked; a test adds to it."""
    members: dict[str, tuple[GroupMember, ...]] = {}

    async def told(_: Any, group: str) -> tuple[GroupMember, ...]:
        return members.get(group, ())

    for module in (misplaced, status):
        monkeypatch.setattr(module, "group_members", told)
    return members
