"""Names a process so that others on the machine can check its end; ids alone are reused, also between containers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["has_ended", "this_process"]

_PROC = Path("/proc")
_START = 19
"""Index of the start time among the fields behind a process's name in /proc/PID/stat."""
_ENDED_STATES = ("Z", "X")


def this_process() -> str:
    """Return boot, process namespace, id and start time of this process; '' if the system has no such facts."""
    machine, start = _machine(), _state_and_start(os.getpid())[1]
    return f"{machine}/{os.getpid()}/{start}" if machine and start else ""


def has_ended(named: str) -> bool:
    """Return whether a process has surely ended; False for a process that is invisible from here."""
    machine, _, rest = named.rpartition("/")
    machine, _, pid = machine.rpartition("/")
    if not machine or machine != _machine() or not pid.isdecimal():
        return False
    state, start = _state_and_start(int(pid))
    if not start and _runs(int(pid)):
        return False
    return start != rest or state in _ENDED_STATES


def _runs(pid: int) -> bool:
    """Return whether the kernel knows the process id: `/proc` may hide processes of other users (hidepid)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    """Return the running kernel and the process namespace, which differ between machines and between containers."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115 the text of the link, which names no file
        return f"{boot}/{namespace}"
    return ""


def _state_and_start(pid: int) -> tuple[str, str]:
    """Return a process's state and start time; two empty texts if there is no such process."""
    with suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], fields[_START]
    return "", ""
