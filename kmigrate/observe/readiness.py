"""States whether a part of a process may get work, and why not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["READY", "Hindrance", "Readiness"]


class Hindrance(StrEnum):
    """The reasons why a part of a process is not ready."""

    STARTING = "starting"
    CLOSING = "closing"
    STATE_LOG_LOST = "state-log-lost"
    """The state log cannot be read: the part goes on with what it knew."""
    STATE_UNUSABLE = "state-unusable"
    """The newest state makes no routing table: the router goes on with an older table."""
    STOOD_STILL = "stood-still"
    """The process stood still, and has not read yet what was decided meanwhile."""
    REPLACED = "replaced"
    """Another router has the name of this router."""
    FAILED = "failed"
    """The engine failed, and is started again."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The readiness of a part: None as hindrance is ready; the details are for a person."""

    hindrance: Hindrance | None = None
    detail: str = ""

    @property
    def ready(self) -> bool:
        return self.hindrance is None


READY = Readiness()
