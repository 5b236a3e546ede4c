"""The peak memory of a process and its children: a child counts once it has memory of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.meter import TreePeak

_MB = 40
_GROW = f"memory = bytearray({_MB} << 20); "
_FORK = _GROW + "import os, time; os.fork(); time.sleep(0.5)"
_START = "import subprocess, sys; subprocess.run([sys.executable, '-c', \"" + _GROW + 'import time; time.sleep(0.5)"])'


def peak_mb(program: str) -> float:
    with subprocess.Popen([sys.executable, "-c", program]) as process, TreePeak(process.pid) as peak:
        process.wait()
    return peak.mb


def test_a_child_counts_once_it_has_memory_of_its_own() -> None:
    forked, started = peak_mb(_FORK), peak_mb(_START)
    assert _MB < forked < 2 * _MB, "the memory of a child before exec is its parent's"
    assert _MB < started < 2 * _MB
