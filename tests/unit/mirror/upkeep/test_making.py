"""A target topic is created or adopted.

The topic's record keeps the former configs of the target topic before the target changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import LogOffset
from kmigrate.errors import Failed
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep.lease_holder import LeaseHolder
from kmigrate.mirror.upkeep.topics import TopicMaker
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.records import TopicRecord
from kmigrate.state.topics import MAP_TOPIC, STATE_TOPIC
from tests.fakes.state_log import MemoryLog
from tests.unit.mirror.upkeep.test_lease_holder import LEASE, LINK

KEYS = ("retention.ms", "retention.bytes", "cleanup.policy", "segment.bytes")
"""All configs that these clusters know."""
ASKED = TopicRecord("l", "t", TopicPhase.INITIALISING, 1)


class Killed(BaseException):
    """A stand-in for the death of the process by kill -9."""


@dataclass
class Cluster:
    """A cluster of topics with one partition each: own configs by topic name, and `end` as the log end of all."""

    topics: dict[str, dict[str, str]]
    end: int = 0
    deleted: list[str] = field(default_factory=list)
    settings: Any = field(default_factory=lambda: SimpleNamespace(name="east"))

    @property
    def metadata(self) -> Any:
        known = {name: self._info(name) for name in self.topics}
        return SimpleNamespace(topics=known, brokers={1: ("h", 1)})

    def _info(self, name: str) -> Any:
        part = SimpleNamespace(leader=1, replicas=(1,))
        return SimpleNamespace(name=name, topic_id=f"{name}-id", partitions={0: part}, error=0)

    def leader(self, *_: object) -> int:
        return 1

    async def refresh(self, _: object) -> Any:
        return self.metadata

    async def topic(self, name: str) -> Any:
        return self.metadata.topics.get(name)

    async def list_offsets(self, wanted: Any) -> Any:
        return dict.fromkeys(wanted, LogOffset(0, 0, 0))

    async def log_ends(self, keys: Any) -> Any:
        return dict.fromkeys(keys, LogOffset(0, self.end, 0))

    async def broker_configs(self, _: int) -> dict[str, ConfigValue]:
        return {}

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        default = {key: ConfigValue("delete" if key == "cleanup.policy" else "1", False) for key in KEYS}
        told = {name: {key: ConfigValue(value, True) for key, value in self.topics[name].items()} for name in names}
        return {name: {**default, **own} for name, own in told.items()}

    async def create_topic(self, name: str, _: int, __: int, configs: Mapping[str, str]) -> bool:
        self.topics[name] = dict(configs)
        return True

    async def alter_topic_configs(self, name: str, put: Mapping[str, str]) -> None:
        self.topics[name].update(put)

    async def delete_topic(self, name: str) -> None:
        self.deleted.append(name)
        del self.topics[name]


class Stage:
    """A leader that creates topic `t`, and dies where the test says so."""

    def __init__(self, source: dict[str, str], target: dict[str, str] | None, *, exclude: tuple[str, ...], end: int):
        standing = {"t": target} if target is not None else {}
        self.source: Any = Cluster({"t": source})
        self.target: Any = Cluster({STATE_TOPIC: {}, MAP_TOPIC: {}, **standing}, end)
        link = replace(LINK, settings=LinkSettings(config_exclude=exclude))
        self.log: Any = MemoryLog(link, LEASE, replace(ASKED, offsets="mapped" if end else "identical"))

    @property
    def record(self) -> TopicRecord:
        return cast("TopicRecord", self.log.state.topic("l", "t", forgotten=True))

    def make(self) -> None:
        link = MirroredLink(self.source, self.target, self.source, self.target, "l", self.log, "me", MirrorSettings())
        nobody: Any = None
        maker = TopicMaker(link, lambda: link.link_settings)
        leader = LeaseHolder(link, nobody, nobody, maker, nobody, on_change=lambda: None)
        asyncio.run(leader._prepare(self.record))

    def as_it_will_be(self) -> dict[str, str]:
        """Return the target topic's own configs after its promote."""
        own = {**self.target.topics["t"], **self.record.restore_configs}
        return {key: value for key, value in own.items() if key not in self.record.drop_configs}


ADOPTED = {"retention.ms": "86400000", "cleanup.policy": "compact"}
CASES = [
    pytest.param({}, ADOPTED, (), 7, id="a topic that holds data"),
    pytest.param({"retention.bytes": "9"}, ADOPTED, ("retention.ms",), 0, id="an empty one, with keys of its own"),
    pytest.param({"retention.bytes": "9"}, None, ("retention.ms",), 0, id="a new one"),
]


