"""Activation of a link, before its mirror copies anything.

The state log gets the link's producer ids once, and the former `producer.id.expiration.ms` of the target.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.producer_expiration import RAISED_EXPIRATION
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep.activation import NOT_RAISED, activate, remembers_long
from kmigrate.model.records import ClusterRef, LinkRecord
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)


class Cluster:
    """A cluster that accepts every setting, and obeys the settings that are known to this Kafka version."""

    def __init__(self, name: str, shown: ConfigValue | None = None) -> None:
        self.name = name
        self.shown = shown
        self.settings = SimpleNamespace(name=name, bootstrap_servers="h:1")
        self.metadata = SimpleNamespace(cluster_id=name, brokers={1: ("h", 1)})
        self.given = 0

    async def refresh(self, _: Any) -> Any:
        return self.metadata

    async def init_producer_id(self) -> tuple[int, int]:
        self.given += 1
        return 70 + self.given, 0

    async def broker_config(self, _: int, __: str) -> ConfigValue | None:
        return self.shown

    async def set_broker_default(self, _: str, value: str, **__: Any) -> int:
        self.shown = ConfigValue(value if self.shown is not None else "", True)
        return 0


def activated(log: MemoryLog, target: Any, *, raises: bool = True) -> str:
    source: Any = Cluster("source")
    settings = MirrorSettings(raise_expiration=raises)
    return asyncio.run(activate(MirroredLink(source, target, target, target, "l", cast("Any", log), "me", settings)))


@pytest.mark.parametrize(
    ("shown", "former"),
    [
        (ConfigValue("86400000", False), ""),
        (ConfigValue("3600000", True), "3600000"),
    ],
)
def test_the_targets_own_memory_is_written_down_before_it_is_raised(shown: ConfigValue, former: str) -> None:
    log, target = MemoryLog(LINK), Cluster("target", shown)
    assert activated(log, target) == ""
    assert asyncio.run(remembers_long(target, target))  # type: ignore[arg-type]
    for _ in range(2):
        link = log.state.link("l")
        assert link is not None and link.copy is not None
        assert (link.restore_expiration, link.copy.data_id) == (former, 71)
        assert activated(log, target) == "", "a later start finds it raised"


def test_of_two_links_to_a_target_each_knows_what_it_was_before_the_first_raised_it() -> None:
    """Both links keep the former value, so the link that is deleted last can restore that value."""
    first = replace(LINK, name="first", restore_expiration="3600000")
    log, target = MemoryLog(first, LINK), Cluster("target", ConfigValue(RAISED_EXPIRATION, True))
    assert activated(log, target) == ""
    link = log.state.link("l")
    assert link is not None and link.restore_expiration == "3600000"


def test_what_a_person_has_raised_stays_so_in_the_end() -> None:
    log = MemoryLog(LINK)
    assert activated(log, Cluster("target", ConfigValue(RAISED_EXPIRATION, True))) == ""
    link = log.state.link("l")
    assert link is not None and link.restore_expiration == RAISED_EXPIRATION


def test_a_target_before_3_4_is_not_taken_to_remember_neither_at_first_nor_on_a_later_start() -> None:
    """A broker before Kafka 3.4 accepts the setting but does not know the setting.

    Such a broker would forget the producer of week-old records while they are pipelined.
    """
    log, target = MemoryLog(LINK), Cluster("target")
    for _ in range(2):
        assert "Kafka before 3.4" in activated(log, target)
        assert not asyncio.run(remembers_long(target, target))  # type: ignore[arg-type]
        link = log.state.link("l")
        assert link is not None and link.restore_expiration is None, "nothing is to be put back"


def test_what_an_earlier_version_set_there_is_not_believed_either() -> None:
    target: Any = Cluster("target", ConfigValue("", True))
    assert "Kafka before 3.4" in activated(MemoryLog(LINK), target)
    assert not asyncio.run(remembers_long(target, target))
    assert target.shown.value != RAISED_EXPIRATION


def test_a_setting_that_is_to_be_left_alone_is_neither_raised_nor_written_down() -> None:
    log, target = MemoryLog(LINK), Cluster("target", ConfigValue("86400000", False))
    assert activated(log, target, raises=False) == NOT_RAISED
    assert target.shown == ConfigValue("86400000", False)
    link = log.state.link("l")
    assert link is not None
    assert link.restore_expiration is None


def test_the_mirror_of_a_finished_link_does_not_raise_it_again() -> None:
    finished = replace(LINK, finished_ms=5, restore_expiration="")
    log, target = MemoryLog(finished), Cluster("target", ConfigValue("86400000", False))
    assert activated(log, target) == ""
    assert target.shown == ConfigValue("86400000", False)
