"""Ports for brokers: free, distinct, within the named range, or else a single clear error."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kmigrate.errors import UsageError
from kmigrate.router.process import ports as router
from kmigrate.sandbox import ports as module
from kmigrate.sandbox.ports import free_ports, reserve


def test_ports_are_distinct_free_and_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", "30100-30149")
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(30_100 <= port < 30_150 for port in ports)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_where_there_is_room_no_router_takes_what_another_is_given_and_none_is_given_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router also listens on ports behind its own port: for brokers, and for clients of other routers.

    Other test processes lock ports of this range, too: this test has locks of its own.
    """
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_given", set())
    monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", "21000-23999")
    ports = [port for _ in range(20) for port in free_ports(10)]
    assert len(set(ports)) == len(ports)
    fallbacks = range(router._FALLBACKS_FROM, router._FALLBACKS_FROM + router._FALLBACK_PORTS)
    behind = {port + step for port in ports for step in (1, 2, 3, *fallbacks)}
    assert not behind & set(ports)


def test_clusters_that_are_made_side_by_side_are_given_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the second broker would find its port taken, and end."""
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_given", set())
    monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", "24000-24999")
    with ThreadPoolExecutor(8) as threads:
        ports = [port for given in threads.map(free_ports, [6] * 80) for port in given]
    assert len(set(ports)) == len(ports) == 480


def test_one_on_which_somebody_listens_is_not_given_and_a_range_that_is_used_up_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (taken,) = free_ports(1)
    monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", f"{taken}-{taken}")
    assert free_ports(1) == [taken]
    with socket.create_server(("127.0.0.1", taken)), pytest.raises(UsageError, match="only 0 are free"):
        free_ports(1)
    with pytest.raises(UsageError, match="2 ports are wanted"):
        free_ports(2)


@pytest.mark.parametrize("told", ["all", "5-", "80-90", "30000-29000", "30000-70000", "30000"])
def test_what_is_no_range_is_told(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", told)
    with pytest.raises(UsageError, match="not a range of ports") as error:
        free_ports(1)
    assert "20000-32000" in (error.value.next_step or "")


_APART = 32_100
"""The first port of a range in which no sandbox of this machine takes ports, unless somebody chose another range."""

_HAND_OUT = """
import sys
from kmigrate.sandbox.ports import free_ports
print(*free_ports(8), flush=True)
sys.stdin.read()
"""


def test_processes_that_start_sandboxes_at_the_same_time_are_given_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server listens yet, so each port would be free for both."""
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path))
    monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", f"{_APART}-{_APART + 15}")
    command = [sys.executable, "-c", _HAND_OUT]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    try:
        given = [int(port) for each in processes if each.stdout for port in each.stdout.readline().split()]
    finally:
        for each in processes:
            each.communicate("")
    assert sorted(given) == list(range(_APART, _APART + 16))
    assert len(free_ports(8)) == 8, "the ports of a process that has ended are free again"


def test_a_port_that_is_bound_later_is_kept_as_long_as_its_sandbox_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KMIGRATE_SANDBOX_PORTS", f"{_APART + 20}-{_APART + 21}")
    sandbox = tmp_path / "sandbox.json"
    sandbox.touch()
    reserve(_APART + 20, sandbox)
    assert free_ports(1) == [_APART + 21]
    with pytest.raises(UsageError, match="only 1 are free"):
        free_ports(2)
    sandbox.unlink()
    assert sorted(free_ports(2)) == [_APART + 20, _APART + 21]
    assert list((tmp_path / "cache" / "reserved-ports").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_not_told_as_a_lack_of_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.touch()
    monkeypatch.setenv("KMIGRATE_CACHE", str(cache))
    with pytest.raises(FileExistsError, match="cache"):
        free_ports(1)
