"""Operating-system processes by identity: a process id plus the moment of the start.

Process ids are reused. With the start time an id names a process for good, and a recycled id is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from kmigrate.errors import Failed

__all__ = ["BrokerProcess", "ProcessIdentity", "Server", "end_all", "identify", "spawn_detached", "spawn_tied"]

_LIFELINE = Path(__file__).with_name("lifeline.py")
_LOOK_SECONDS = 0.02
_STOP_SECONDS = 10.0
_STANDS_STILL = frozenset("TtZX")
"""States of a thread, in /proc, that runs nothing until a signal continues the thread."""

# Children of this process. A child that ended keeps its id until the child is polled.
_CHILDREN: list[subprocess.Popen[bytes]] = []


class BrokerProcess(Protocol):
    """The runner of a broker: a process on this machine or a container."""

    @property
    def pid(self) -> int: ...

    def alive(self) -> bool: ...

    def signal(self, number: int) -> bool: ...


@dataclass(frozen=True)
class ProcessIdentity:
    """A process for good: no later process with the same id equals it."""

    pid: int
    started: str

    def alive(self) -> bool:
        for child in _CHILDREN:
            child.poll()
        return _started(self.pid) == self.started

    def signal(self, number: int) -> bool:
        """Send a signal to the process group. Return False, and send nothing, once the process is gone.

        SIGSTOP returns when the process stands still: on a busy machine, threads run on for a moment.
        """
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        if number == signal.SIGSTOP:
            _wait_until_stopped(self.pid)
        return True


@dataclass
class Server:
    """A server of a cluster. Node id, port and folder stay for good, the process as long as the server runs."""

    node: int
    port: int
    folder: Path
    process: BrokerProcess | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive()

    @property
    def pid(self) -> int:
        return self.started().pid

    def started(self) -> BrokerProcess:
        """Return the server's process."""
        if self.process is None:
            raise Failed("broker-not-started", f"{self.folder.name}: broker {self.node} was not started")
        return self.process


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a running process, or None if no process has this id."""
    started = _started(pid)
    return None if started is None else ProcessIdentity(pid, started)


def end_all(processes: Iterable[BrokerProcess], *, timeout: float = 10.0) -> None:
    """Kill each process group with SIGKILL, paused processes included, and wait until all are gone."""
    ending = [process for process in processes if process.signal(signal.SIGKILL)]
    deadline = time.monotonic() + timeout
    while any(process.alive() for process in ending) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def spawn_detached(command: list[str], *, log: Path, environment: dict[str, str]) -> ProcessIdentity:
    """Start a process that outlives this process, in a process group of its own."""
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment, start_new_session=True
        )
    _CHILDREN.append(process)
    return _identity_or_dead(process.pid)


def spawn_tied(command: list[str], *, log: Path, environment: dict[str, str], folder: Path) -> ProcessIdentity:
    """Start a process that ends when this process ends in whatever way. `folder` is then removed."""
    with log.open("ab") as sink:
        keeper = subprocess.Popen(
            # -I -S: the keeper needs the standard library only, and starts in 20 ms without the rest.
            [sys.executable, "-I", "-S", str(_LIFELINE), str(os.getpid()), str(folder), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=environment,
            start_new_session=True,
        )
    with cast("IO[bytes]", keeper.stdout) as output:
        line = output.readline()
    _CHILDREN.append(keeper)
    return _identity_or_dead(int(line)) if line.strip() else ProcessIdentity(keeper.pid, "never started")


def _identity_or_dead(pid: int) -> ProcessIdentity:
    return identify(pid) or ProcessIdentity(pid, "ended at once")


def _wait_until_stopped(pid: int) -> None:
    """Wait until no thread of a process runs any more, where /proc tells the threads' states."""
    deadline = time.monotonic() + _STOP_SECONDS
    while _thread_states(pid) - _STANDS_STILL and time.monotonic() < deadline:
        time.sleep(0.001)


def _thread_states(pid: int) -> set[str]:
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has just ended
            states.add(_fields(stat)[0])
    return states


def _fields(stat: Path) -> list[str]:
    """Return the fields after a command's name. The name, in parentheses, may hold spaces."""
    return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _started(pid: int) -> str | None:
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            state, *fields = _fields(stat)
        except OSError:
            return None
        return None if state in ("Z", "X") else fields[18]
    listed = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    columns = listed.stdout.split(maxsplit=1)
    return None if len(columns) < 2 or columns[0].startswith("Z") else columns[1].strip()
