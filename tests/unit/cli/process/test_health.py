"""The probes' pages: which engine may get work, and the reason of each that may not."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from kmigrate.cli.process import health as health_module
from kmigrate.cli.process.health import CALM_SECONDS, EngineHealth, Health, health_pages
from kmigrate.observe.readiness import Hindrance, Readiness


def asked(health: Health) -> tuple[HTTPStatus, dict[str, object]]:
    page = health_pages(health)["/readyz"]
    return page.status(), json.loads("".join(page.make()))


def test_a_process_is_ready_while_each_engine_is() -> None:
    lost = ""
    health = Health(lambda: lost)
    assert asked(health) == (HTTPStatus.OK, {"ready": True, "closing": False, "engines": []})
    own = Readiness(Hindrance.STARTING, "no client is accepted yet")
    health.add(EngineHealth("router", own=lambda: own))
    health.add(EngineHealth("mirror", "blue", role=lambda: "leads"))
    status, told = asked(health)
    assert (status, told["ready"]) == (HTTPStatus.SERVICE_UNAVAILABLE, False)
    assert told["engines"] == [
        {"engine": "mirror", "link": "blue", "ready": True, "role": "leads", "reason": None, "detail": ""},
        {
            "engine": "router",
            "link": None,
            "ready": False,
            "role": None,
            "reason": "starting",
            "detail": "no client is accepted yet",
        },
    ]
    own = Readiness()
    assert asked(health)[0] == HTTPStatus.OK
    lost = "the state log was last read 7 s ago"
    status, told = asked(health)
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert [(each.hindrance, each.detail) for _, each in health.found()] == [("state-log-lost", lost)] * 2


def test_a_failed_engine_and_a_process_that_ends_are_not_ready() -> None:
    health = Health(lambda: "")
    mirror = health.add(EngineHealth("mirror", "blue"))
    mirror.failure = "cluster-unreachable: source blue"
    assert [each.hindrance for _, each in health.found()] == [Hindrance.FAILED]
    mirror.failure = ""
    assert health.ready
    health.closing = True
    status, told = asked(health)
    assert (status, told["ready"], told["closing"]) == (HTTPStatus.SERVICE_UNAVAILABLE, False, True)
    assert [each.hindrance for _, each in health.found()] == [Hindrance.CLOSING]


def test_a_failure_counts_until_the_engine_has_run_for_a_while_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time between two failures goes by in the vain start."""
    now = 100.0
    monkeypatch.setattr(health_module, "monotonic", lambda: now)
    mirror = EngineHealth("mirror", "blue", failure="cluster-unreachable: source blue")
    assert mirror.readiness("").hindrance is Hindrance.FAILED
    mirror.began = now
    now += CALM_SECONDS - 1
    assert mirror.readiness("").hindrance is Hindrance.FAILED
    now += 1
    assert mirror.readiness("").ready


def test_the_mirror_of_a_link_made_anew_is_not_dropped_with_the_former() -> None:
    health = Health(lambda: "")
    former = health.add(EngineHealth("mirror", "blue"))
    now = health.add(EngineHealth("mirror", "blue"))
    health.drop(former)
    assert [each for each, _ in health.found()] == [now]
    health.drop(now)
    assert list(health.found()) == []


def test_a_live_loop_answers_whatever_the_engines_say() -> None:
    page = health_pages(Health(lambda: "lost"))["/healthz"]
    assert (page.status(), list(page.make())) == (HTTPStatus.OK, ["ok\n"])
