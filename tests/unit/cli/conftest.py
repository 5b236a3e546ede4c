"""Signals as a terminal's processes have them, however these tests were started."""

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
    """SIGINT: one that was started in the background ignores it."""
    with _heeded(signal.SIGINT, signal.default_int_handler):
        yield


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP: what we start ends where its terminal does, also under `nohup`."""
    with _heeded(signal.SIGHUP, signal.SIG_DFL):
        yield
