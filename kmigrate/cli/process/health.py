"""The health of a running process: /healthz says that its event loop runs, /readyz whether each engine may get work.

A router is ready from its first accepted client to the beginning of its end, while it can read the state log. Mirrors
and controllers are ready while they can read the state log, whether they lead or stand by.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from typing import Any

from kmigrate.net.clock import monotonic
from kmigrate.net.http import Page
from kmigrate.observe.readiness import READY, Hindrance, Readiness

__all__ = ["CALM_SECONDS", "EngineHealth", "Health", "health_pages"]

CALM_SECONDS = 30.0
"""Seconds of running after which an engine has got over its failure; the next pause is then the shortest."""


def _no_role() -> str:
    return ""


@dataclass(slots=True)
class EngineHealth:
    """The health of one engine of this process."""

    engine: str
    link: str = ""
    own: Callable[[], Readiness] = field(default=lambda: READY)
    """Readiness by what the engine alone knows."""
    role: Callable[[], str] = _no_role
    """`leads`, `copies` (a mirror beside the leader) or `stands by`; '' for a router."""
    failure: str = ""
    """Newest error of the engine; counts until the engine has run for `CALM_SECONDS` again."""
    began: float = inf
    """Time of the start after the failure; infinite before this start."""

    def readiness(self, log_lost: str) -> Readiness:
        if self.failure and monotonic() - self.began < CALM_SECONDS:
            return Readiness(Hindrance.FAILED, self.failure)
        own = self.own()
        if own.ready and log_lost:
            return Readiness(Hindrance.STATE_LOG_LOST, log_lost)
        return own


class Health:
    """The engines of this process and whether the process ends."""

    def __init__(self, log_lost: Callable[[], str]) -> None:
        self._log_lost = log_lost
        self._engines: dict[tuple[str, str], EngineHealth] = {}
        self.closing = False

    def add(self, engine: EngineHealth) -> EngineHealth:
        """Add an engine; an engine of the same kind and link takes the place of the former."""
        self._engines[engine.engine, engine.link] = engine
        return engine

    def drop(self, engine: EngineHealth) -> None:
        """Remove an engine that ended because its link is gone."""
        if self._engines.get((engine.engine, engine.link)) is engine:
            del self._engines[engine.engine, engine.link]

    def found(self) -> Iterator[tuple[EngineHealth, Readiness]]:
        """Yield each engine with its readiness now."""
        lost = self._log_lost()
        for _, engine in sorted(self._engines.items()):
            closing = Readiness(Hindrance.CLOSING, "the process ends")
            yield engine, closing if self.closing else engine.readiness(lost)

    @property
    def ready(self) -> bool:
        """True if every engine of the process is ready."""
        return not self.closing and all(readiness.ready for _, readiness in self.found())

    def as_json(self) -> dict[str, Any]:
        return {
            "ready": self.ready,
            "closing": self.closing,
            "engines": [
                {
                    "engine": engine.engine,
                    "link": engine.link or None,
                    "ready": readiness.ready,
                    "role": engine.role() or None,
                    "reason": readiness.hindrance,
                    "detail": readiness.detail,
                }
                for engine, readiness in self.found()
            ],
        }


def health_pages(health: Health) -> dict[str, Page]:
    """Return the pages of the probes."""

    def ready_status() -> HTTPStatus:
        return HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE

    return {
        "/healthz": Page("text/plain; charset=utf-8", lambda: ["ok\n"]),
        "/readyz": Page(
            "application/json; charset=utf-8", lambda: [json.dumps(health.as_json(), indent=2) + "\n"], ready_status
        ),
    }
