"""`kmigrate sandbox up` without brokers: what is refused before a broker starts."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.exits import Exit
from kmigrate.sandbox.estate import SandboxEstate


def test_without_a_port_for_the_router_no_broker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(SandboxEstate, "up", lambda folder, **_: started.append(folder))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", f"{port}-{port}")
        assert main(["sandbox", "up", "--folder", str(tmp_path), "--json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().out)["error"] == "no-free-port"
    assert started == []
