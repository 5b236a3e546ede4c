"""Processes by identity, and the keeper that ends a broker together with the broker's parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kmigrate.sandbox.processes import ProcessIdentity, end_all, identify, spawn_detached, spawn_tied

_SLEEP = ["sleep", "60"]


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_process_with_many_threads_stands_still_once_it_is_stopped(tmp_path: Path) -> None:
    """Each thread writes the time without end; a thread that runs on would write a later time."""
    written = tmp_path / "written"
    program = (
        "import pathlib, sys, threading, time\n"
        "def write():\n"
        "    with open(sys.argv[1], 'a', buffering=1) as sink:\n"
        "        while True: sink.write(f'{time.monotonic_ns()}\\n')\n"
        "for _ in range(8): threading.Thread(target=write).start()\n"
    )
    running = spawn_detached(
        [sys.executable, "-c", program, str(written)], log=tmp_path / "log", environment=dict(os.environ)
    )
    try:
        assert _within(20, lambda: written.exists() and written.stat().st_size > 0)
        for _ in range(5):
            assert running.signal(signal.SIGSTOP)
            size = written.stat().st_size
            time.sleep(0.02)
            assert written.stat().st_size == size
            running.signal(signal.SIGCONT)
            assert _within(20, lambda size=size: written.stat().st_size > size)  # type: ignore[misc]
    finally:
        end_all([running])


def test_a_recycled_process_id_is_never_signalled(tmp_path: Path) -> None:
    running = spawn_detached(_SLEEP, log=tmp_path / "log", environment=dict(os.environ))
    try:
        earlier = ProcessIdentity(running.pid, "another time")
        assert not earlier.alive()
        assert not earlier.signal(signal.SIGKILL)
        end_all([earlier])
        assert running.alive()
    finally:
        end_all([running])
    assert not running.alive()
    assert identify(running.pid) is None


def test_a_stopped_process_is_alive_and_can_be_ended(tmp_path: Path) -> None:
    running = spawn_detached(_SLEEP, log=tmp_path / "log", environment=dict(os.environ))
    running.signal(signal.SIGSTOP)
    assert running.alive()
    end_all([running])
    assert not running.alive()


def test_a_tied_process_writes_to_its_log_and_can_be_ended_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "data"
    folder.mkdir()
    script = ["sh", "-c", "echo to-out; echo to-err >&2; exec sleep 60"]
    running = spawn_tied(script, log=log, environment=dict(os.environ), folder=folder)
    assert _within(5, lambda: log.read_text().split() == ["to-out", "to-err"])
    end_all([running])
    assert not running.alive()
    assert folder.exists(), "a killed broker keeps its data for its restart"


_PARENT = """
import os, sys, time
from pathlib import Path
from kmigrate.sandbox.processes import spawn_tied
root = Path(sys.argv[1])
for name in ("one", "two"):
    (root / name).mkdir(parents=True)
    tied = spawn_tied(["sleep", "60"], log=root / name / "log", environment=dict(os.environ), folder=root / name)
    print(tied.pid, flush=True)
if os.fork() == 0:
    time.sleep(60)  # a fork that lives on keeps nothing alive
time.sleep(60)
"""


def test_tied_processes_and_their_folders_go_when_the_parent_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(root)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        tied = [identify(int(parent.stdout.readline())) for _ in range(2)]
        try:
            parent.kill()
            assert all(process is not None for process in tied)
            assert _within(5, lambda: not any(process and process.alive() for process in tied))
            assert _within(5, lambda: not root.exists())
        finally:
            os.killpg(parent.pid, signal.SIGKILL)  # the fork
