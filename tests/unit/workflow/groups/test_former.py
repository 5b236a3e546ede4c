"""Members that have moved are taken out of the group that they have left; others stay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember
from kmigrate.errors import Unreachable
from kmigrate.model.members import member_mark
from kmigrate.workflow.groups import former
from kmigrate.workflow.groups.former import take_out_former

MOVED, STRANGER = GroupMember("m-1", "shop", "/h"), GroupMember("m-2", "old-shop", "/h")


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Requests that remove members, by member ids."""
    found: list[list[str]] = []

    async def members(client: Any, group: str) -> tuple[GroupMember, ...]:
        if client is None:
            raise Unreachable("broker-unreachable", "source is away")
        return MOVED, STRANGER

    async def remove(_: object, group: str, ids: list[str]) -> None:
        found.append(ids)

    monkeypatch.setattr(former, "group_members", members)
    monkeypatch.setattr(former, "remove_members", remove)
    return found


def test_only_members_that_a_router_has_named_are_taken_out(removed: list[list[str]]) -> None:
    client: Any = object()
    asyncio.run(take_out_former(client, "g", {member_mark("m-1"), member_mark("m-9")}))
    assert removed == [["m-1"]]
    asyncio.run(take_out_former(client, "g", ()))
    assert removed == [["m-1"]]


def test_a_cluster_that_is_away_is_left_alone(removed: list[list[str]]) -> None:
    away: Any = None
    asyncio.run(take_out_former(away, "g", {member_mark("m-1")}))
    assert removed == []
