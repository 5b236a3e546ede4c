"""A router's entry in the state log, and the list of earlier instances that vanished without signing off."""

from __future__ import annotations

import asyncio
import os

import pytest

from kmigrate.errors import Refused
from kmigrate.model.record_json import Record
from kmigrate.router.process.registration import Registration
from tests.fakes.state_log import MemoryLog


def place(log: MemoryLog, instance: str) -> Registration:
    return Registration(log, "edge", "host", instance)  # type: ignore[arg-type]


def take(log: MemoryLog, *instances: str) -> None:
    for instance in instances:
        asyncio.run(place(log, instance).take("host:1"))


def leave(log: MemoryLog, instance: str) -> None:
    asyncio.run(place(log, instance).leave())


def strays(log: MemoryLog) -> list[tuple[str, ...]]:
    return [stray.instances for stray in log.state.strays()]


def test_who_takes_a_name_writes_down_first_who_had_it() -> None:
    log = MemoryLog()
    take(log, "i1", "i2", "i3")
    assert [router.instance for router in log.state.routers()] == ["i3"]
    assert strays(log) == [("i1", "i2")]
    kinds = [record.key for record in log.history if record is not None]
    assert kinds == ["router/edge", "stray/edge", "router/edge", "stray/edge", "router/edge"]


def test_who_left_with_a_word_is_no_stray() -> None:
    log = MemoryLog()
    take(log, "i1")
    leave(log, "i1")
    take(log, "i2")
    assert strays(log) == []


def test_a_replaced_instance_takes_itself_off_and_leaves_its_successor_alone() -> None:
    log = MemoryLog()
    take(log, "i1", "i2", "i3")
    leave(log, "i1")
    assert strays(log) == [("i2",)]
    leave(log, "i2")
    assert strays(log) == []
    assert place(log, "i3").stands(log.state)


def test_a_router_that_dies_again_and_again_leaves_a_record_of_one_size() -> None:
    """The oldest instances are no longer named, so their mark remains until a person removes the mark."""
    log = MemoryLog()
    take(log, *(f"i{number}" for number in range(150)))
    (instances,) = strays(log)
    assert (len(instances), instances[:2], instances[-1]) == (100, ("stray/edge", "i50"), "i148")
    take(log, "i150")
    assert strays(log)[0][:2] == ("stray/edge", "i51")
    for number in range(150):
        leave(log, f"i{number}")
    assert strays(log) == [("stray/edge",)]


def test_whoever_dies_between_the_two_records_is_found_by_the_next() -> None:
    log = MemoryLog()
    take(log, "i1")

    def die(record: Record | None) -> None:
        raise InterruptedError

    log.on_append = die
    try:
        take(log, "i2")
    except InterruptedError:
        log.on_append = lambda _: None
    take(log, "i3")
    assert strays(log) == [("i1",)]
    assert place(log, "i3").stands(log.state)


def test_a_registration_names_the_process() -> None:
    log = MemoryLog()
    take(log, "i1")
    (router,) = log.state.routers()
    assert router.pid == os.getpid()
    assert router.machine
    assert f"/{os.getpid()}/" in router.process


def test_a_router_replaces_only_the_instance_that_it_was_started_to_replace() -> None:
    log = MemoryLog()
    asyncio.run(place(log, "i1").take("host:1", ""))
    with pytest.raises(Refused, match="router-runs"):
        asyncio.run(place(log, "i2").take("host:2", ""))
    assert place(log, "i1").stands(log.state)
    assert strays(log) == []
    asyncio.run(place(log, "i2").take("host:2", "i1"))
    assert place(log, "i2").stands(log.state)
    with pytest.raises(Refused, match="router-runs"):
        asyncio.run(place(log, "i3").take("host:3", "i1"))
