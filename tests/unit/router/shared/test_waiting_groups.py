"""Requests of held groups over a real socket: each request is answered in time, without any other event."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import uvloop

from kmigrate.model.routes import GroupRoute
from kmigrate.protocol.codes import code_of
from kmigrate.router.shared.waiting_groups import WaitingGroups
from tests.unit.router.groups.test_handler import COMMIT, FROZEN, Member, later
from tests.unit.router.process.test_passing import scene_of

_HEARTBEAT, _ALL_IS_WELL = 12, 0


def heartbeat(correlation: int, group: bytes) -> bytes:
    body = struct.pack(">hhih", _HEARTBEAT, 0, correlation, -1) + struct.pack(">h", len(group)) + group
    body += struct.pack(">ih", 1, 1) + b"m"
    return struct.pack(">i", len(body)) + body


def test_each_is_answered_in_time_though_nothing_is_heard_of_the_state_log() -> None:
    """A timer may fire early, as uvloop's timers do, and must not leave a request waiting for the next event."""

    async def nobody_is_asked(writer: asyncio.StreamWriter, correlation: int) -> None:
        raise AssertionError("the target heard of a held group")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scene_of(nobody_is_asked, held=("g",)) as scene:
            scene.stage.shared.settings = replace(scene.stage.shared.settings, group_hold_s=0.05)
            await scene.sends(heartbeat(0, b"g"))
            for correlation in range(40):
                begun = loop.time()
                assert await scene.gets(10) == struct.pack(">iih", 6, correlation, _ALL_IS_WELL)
                assert correlation == 0 or loop.time() - begun > 0.03
                await loop.sock_sendall(scene.client, heartbeat(correlation + 1, b"g"))
            assert scene.stage.shared.waiting_groups.waiting({"g", "another"}, loop.time()) == ("g",)

    uvloop.run(scenario())


def test_a_commit_is_held_for_longer_than_other_requests() -> None:
    """librdkafka tells its application the third answer of this kind to one commit."""
    member = Member()
    member.turns(g=FROZEN)
    assert member.commit() is None
    later(member, 2.0)
    assert member.stage.edge.replies == []
    later(member, 2.1)
    answer = member.read(COMMIT)
    assert code_of(answer.topics[0].partitions[0].error_code) == 14
    assert member.fetch() is None
    later(member, 1.1)
    assert len(member.stage.edge.replies) == 2


def test_a_held_commit_goes_on_at_once_with_its_group() -> None:
    member = Member()
    member.turns(g=FROZEN)
    assert member.commit() is None
    member.turns(g=GroupRoute("l"))
    assert code_of(member.read(COMMIT).topics[0].partitions[0].error_code) == 0
    assert member.asked(COMMIT) == [("coordinator", COMMIT)]


def test_who_waits_is_told_for_as_long_as_it_may_come_again_and_its_group_holds() -> None:
    held = WaitingGroups()
    held.asked(["a", "b"], 10.0)
    held.asked(["b"], 50.0)
    assert held.waiting({"a", "b", "c"}, 70.0) == ("a", "b")
    assert held.waiting({"a", "b", "c"}, 71.0) == ("b",)
    assert held.waiting({"a"}, 72.0) == (), "promoted, or forgotten"
