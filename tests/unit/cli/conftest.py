"""Signal handlers as processes of a terminal have them, however these tests were started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def _heeded(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Handle SIGINT in this process, also where the tests were started in the background and ignore SIGINT."""
    with _heeded(signal.SIGINT, signal.default_int_handler):
        yield


@pytest.fixture
def hangups() -> Iterator[None]:
    """Let SIGHUP end processes, also where the tests run under `nohup`."""
    with _heeded(signal.SIGHUP, signal.SIG_DFL):
        yield
