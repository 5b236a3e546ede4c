"""The command lines of further workers: the same links and clusters, and a metrics address for each worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kmigrate.cli.base.call import Call
from kmigrate.cli.process.engine_settings import Engine
from kmigrate.cli.process.workers import worker_command

BEGIN = [sys.executable, "-m", "kmigrate", "mirror", "run", "--worker"]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)


def test_a_worker_is_started_with_the_flags_that_its_parent_was_given() -> None:
    assert worker_command(Call(), 1, Engine.MIRROR) == BEGIN
    (config := Path("here.toml")).write_text("", encoding="utf-8")
    call = Call(config=config, target="blue", json=True, debug=True, overrides={"mirror.rack": "eu-1a"})
    assert worker_command(call, 1, Engine.MIRROR, "shop") == [
        *BEGIN,
        *("--link", "shop", "--rack", "eu-1a", "--target", "blue", "--config", "here.toml", "--json", "--debug"),
    ]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("0.0.0.0:9000", "0.0.0.0:9002"), ("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:9000", "[::1]:9002")],
)
def test_each_worker_is_scraped_at_a_port_of_its_own(ours: str, theirs: str) -> None:
    call = Call(overrides={"metrics.listen": ours})
    assert worker_command(call, 2, Engine.MIRROR) == [*BEGIN, "--metrics", theirs]


def test_a_routers_worker_has_its_parents_name_and_ports_and_a_number_of_its_own() -> None:
    call = Call(overrides={"router.name": "edge", "router.port": "9000"})
    command = worker_command(call, 2, Engine.ROUTER)
    assert command[3:] == ["router", "run", "--worker", "2", "--name", "edge", "--port", "9000"]


def test_a_routers_worker_takes_over_where_its_parent_does() -> None:
    assert "--take-over" in worker_command(Call(), 1, Engine.ROUTER, take_over=True)
    assert "--take-over" not in worker_command(Call(), 1, Engine.ROUTER)


def test_a_worker_logs_as_its_parent_does() -> None:
    command = worker_command(Call(overrides={"log.format": "json", "log.level": "error"}), 1, Engine.MIRROR)
    assert command == [*BEGIN, "--log-format", "json", "--log-level", "error"]
