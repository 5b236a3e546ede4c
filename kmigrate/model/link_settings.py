"""The settings of a link: what its mirror makes of the target, and the limits of its promotes.

The link's record holds the settings, so that all processes and all people share them. A configuration file only has
the defaults of new links.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

__all__ = ["DefaultsFrom", "LinkSettings"]


class DefaultsFrom(StrEnum):
    """The cluster whose defaults a mirrored topic has from its promote on, for configs that the topic does not set."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Settings that a link is created with, and that `link alter` changes; times are in seconds."""

    hole_limit: int = 100_000
    """Largest hole that is filled; a larger hole (compaction) stops the partition by name."""
    align_limit: int = 2_000_000_000
    """Maximum number of filler offsets per partition (M4: 8.5 M per second)."""
    follow_log_start: bool = True
    """True if records that the source deletes are deleted from the copy."""
    sync_acls: bool = True
    """True if the target gets the ACLs of mirrored topics and groups."""
    acl_exclude: tuple[str, ...] = ()
    """Expressions of principals whose ACLs are not copied."""
    config_exclude: tuple[str, ...] = ()
    """Expressions of topic configs that are not replicated."""
    use_defaults_from: DefaultsFrom = DefaultsFrom.SOURCE
    lag_threshold: int = 1000
    """Records that a topic may lag when the topic is fenced."""
    pending_timeout_s: float = 120.0
    """Longest wait of a promote for that lag."""
    fence_timeout_s: float = 10.0
    """Longest time of a fence."""
    straggler_window_s: float = 5.0
    """Silence after which a promote takes a direct writer for gone."""
    router_silent_s: float = 5.0
    """Silence of a router after which the source broker holds the fence in the router's place."""
    deny_writers: bool = True
    """True if deny ACLs keep other writers out of a source topic while a promote can be taken back."""

    def text(self, key: str) -> str:
        """Return a setting as a person reads it."""
        value = getattr(self, key)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ", ".join(value) or "none"
        return f"{value:.15g}" if isinstance(value, float) else str(value)

    def differing(self, other: LinkSettings) -> list[str]:
        """Return the keys in which two settings differ."""
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(other, each.name)]

    def changes_to(self, other: LinkSettings) -> list[str]:
        """Return each change from these settings to others, as a person reads the change."""
        return [f"{key}: {self.text(key)} → {other.text(key)}" for key in self.differing(other)]
