"""The controller reports each failure that it tries again, by topic or group, and goes on with the other work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from kmigrate.cluster.append import Takes
from kmigrate.errors import Failed, Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import DUTY, ControllerPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    GroupRecord,
    LinkRecord,
    PromotedUnit,
    ProvenTopic,
    Seal,
    TopicRecord,
    TransactionRecord,
)
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.controller.controller import Controller
from kmigrate.workflow.promote import outcome, size_limit
from kmigrate.workflow.promote.outcome import given_up
from tests.fakes.scripted_cluster import FakeAdmin
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING, Stage

TOPIC = TopicRecord("l", "t", TopicPhase.PROMOTE_PENDING, 1)
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTING, 1, mode=GroupMode.FOLLOW)


@dataclass
class Dark:
    """Connections in which the source does not answer."""

    log: MemoryLog
    failure: Exception = field(default_factory=lambda: Unreachable("no-broker", "no broker of s answers"))
    target: Any = None
    target_admin: Any = None

    async def source(self, _: LinkRecord) -> Any:
        raise self.failure

    def waits_for(self, record: TopicRecord | GroupRecord) -> str:
        return Connections.waits_for(cast("Any", self), record)


class Lit:
    """Connections to the clusters of a stage."""

    def __init__(self, stage: Stage) -> None:
        self.log, self.target, self.target_admin = stage.log, stage.target, stage.admin
        self._source = stage.source, stage.source_admin

    async def source(self, _: LinkRecord) -> Any:
        return self._source


async def acted(controller: Controller) -> None:
    """Let the controller look once, finish the started work, and announce its state."""
    controller._act()
    if controller._busy:
        await asyncio.wait(controller._busy.values())
    controller._collect()
    await controller._announce(True)


@pytest.mark.parametrize("record", [TOPIC, GROUP])
def test_a_controller_that_cannot_get_on_says_so_of_each_topic_and_group(record: TopicRecord | GroupRecord) -> None:
    async def scene() -> None:
        connections = Dark(MemoryLog(LINK, record))
        controller = Controller(cast("Any", connections), "c")
        for _ in range(2):
            await acted(controller)
            assert connections.waits_for(record) == "tried again: no-broker: no broker of s answers"
        phase: Any = TopicPhase.MIRRORING if isinstance(record, TopicRecord) else GroupPhase.MIRRORED
        over: Record = replace(record, phase=phase)
        await connections.log.append(lambda _: over)
        await acted(controller)
        assert connections.waits_for(record) == "", "nobody tries it again"
        assert [word.waits for word in connections.log.alive(ControllerPresence)] == [{}]

    asyncio.run(scene())


def test_what_nobody_foresaw_is_told_as_well() -> None:
    async def scene() -> None:
        connections = Dark(MemoryLog(LINK, TOPIC), KeyError("t"))
        await acted(Controller(cast("Any", connections), "c"))
        assert connections.waits_for(TOPIC) == "tried again: internal-error: KeyError('t')"

    asyncio.run(scene())


def test_a_duty_that_ends_by_an_error_is_begun_anew_and_told() -> None:
    async def scene() -> None:
        log = MemoryLog(LINK)
        controller = Controller(cast("Any", Dark(log)), "c")
        begun = 0

        async def work() -> None:
            nonlocal begun
            begun += 1
            if begun == 1:
                raise ValueError("odd answer")
            await asyncio.sleep(60)

        controller._duties = {"watch groups": work}
        controller._keep(True)
        await asyncio.wait(controller._leading.values())
        controller._keep(True)
        await asyncio.sleep(0)
        assert begun == 2 and not controller._leading["watch groups"].done()
        await controller._announce(True)
        [word] = log.alive(ControllerPresence)
        assert word.waits == {
            f"{DUTY}watch groups": "watch groups: begun anew after an error: internal-error: ValueError('odd answer')"
        }
        controller._keep(False)
        await controller._tasks.close()
        assert not controller._leading

    asyncio.run(scene())


FIRST = replace(TOPIC, phase=TopicPhase.PROMOTED, unit=PromotedUnit({"u": ProvenTopic(7)}, ("g",)))
LAST = replace(TOPIC, topic="u", phase=TopicPhase.FENCED, fence_epoch=7, restore_configs={"a": "b"})


@pytest.mark.parametrize(
    "last",
    [LAST, replace(LAST, phase=TopicPhase.PROMOTED, unsettled=True, seal=Seal("", {"gone": "r"}))],
)
def test_what_has_no_way_back_is_flipped_and_settled_also_while_the_source_is_down(last: TopicRecord) -> None:
    """A topic without a way back is flipped and settled while the source is down.

    The steps need no answer of the source, so writers do not wait for the source to return.
    """

    async def scene() -> None:
        connections = Dark(MemoryLog(LINK, FIRST, last), target_admin=FakeAdmin())
        controller = Controller(cast("Any", connections), "c")
        for _ in range(2):
            await acted(controller)
        record = connections.log.state.topic("l", "u")
        assert record is not None
        assert (record.phase, record.unsettled) == (TopicPhase.PROMOTED, False)
        assert connections.target_admin.altered == [("u", {"a": "b"}, ())]

    asyncio.run(scene())


def test_a_group_whose_positions_stand_on_the_target_opens_also_while_the_source_is_down() -> None:
    till = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",), ("g",))
    staged = replace(GROUP, frozen=True, staged=True, written={"t": {0: 5}})

    async def scene() -> None:
        connections = Dark(MemoryLog(LINK, FIRST, till, staged))
        await acted(Controller(cast("Any", connections), "c"))
        group = connections.log.state.group("l", "g")
        assert group is not None
        assert (group.phase, group.frozen, group.written) == (GroupPhase.PROMOTED, False, {"t": {0: 5}})

    asyncio.run(scene())


@pytest.mark.parametrize("after", [given_up(PENDING, "cancelled: taken back by ann"), None])
def test_what_is_not_asked_for_any_more_leaves_its_turn_and_its_unit_at_once(after: TopicRecord | None) -> None:
    """A cancelled or deleted promote gives up its turn and its place in the unit at once.

    Otherwise other topics would wait for the end of its turn. A new promote would wait for its old place in the line.
    """

    async def scene() -> None:
        stage = Stage()
        connections = Lit(stage)
        controller = Controller(cast("Any", connections), "c")
        controller._rounds.go("topic/l/before")
        stage.obey()
        controller._act()
        await asyncio.sleep(0.02)
        assert controller._progress.waits[PENDING.key] == "its turn: other topics are fenced before it"
        assert controller._progress.ready == {PENDING.key}
        await stage.log.append(lambda _: after or (PENDING.key, None))
        async with asyncio.timeout(2):
            await acted(controller)
        assert (controller._rounds._line, controller._progress.ready, controller._progress.waits) == ([], set(), {})
        assert controller._busy == {}

    asyncio.run(scene())


def test_a_seal_comes_off_also_while_the_target_refuses_what_settles_the_topic(monkeypatch: Any) -> None:
    async def scene() -> None:
        stage = Stage()
        seal = Seal("", {"gone": "r"})
        flipped = replace(PENDING, phase=TopicPhase.PROMOTED, unsettled=True, seal=seal, restore_configs={"a": "b"})
        await stage.log.append(lambda _: flipped)

        async def refuses(*_: Any, **__: Any) -> None:
            raise Failed("broker-refused", "POLICY_VIOLATION")

        async def soon(_: float) -> None:
            await asyncio.sleep(0)

        async def takes_writes(_: Any, __: str, partitions: list[int]) -> dict[int, Takes]:
            return dict.fromkeys(partitions, Takes.WRITES)

        monkeypatch.setattr(size_limit, "ask_to_append", takes_writes)
        monkeypatch.setattr(stage.admin, "alter_topic_configs", refuses, raising=False)
        monkeypatch.setattr(outcome, "sleep", soon)
        controller = Controller(cast("Any", Lit(stage)), "c")
        async with asyncio.timeout(3):
            while (record := stage.log.state.topic("l", "t")) is None or record.seal is not None:
                controller._act()
                await asyncio.sleep(0.01)
        await controller._tasks.close()
        assert (record.seal, record.reason) == (None, "not-settled: POLICY_VIOLATION")

    asyncio.run(scene())


def test_reasons_of_automatic_promotes_displace_no_other_reason() -> None:
    """A presence names so many reasons at most; reasons of promotes under way come first."""

    async def scene() -> None:
        connections = Dark(MemoryLog(LINK, TOPIC))
        controller = Controller(cast("Any", connections), "c")
        controller._auto.reasons.update({f"group/l/g{number}": "1 member(s) on the source" for number in range(200)})
        controller._auto.reasons[TOPIC.key] = "overwritten"
        await acted(controller)
        [word] = connections.log.alive(ControllerPresence)
        assert word.waits[TOPIC.key] == "tried again: no-broker: no broker of s answers"
        assert len(word.waits) == 100
        assert connections.waits_for(replace(GROUP, group="g0")) == "1 member(s) on the source"

    asyncio.run(scene())
