"""`kmigrate link finish` as the user calls it: the printed text and the exit code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.workflow.base.bootstraps import Leads
from kmigrate.workflow.verbs import finish
from tests.fakes.finishing import CLIENT, LINK, ROUTER, TOPIC, WORD, Connections

Finish = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def connections() -> Connections:
    return Connections()


@pytest.fixture
def call(
    connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Finish:
    """Return the call with `--json` on an estate in memory; the call needs only a moment without clients."""

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Connections]:
        yield connections

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setattr(Call, "connections", opened)
    monkeypatch.setattr(finish, "_QUIET_S", 0.01)

    def finishes(*flags: str) -> tuple[int, dict[str, Any]]:
        for word, _ in list(connections.log.presence.values()):
            connections.log.say(word)  # the log's waiting objects belong to the event loop of a single call
        with connections.asking():
            code = main(["link", "finish", "l", "--config", str(config), "--json", *flags])
        return code, json.loads(capsys.readouterr().out)

    return finishes


def test_a_plan_tells_where_the_addresses_lead_and_changes_nothing(connections: Connections, call: Finish) -> None:
    code, told = call("--plan", "--bootstrap", "a:1, b:2")
    assert (code, told["applied"], connections.finished_ms) == (Exit.OK, False, 0)
    assert [(each["address"], each["leads"]) for each in told["bootstraps"]] == [("a:1", "router"), ("b:2", "router")]


def test_it_asks_before_it_acts(connections: Connections, call: Finish) -> None:
    code, told = call()
    assert (code, told["error"], connections.finished_ms) == (Exit.USAGE, "needs-yes", 0)


@pytest.mark.parametrize(("leads", "may_stop"), [(Leads.TARGET, True), (Leads.ROUTER, False)])
def test_routers_may_stop_only_if_every_address_leads_to_the_target(
    connections: Connections, call: Finish, leads: Leads, may_stop: bool
) -> None:
    connections.leads = leads
    code, told = call("--yes")
    assert (code, told["applied"], told["told_real_addresses"], told["on_brokers"]) == (Exit.OK, True, True, 0)
    assert told["routers_may_stop"] is may_stop
    assert call()[1]["changes"] == [], "a repetition needs no yes: it only looks and waits"


def test_whoever_stays_too_long_is_named_with_exit_code_5(connections: Connections, call: Finish) -> None:
    connections.log.say(replace(WORD, on_brokers=2, clients=(CLIENT,)))
    code, told = call("--yes", "--timeout", "0.05")
    assert (code, told["error"]) == (Exit.TIMED_OUT, "clients-left")
    assert CLIENT.text in told["what"]
    assert connections.finished_ms > 0
    code, told = call("--no-wait")
    assert (code, told["findings"][0]["ref"]) == (Exit.OK, "already-finished")


def test_while_another_link_keeps_the_clients_it_says_so_and_does_not_wait(
    connections: Connections, call: Finish
) -> None:
    connections.log = Connections(LINK, replace(LINK, name="m"), TOPIC, replace(TOPIC, link="m", topic="u"), ROUTER).log
    connections.log.say(replace(WORD, on_brokers=2, clients=(CLIENT,)))
    code, told = call("--yes")
    assert (code, told["told_real_addresses"], told["routers_may_stop"]) == (Exit.OK, False, False)
    assert told["clients"][0]["client_id"] == CLIENT.client_id


def test_an_undo_needs_a_yes_too(connections: Connections, call: Finish) -> None:
    assert call("--undo")[1]["findings"][0]["ref"] == "not-finished"
    call("--yes")
    assert call("--undo")[1]["error"] == "needs-yes"
    assert connections.finished_ms
    code, told = call("--undo", "--yes")
    assert (code, told["applied"], connections.finished_ms) == (Exit.OK, True, 0)


def test_the_configuration_may_say_how_long_producers_repeat(connections: Connections, call: Finish) -> None:
    connections.log = Connections(LINK, replace(TOPIC, promoted_ms=2**53), ROUTER).log
    connections.log.say(WORD)
    code, told = call("--yes")
    assert (code, told["error"]) == (Exit.REFUSED, "retries-not-over")
    assert "delivery timeout 120 s" in told["what"]
    assert "delivery timeout 7 s" in call("--yes", "--delivery-timeout", "7")[1]["what"]


def test_a_person_reads_what_was_done_and_what_may_be_done_now(
    connections: Connections, call: Finish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--plan")[0] == Exit.OK
    with connections.asking():
        assert main(["link", "finish", "l", "--config", str(tmp_path / "kmigrate.toml"), "--yes"]) == Exit.OK
    said = " ".join(capsys.readouterr().out.split())
    assert "link finish: done" in said
    assert "real:9" in said
    assert "Do not stop the router behind router:9092 before that name leads to brokers of the target" in said
