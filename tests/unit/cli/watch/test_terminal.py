"""The full screen on a real pseudo-terminal: however it ends, the terminal is as before, and the process is gone."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[4]
_ENTER, _LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
_FIRST_S, _END_S = 60.0, 30.0


@dataclass
class Terminal:
    """A process on the full screen of a pseudo-terminal of 24 lines and 80 columns."""

    process: subprocess.Popen[bytes]
    ours: int
    theirs: int
    before: list[Any]
    """The terminal's settings before the process began."""
    shown: bytes = b""

    def read(self, holds: Callable[[bytes], bool], within_s: float) -> None:
        """Read what the process shows until a condition holds."""
        deadline = time.monotonic() + within_s
        while not holds(self.shown) and time.monotonic() < deadline:
            if select.select([self.ours], [], [], 0.1)[0]:
                self.shown += os.read(self.ours, 65536)
        assert holds(self.shown), self.shown[-500:]

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def close(self) -> None:
        for end in (self.ours, self.theirs):
            if end >= 0:
                os.close(end)
        self.ours = self.theirs = -1


def start(*, deaf: bool = False) -> Terminal:
    """Start the full screen; a deaf process ignores SIGHUP, as under nohup."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)

    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.full_screen", *(["--deaf"] if deaf else [])],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=_ROOT,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    return Terminal(process, ours, theirs, before)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = start()
    yield made
    made.process.kill()
    made.process.wait()
    made.close()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda it: it.type(b"\x03"), 130),
        (lambda it: it.process.send_signal(signal.SIGINT), 130),
        (lambda it: it.process.send_signal(signal.SIGTERM), -signal.SIGTERM),
    ],
    ids=["ctrl-c", "SIGINT", "SIGTERM"],
)
def test_every_end_leaves_the_alternate_screen_and_the_settings_as_they_were(
    terminal: Terminal, end: Callable[[Terminal], None], code: int
) -> None:
    terminal.read(lambda shown: b"promoted" in shown, _FIRST_S)
    assert _ENTER in terminal.shown
    terminal.shown = b""
    end(terminal)
    terminal.read(lambda shown: _LEAVE in shown, _END_S)
    assert terminal.process.wait(_END_S) == code
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    terminal.read(lambda shown: b"\x1b[?25h" in shown, _END_S)
    assert b"Traceback" not in terminal.shown


@pytest.mark.parametrize("deaf", [False, True])
def test_a_closed_terminal_ends_the_process(deaf: bool) -> None:
    """A process that ignores SIGHUP ends, too; it would otherwise wait for ever to write to the closed terminal."""
    made = start(deaf=deaf)
    try:
        made.read(lambda shown: b"promoted" in shown, _FIRST_S)
        made.close()
        assert made.process.wait(_END_S) == -signal.SIGHUP
    finally:
        made.process.kill()
        made.process.wait()
        made.close()
