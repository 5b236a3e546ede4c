"""Commands of a playbook, in process groups of their own: no process outlives the step that started the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from kmigrate.cli.base.call import Call

__all__ = ["run_command"]

_INTERRUPTED_SECONDS = 5.0
"""Seconds that a command may take to end by itself after Ctrl-C."""


def run_command(call: Call, command: Sequence[str], variables: Mapping[str, str], timeout: float) -> int:
    """Run a command and return its exit code; if late or interrupted kill its processes: none may restart clients.

    `kmigrate` means the running installation. With --json the command's output goes to stderr, because stdout belongs
    to the result. An OSError means that the command cannot be started.
    """
    words = list(command)
    if words[0] == "kmigrate":
        words[:1] = [sys.executable, "-m", "kmigrate"]
    environment = {**os.environ, **variables}
    if call.settings.path is not None:
        environment["KMIGRATE_CONFIG"] = str(call.settings.path.resolve())
    sys.stdout.flush()
    return _ended(words, environment, sys.stderr if call.json else None, timeout)


def _ended(words: list[str], environment: dict[str, str], out: TextIO | None, timeout: float) -> int:
    with _ended_with_us() as ours:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=out, start_new_session=True)
        ours.append(process)
        try:
            return process.wait(timeout)
        except KeyboardInterrupt:
            try:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, signal.SIGINT)  # as the terminal signals its own process group
                    process.wait(_INTERRUPTED_SECONDS)
            finally:  # also after a second Ctrl-C
                _kill_all_of(process)
            raise
        except subprocess.TimeoutExpired:
            _kill_all_of(process)
            raise


@contextmanager
def _ended_with_us() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list of processes to kill at SIGTERM or SIGHUP: neither signal reaches their own sessions otherwise."""
    ours: list[subprocess.Popen[bytes]] = []

    def end(number: int, _: object) -> None:
        for process in ours:
            _kill_all_of(process)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heeded = [number for number, handler in before.items() if handler is signal.SIG_DFL]  # not under nohup
    for number in heeded:
        signal.signal(number, end)
    try:
        yield ours
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def _kill_all_of(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
