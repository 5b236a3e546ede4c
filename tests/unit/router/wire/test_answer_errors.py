"""Error codes in the answers of every offered API and version, and their counting by a session."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import ApiKey, Message, blank, element_type, entity, frame_answer
from kmigrate.protocol.codes import Code
from kmigrate.router.wire.answer_errors import LONGEST_READ, error_codes
from kmigrate.router.wire.apis import OFFERED
from kmigrate.router.wire.produce import FIRST_WITH_BATCHES
from tests.unit.router.router_fakes import Stage, batch, route

CODE = int(Code.COORDINATOR_LOAD_IN_PROGRESS)


def _all_versions() -> list[tuple[int, int]]:
    """Return the offered APIs with all versions that kio knows."""
    every = [(key, version) for key, api in OFFERED.items() for version in range(api.versions[0], api.versions[1] + 1)]
    return [(key, version) for key, version in every if key != ApiKey.PRODUCE or version >= FIRST_WITH_BATCHES]


def _failed(kind: type[Message]) -> tuple[Message, int]:
    """Return an answer with an error at each place for an error, and the number of errors; arrays have an element."""
    values: dict[str, Any] = {}
    count = 0
    for name in kind.__dataclass_fields__:
        if name == "transaction_start_time":
            values[name] = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
            continue
        if name.endswith("error_code"):
            values[name], count = CODE, count + 1
            continue
        try:
            inner = element_type(kind, name)
        except Exception:
            continue
        if hasattr(inner, "__dataclass_fields__"):
            element, within = _failed(inner)
            values[name], count = (element,), count + within
    return blank(kind, **values), count


@pytest.mark.parametrize(("key", "version"), _all_versions())
def test_an_answer_without_an_error_has_none_and_each_error_is_found(key: int, version: int) -> None:
    kind = entity(key, version, "response")
    assert error_codes(key, version, frame_answer(blank(kind), 7)) == ()
    answer, count = _failed(kind)
    found = error_codes(key, version, bytearray(frame_answer(answer, 7)))
    if key in (ApiKey.PRODUCE, ApiKey.FETCH):
        assert found == (), "their handlers count them"
    elif count:
        assert set(found) == {CODE}
        assert len(found) in (1, count), "an error at the top stands for the others"


def test_a_long_answer_and_a_broken_one_are_not_read() -> None:
    key, version = ApiKey.METADATA, 12
    kind = entity(key, version, "response")
    topic = blank(element_type(kind, "topics"), name="t" * 200, error_code=CODE)
    assert len(error_codes(key, version, frame_answer(blank(kind, topics=(topic,) * 3), 7))) == 3
    long = frame_answer(blank(kind, topics=(topic,) * 30), 7)
    assert len(long) > LONGEST_READ and error_codes(key, version, long) == ()
    assert error_codes(key, version, b"\0\0\0\4\0\0\0\7") == ()
    assert error_codes(ApiKey.HEARTBEAT, 4, b"\0\0\0\4\0\0\0\7") == ()


@pytest.mark.parametrize("version", [3, 8, 9, 11])
@pytest.mark.parametrize("serve", [None, Serve.FORWARD, Serve.LOCAL])
def test_each_partition_that_a_producer_gets_an_error_for_is_counted(version: int, serve: Serve | None) -> None:
    stage = Stage(*([route("t", serve)] if serve is not None else []))
    stage.backend.leaders = {("t", 0): 1, ("t", 1): 1}
    for errors in ((0, 0), (int(Code.NOT_LEADER_OR_FOLLOWER), 0), (87, 6)):
        stage.edge.clock += 0.004
        stage.produce(("t", 0, batch(producer=-1)), ("t", 1, batch(producer=-1)), version=version)
        for ask in [*stage.backend.ids]:
            stage.backend.ids.remove(ask)
            ask(77)
        stage.edge.clock += 0.004
        stage.edge.sent[-1].answer(*errors)
    counted = dict(stage.shared.served.errors())
    assert counted == {("produce", "NOT_LEADER_OR_FOLLOWER"): 2, ("produce", "INVALID_RECORD"): 1}
    ((_, latencies),) = stage.shared.served.latencies()
    assert (latencies.count, round(latencies.total, 4)) == (3, 0.012)


def test_a_write_that_waits_at_a_fence_is_counted_as_held() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=2))
    stage.produce(("t", 0, batch()))
    assert stage.shared.served.holds() == []
    stage.edge.clock += 0.5
    stage.swap(route("t", Serve.FORWARD))
    assert stage.shared.served.holds() == [(("produce",), 1)]
    assert stage.shared.served.held_seconds() == [(("produce",), 0.5)]
