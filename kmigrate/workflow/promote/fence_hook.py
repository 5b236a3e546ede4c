"""The hook before a fence, as promotes and rollbacks call the hook; the controller runs the configured commands."""

from __future__ import annotations

from typing import Protocol

from kmigrate.model.records import TopicRecord

__all__ = ["FenceHook", "NoHook"]


class FenceHook(Protocol):
    """Work that a request waits for before its fence, once."""

    def due_before_fence(self, record: TopicRecord) -> bool:
        """Return whether the work has yet to be done for the topic's request."""

    async def before_fence(self, record: TopicRecord) -> None:
        """Do the work; raise Refused where the topic must not be fenced."""


class NoHook:
    """No work before a fence."""

    def due_before_fence(self, record: TopicRecord) -> bool:
        return False

    async def before_fence(self, record: TopicRecord) -> None:
        """Do nothing."""
