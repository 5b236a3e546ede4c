"""The cost of a raised producer expiration on the target is reported first, and the finish puts the value back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.producer_expiration import RAISED_EXPIRATION, ProducerLoad, producer_load
from kmigrate.errors import Unreachable
from kmigrate.workflow.base import producer_expiration as producer_memory
from kmigrate.workflow.base.producer_expiration import memory_findings, raised_alone
from tests.fakes.finishing import FINISHED, GROUP, LINK, ROUTER, TOPIC, Connections
from tests.fakes.state_log import MemoryLog

RAISED = replace(LINK, restore_expiration="")
DAY = ConfigValue("86400000", False)


def findings(
    monkeypatch: pytest.MonkeyPatch,
    now: ConfigValue,
    load: ProducerLoad | Exception,
    *,
    raises: bool = True,
) -> list[tuple[str, str, str]]:
    async def told(*_: Any, **__: Any) -> Any:
        return now

    async def loaded(_: Any) -> ProducerLoad:
        if isinstance(load, Exception):
            raise load
        return load

    async def short(*_: Any) -> str:
        return ""

    monkeypatch.setattr(producer_memory, "producer_memory", told)
    monkeypatch.setattr(producer_memory, "producer_load", loaded)
    monkeypatch.setattr(producer_memory, "short_memory", short)
    target = SimpleNamespace(settings=SimpleNamespace(name="t"))
    connections: Any = SimpleNamespace(target=target, target_admin=None)
    return [(each.level, each.ref, each.what) for each in asyncio.run(memory_findings(connections, raises=raises))]


def test_raising_is_a_warning_with_an_estimate_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    ((level, ref, what),) = findings(monkeypatch, DAY, ProducerLoad(100_000, 12))
    assert (level, ref) == ("warn", "producer-memory-raised")
    assert "from 86,400,000 to 2,147,483,647 (24.8 days) for all its clients" in what
    assert "remember 100,000 producer ids today" in what
    assert "up to 2,485,513, about 1,068.8 MB" in what


def test_what_cannot_be_counted_is_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, ref, what),) = findings(monkeypatch, DAY, Unreachable("x", "nobody answers"))
    assert ref == "producer-memory-raised"
    assert "what that costs is unknown: nobody answers" in what


def test_a_setting_that_is_raised_or_left_alone_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(monkeypatch, ConfigValue(RAISED_EXPIRATION, True), ProducerLoad(1, 1)) == []
    ((level, ref, _),) = findings(monkeypatch, DAY, ProducerLoad(1, 1), raises=False)
    assert (level, ref) == ("ok", "short-memory")


def test_a_large_cluster_is_counted_by_a_part_of_its_partitions() -> None:
    class Cluster:
        asked: list[tuple[str, int]]

        async def refresh(self) -> Any:
            return SimpleNamespace(topics={"t": SimpleNamespace(partitions=dict.fromkeys(range(3_000)))})

        async def describe_producers(self, keys: list[tuple[str, int]]) -> Any:
            self.asked = keys
            return {key: (0, [object(), object()]) for key in keys}

    cluster = Cluster()
    load = asyncio.run(producer_load(cluster))  # type: ignore[arg-type]
    assert (load.entries, load.partitions, len(cluster.asked)) == (6_000, 3_000, 1_000)


def test_a_link_that_is_finished_does_not_need_it_raised() -> None:
    other = replace(RAISED, name="k", uuid="v")
    assert raised_alone(MemoryLog(RAISED).state, RAISED)
    assert not raised_alone(MemoryLog(RAISED, other).state, RAISED)
    assert raised_alone(MemoryLog(RAISED, replace(other, finished_ms=5)).state, RAISED)
    assert not raised_alone(MemoryLog(FINISHED).state, FINISHED), "it has raised nothing"


@pytest.mark.parametrize("against", ["", "CLUSTER_AUTHORIZATION_FAILED (31)"], ids=["put back", "refused"])
def test_a_finish_puts_it_back_or_says_what_is_to_be_done(against: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def restored(_: Any, __: Any, former: str) -> str:
        asked.append(former)
        return against

    monkeypatch.setattr(producer_memory, "restore_memory", restored)
    connections = Connections(replace(RAISED, restore_expiration="3600000"), TOPIC, GROUP, ROUTER)
    made = connections.finish()
    assert asked == ["3600000"]
    assert "put producer.id.expiration.ms of the target back to 3600000" in made.changes
    assert [each.ref for each in made.findings if each.ref == "not-put-back"] == (["not-put-back"] if against else [])
    assert connections.finished_ms > 0
