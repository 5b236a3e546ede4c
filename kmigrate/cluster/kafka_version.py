"""Tells which version of Kafka a cluster runs, as far as its brokers tell it."""

from __future__ import annotations

import asyncio

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.requests import newest_versions
from kmigrate.errors import KmigrateError
from kmigrate.protocol.api import ApiKey, entity

__all__ = ["kafka_version", "read_apis", "version_text"]

_SECONDS = 5.0
_METADATA_VERSIONS = {14: "3.6", 19: "3.7", 20: "3.8", 21: "3.9", 25: "4.0", 27: "4.1", 30: "4.3"}
"""Released Kafka versions by finalised metadata.version, as far as settled; other levels are shown as a number."""


async def kafka_version(client: ClusterClient) -> str:
    """Return the version of a cluster in words; '' for a cluster that does not answer within seconds."""
    try:
        async with asyncio.timeout(_SECONDS):
            _, level = await read_apis(client)
    except (TimeoutError, KmigrateError):
        return ""
    return version_text(level)


def version_text(level: int) -> str:
    """Return the version of Kafka in words by the finalised metadata.version; −1: without."""
    return _METADATA_VERSIONS.get(level, f"metadata.version {level}") if level >= 0 else "unknown version (no KRaft)"


async def read_apis(client: ClusterClient) -> tuple[dict[int, int], int]:
    """Return API keys with their highest version, and the finalised metadata.version (−1 without)."""
    request = entity(ApiKey.API_VERSIONS, 3, "request")
    answer = await client.call(request(client_software_name="kmigrate", client_software_version="doctor"))
    apis = newest_versions(answer)
    levels = {str(f.name): int(f.max_version_level) for f in getattr(answer, "finalized_features", ())}
    return apis, levels.get("metadata.version", -1)
