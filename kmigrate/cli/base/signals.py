"""SIGTERM and a closed terminal (SIGHUP) end a call as Ctrl-C does: the call says what is true and what comes next."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["heeded"]

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def heeded() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into Ctrl-C; afterwards end this process by the signal, as whoever sent it expects.

    A signal that is ignored (`nohup`) stays ignored. Where Ctrl-C is ignored, nothing is turned into Ctrl-C.
    """
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    turned = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in turned:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in turned:
            signal.signal(number, signal.SIG_DFL)
    if received:
        signal.raise_signal(received[0])
