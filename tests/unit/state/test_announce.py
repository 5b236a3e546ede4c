"""A presence that is too large for the presence log is reported, and its process still counts as running."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed, Unreachable
from kmigrate.model.presences import (
    ControllerPresence,
    FenceAck,
    GroupReport,
    MirrorPresence,
    PartitionProgress,
    RouterPresence,
)
from kmigrate.model.record_json import decode_record
from kmigrate.model.records import AssignmentRecord, LeaseRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import ProduceAnswer
from kmigrate.records.batch import walk
from kmigrate.records.build import read_single_record
from kmigrate.state.log import Presence, StateLog
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC

PARTITIONS = {p: PartitionProgress(123_456_789, 123_459_999) for p in range(1000)}
WORD = MirrorPresence("me", "l", 7, True, 500, {"t": PARTITIONS}, notes=("n",), shares=True, generation=4)


class SmallLog(StateLog):
    """A state log whose topics accept batches of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(ClusterClient(ClusterSettings("c", ())))
        self._limit = limit
        self.told: list[Presence] = []

    async def _append(self, topic: str, batch: bytearray) -> ProduceAnswer:
        if len(batch) > self._limit:
            return ProduceAnswer(Code.MESSAGE_TOO_LARGE, 0, -1, None)
        for each in walk(memoryview(batch)):
            _, value = read_single_record(each)
            self.told.append(cast("Presence", decode_record(json.loads(value or b""))))
            self._take_presence(each)
        return ProduceAnswer(0, 0, -1, None)

    async def _refresh(self) -> None:
        return


def test_a_mirror_whose_word_is_too_large_is_heard_and_says_why_its_partitions_are_not_told() -> None:
    log = SmallLog(10_000)
    asyncio.run(log.announce(WORD))
    (said,) = log.told
    assert isinstance(said, MirrorPresence)
    assert (said.instance, said.link, said.active, said.shares) == ("me", "l", True, True)
    (note,) = said.notes
    assert note.startswith("presence-too-large: what mirror process me says of 1000 partitions is not told")
    assert PRESENCE_TOPIC in note
    assert log.alive(MirrorPresence) == [said]


def test_a_mirror_whose_word_is_too_large_lets_go_of_nothing_and_is_counted_on_by_no_promote() -> None:
    log = SmallLog(10_000)
    asyncio.run(log.announce(WORD))
    (said,) = log.told
    assert isinstance(said, MirrorPresence)
    assert (said.topics, said.applied, said.generation) == ({}, -1, -1)


def test_a_word_that_fits_is_said_as_it_is() -> None:
    log = SmallLog(8 << 20)
    asyncio.run(log.announce(WORD))
    assert log.told == [WORD]


def test_a_router_whose_word_is_too_large_says_so_at_once_and_acknowledges_nothing() -> None:
    """The promote that waits for this router is given up at once, not only after the fence's timeout."""
    groups = {f"group-{number}": GroupReport(0, ("member",)) for number in range(1000)}
    fences = {"topic/l/t": FenceAck(5, 0)}
    word = RouterPresence("i", "r", 7, 500, fences, connections=9, groups=groups, bootstrap="h:1")
    log = SmallLog(10_000)
    with pytest.raises(Unreachable) as refused:
        asyncio.run(log.announce(word))
    assert refused.value.ref == "presence-too-large"
    (said,) = log.told
    assert isinstance(said, RouterPresence)
    assert (said.instance, said.applied, said.connections, said.bootstrap) == ("i", 7, 9, "h:1")
    assert (said.fences, said.groups) == ({}, {})
    assert said.trouble.startswith("presence-too-large: what router r says is not told")
    assert log.alive(RouterPresence) == [said]


def test_any_other_word_that_is_too_large_is_refused_by_name() -> None:
    word = ControllerPresence("c", 1, True, 500, {f"topic/l/{n}": "mirror at 41 of barrier 57" for n in range(1000)})
    with pytest.raises(Unreachable) as refused:
        asyncio.run(SmallLog(10_000).announce(word))
    assert refused.value.ref == "presence-too-large"
    assert "max.message.bytes" in refused.value.what


def test_a_decision_that_is_too_large_is_refused_with_what_to_do() -> None:
    shares = AssignmentRecord("l", 1, ("me",), {f"t{n}": (0,) for n in range(5000)})
    with pytest.raises(Failed) as refused:
        asyncio.run(SmallLog(10_000).append(lambda _: shares))
    assert refused.value.ref == "state-log-write-refused"
    assert f"to {STATE_TOPIC}: MESSAGE_TOO_LARGE" in refused.value.what
    assert "max.message.bytes" in refused.value.next_step


def test_a_refusal_that_has_nothing_to_do_with_size_does_not_speak_of_it() -> None:
    class Closed(SmallLog):
        async def _append(self, topic: str, batch: bytearray) -> ProduceAnswer:
            return ProduceAnswer(Code.TOPIC_AUTHORIZATION_FAILED, 0, -1, None)

    with pytest.raises(Unreachable) as refused:
        asyncio.run(Closed(1).announce(WORD))
    assert refused.value.ref == "presence-refused"
    with pytest.raises(Failed) as failed:
        asyncio.run(Closed(1).append(lambda _: LeaseRecord("n", "w", 1)))
    for topic, error in ((PRESENCE_TOPIC, refused.value), (STATE_TOPIC, failed.value)):
        assert f"WRITE on topic {topic}" in error.what
        assert f"allow User:ANONYMOUS WRITE on topic {topic}" in error.next_step
        assert "max.message.bytes" not in str(error)