@pytest.mark.parametrize(("source", "target", "exclude", "end"), CASES)
@pytest.mark.parametrize("ends_in", ["death", "an error"])
def test_a_topic_is_given_its_own_configs_back_though_its_making_was_broken_off(
    source: dict[str, str], target: dict[str, str] | None, exclude: tuple[str, ...], end: int, ends_in: str
) -> None:
    """The next process does not take the relaxed configs of the target for the topic's own configs.

    Otherwise retention would stay off after the promote.
    """
    through = Stage(source, dict(target) if target is not None else None, exclude=exclude, end=end)
    through.make()
    assert through.target.topics["t"]["retention.ms"] == "-1"
    wanted = through.as_it_will_be()
    assert wanted.get("retention.ms") == (target or {}).get("retention.ms")

    stage = Stage(source, dict(target) if target is not None else None, exclude=exclude, end=end)
    changed, topic = stage.target.topic, stage.target.topic

    async def cut(name: str) -> Any:
        if "-1" not in stage.target.topics.get(name, {}).values():
            return await topic(name)
        raise Killed if ends_in == "death" else Failed("no-leader", "not now")

    stage.target.topic = cut
    with pytest.raises((Killed, Failed)):
        stage.make()
    assert stage.record.target_topic_id == ""
    stage.target.topic = changed
    stage.make()
    assert stage.record.phase is TopicPhase.ALIGNING
    assert stage.as_it_will_be() == wanted


def test_what_somebody_sets_on_a_topic_that_is_being_adopted_is_its_own_by_then() -> None:
    stage = Stage({}, dict(ADOPTED), exclude=(), end=7)
    stage.log._put(ASKED.key, replace(stage.record, restore_configs={"retention.ms": "5"}, drop_configs=()))
    stage.make()
    assert stage.record.restore_configs["retention.ms"] == "86400000", "it was not relaxed yet"


def test_who_comes_late_to_a_topic_that_was_made_by_another_leaves_the_target_alone() -> None:
    """A process that stood still while another process took over leaves the target alone: the topic may be promoted."""
    stage = Stage({}, dict(ADOPTED), exclude=(), end=7)
    promoted = replace(stage.record, phase=TopicPhase.PROMOTED)
    ends = stage.target.log_ends

    async def meanwhile(keys: Any) -> Any:
        stage.log._put(ASKED.key, promoted)
        return await ends(keys)

    stage.target.log_ends = meanwhile
    stage.make()
    assert (stage.target.topics["t"], stage.record) == (ADOPTED, promoted)


def test_of_two_processes_that_make_a_topic_at_once_the_later_looks_at_it_anew() -> None:
    """The later process notes no configs, and reads the topic again.

    The other process may already have relaxed the configs that the later process has read.
    """
    stage = Stage({}, dict(ADOPTED), exclude=(), end=7)
    noted = replace(stage.record, restore_configs={"retention.ms": "86400000"}, drop_configs=("retention.bytes",))
    configs = stage.target.topic_configs

    async def meanwhile(names: Any) -> Any:
        if names == ["t"]:
            stage.log._put(ASKED.key, noted)
            stage.target.topics["t"]["retention.ms"] = "-1"
        return await configs(names)

    stage.target.topic_configs = meanwhile
    stage.make()
    assert stage.record == noted
    stage.target.topic_configs = configs
    stage.make()
    assert stage.as_it_will_be() == ADOPTED


@pytest.mark.parametrize(("recreate", "end", "deleted"), [(True, 0, ["t"]), (True, 7, []), (False, 0, [])])
def test_an_empty_topic_is_made_anew_where_a_person_asked_for_it_and_one_with_data_never(
    recreate: bool, end: int, deleted: list[str]
) -> None:
    stage = Stage({"retention.bytes": "9"}, {"flush.ms": "5"}, exclude=("flush.ms",), end=end)
    asyncio.run(stage.log.append(lambda _: replace(stage.record, recreate=recreate)))
    stage.make()
    assert stage.target.deleted == deleted
    assert stage.target.topics["t"]["flush.ms"] == "5", "what it had of its own, it has again"
    assert not stage.record.recreate, "a copy that is begun again later is not deleted for it"
