"""Defines how a cluster is reached: built once from the configuration, and passed down as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmigrate.model.security import PLAINTEXT, Security

__all__ = ["ClusterSettings"]


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The connection settings of a named cluster, for the wire client and for librdkafka's admin client."""

    name: str
    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = "kmigrate"
    request_timeout_s: float = 30.0
    admin: Mapping[str, str] = field(default_factory=dict)
    """Extra librdkafka settings of the admin client (`[clusters.X.admin]`)."""
    security: Security = PLAINTEXT

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap)

    def overlaps(self, other: ClusterSettings) -> bool:
        """Return whether both name the same cluster, by name or by a bootstrap address; no broker is asked."""
        return self.name == other.name or bool(set(self.bootstrap) & set(other.bootstrap))
