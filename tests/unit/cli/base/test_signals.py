"""Ctrl-C, SIGTERM and a closed terminal while a call waits: the call says what is true and what comes next."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kmigrate.cli.base.signals import heeded


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Yield the socket of a cluster that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(60)
        yield server


@pytest.mark.usefixtures("interrupts", "hangups")
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ["promote", "orders", "--yes"]),
        (signal.SIGTERM, ["group", "promote", "billing", "--yes"]),
        (signal.SIGHUP, ["topic", "mirror", "orders"]),
    ],
)
def test_a_call_that_is_ended_from_outside_says_what_is_true_and_what_comes_next(
    number: signal.Signals, words: list[str], silent: socket.socket, tmp_path: Path
) -> None:
    config = tmp_path / "kmigrate.toml"
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    config.write_text(f'[clusters.t]\n"bootstrap.servers" = "{address}"\n', encoding="utf-8")
    call = [sys.executable, "-m", "kmigrate", *words, "--config", str(config), "--json"]
    with (
        subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run,
        closing(silent.accept()[0]),
    ):
        run.send_signal(number)
        out, err = run.communicate(timeout=30)
    assert run.returncode == (130 if number is signal.SIGINT else -number)
    told = json.loads(out)
    assert (told["error"], told["exit_code"]) == ("interrupted", 130)
    assert told["still_true"] == (
        "what was written to the state log or to a file before stays; nothing more is done by this call"
    )
    assert told["next"].startswith("kmigrate status")
    assert err.splitlines()[-1] == "  more: kmigrate explain interrupted"


def test_a_terminal_that_closes_beside_nohup_ends_nothing() -> None:
    script = (
        "import signal; from kmigrate.cli.base.signals import heeded\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with heeded():\n    signal.raise_signal(signal.SIGHUP)\n    print('went on')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "went on\n"


@pytest.mark.usefixtures("interrupts", "hangups")
def test_the_handlers_of_signals_are_put_back() -> None:
    with heeded():
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
