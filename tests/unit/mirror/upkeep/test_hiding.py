"""Fillers are written to a partition only when every registered router hides the partition from clients."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import Unreachable
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep import hiding
from kmigrate.mirror.upkeep.hiding import wait_hidden
from kmigrate.mirror.upkeep.lease_holder import LeaseHolder
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import ClusterRef, LinkRecord, RouterRecord, TopicRecord
from kmigrate.model.routes import routing_table
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog
from tests.unit.mirror.upkeep.test_source_changes import Admin, upkeep

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
ALIGNING = TopicRecord("l", "t", TopicPhase.ALIGNING, 1, partitions=1, starts={0: 700})
ONE, TWO = (RouterRecord(name, f"{name}-1", "host", "host:1", 1) for name in ("one", "two"))


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hiding, "_PATIENCE_S", 0.05)


def says(log: MemoryLog, router: RouterRecord, applied: int) -> None:
    log.say(RouterPresence(router.instance, router.name, applied, 500))


def waits(log: MemoryLog, epoch: int) -> None:
    asyncio.run(wait_hidden(cast("StateLog", log), "t", epoch))


def test_each_router_has_to_say_that_it_follows() -> None:
    log = MemoryLog(LINK, ONE, TWO)
    says(log, ONE, 9)
    says(log, TWO, 8)
    with pytest.raises(Unreachable, match="router two on host has not said that it hides t") as caught:
        waits(log, 9)
    assert "router forget two --dead" in caught.value.next_step
    says(log, TWO, 9)
    waits(log, 9)


def test_a_router_that_is_not_heard_is_waited_for_and_one_that_was_forgotten_is_not() -> None:
    log = MemoryLog(LINK, ONE)
    with pytest.raises(Unreachable, match="router one"):
        waits(log, 1)
    asyncio.run(log.append(lambda _: (ONE.key, None)))
    waits(log, 1)


class _Aligner:
    def __init__(self) -> None:
        self.aligned: list[dict[int, int]] = []

    async def align(self, record: TopicRecord) -> None:
        self.aligned.append(dict(record.starts))


@pytest.mark.parametrize(
    ("record", "waited"),
    [
        (ALIGNING, True),
        (replace(ALIGNING, starts={0: 0}), False),
        (replace(ALIGNING, mapped=True, target_starts={0: 0}), False),
    ],
    ids=["begins-late", "begins-at-zero", "mapped"],
)
def test_a_topic_is_filled_up_only_once_it_is_hidden(record: TopicRecord, waited: bool) -> None:
    log, aligner, nobody = MemoryLog(LINK, record, ONE), _Aligner(), cast("Any", None)
    link = MirroredLink(nobody, nobody, nobody, nobody, "l", cast("StateLog", log), "me", MirrorSettings())
    leader = LeaseHolder(link, nobody, nobody, nobody, cast("Any", aligner), on_change=lambda: None)
    if waited:
        with pytest.raises(Unreachable):
            asyncio.run(leader._align(record))
        assert not aligner.aligned
        says(log, ONE, log.state.epoch)
    asyncio.run(leader._align(record))
    assert aligner.aligned == ([] if record.mapped else [dict(record.starts)])


def test_a_later_partition_is_hidden_before_clients_can_see_it() -> None:
    """Routers hide an added partition before the target gets the partition.

    The source may have deleted the beginning of the added partition while no mirror ran, so fillers may be needed.
    """
    record = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})
    log, done = MemoryLog(LINK, record, ONE), []

    class Widens(Admin):
        async def create_partitions(self, topic: str, total: int) -> None:
            done.append(total)

    kept = upkeep(log, Widens(), cast("Any", Source()))
    kept._link = replace(kept._link, target=cast("Any", Source()))
    kept._aligner = cast("Any", _Aligner())
    with pytest.raises(Unreachable, match="router one"):
        asyncio.run(kept._follow_partitions(record, 3, 1))
    assert not done
    now = log.state.topic("l", "t")
    assert now is not None and now.aligning == (2,)
    assert routing_table(log.state).topics["t"].aligning == {2}
    says(log, ONE, log.state.epoch + 1)
    wider = asyncio.run(kept._follow_partitions(now, 3, 1))
    assert (wider.aligning, dict(wider.starts), done) == ((), {0: 0, 1: 0, 2: 40}, [3])


class Source:
    """A cluster that has a topic with three partitions."""

    async def list_offsets(self, wanted: Any) -> Any:
        return {key: LogOffset(0, 40 if key[1] == 2 else 0, 0) for key in wanted}

    async def topic(self, _: str) -> Any:
        return TopicInfo("t", None, {n: PartitionInfo(1, 0, (1,)) for n in range(3)})
