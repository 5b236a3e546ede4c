"""Checks that a cluster supports the API versions that kmigrate sends, before any other request.

A broker that does not know a version closes the connection without a response. Without this check kmigrate would retry
for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kmigrate.cluster.metadata import METADATA_VERSION
from kmigrate.errors import Refused
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import API_NAMES, ApiKey, decode_body, encode_body, entity
from kmigrate.protocol.frames import response_body_offset
from kmigrate.protocol.hot import FETCH_VERSION, PRODUCE_VERSION

__all__ = ["OLDEST", "ask_versions", "newest_versions", "refuse_too_old"]

OLDEST = "2.8"
"""The first Kafka version with all needed API versions: Metadata 10 brought topic ids (KIP-516)."""
_NEEDED = {ApiKey.METADATA: METADATA_VERSION, ApiKey.FETCH: FETCH_VERSION, ApiKey.PRODUCE: PRODUCE_VERSION}


def ask_versions(connection: BrokerConnection) -> asyncio.Future[bytearray]:
    """Send ApiVersions 0, which every broker knows."""
    return connection.send(
        ApiKey.API_VERSIONS, 0, [encode_body(entity(ApiKey.API_VERSIONS, 0, "request")())], flexible=False
    )


def newest_versions(answer: Any) -> dict[int, int]:
    """Return the newest version of each request by API key, from a broker's answer to ApiVersions."""
    return {int(api.api_key): int(api.max_version) for api in answer.api_keys}


def refuse_too_old(told: memoryview, settings: ClusterSettings) -> None:
    """Raise Refused if the broker that sent this ApiVersions response is older than the oldest supported version."""
    answer = decode_body(entity(ApiKey.API_VERSIONS, 0, "response"), told, response_body_offset(told, flexible=False))
    newest = newest_versions(answer)
    missing = [f"{API_NAMES[key]} {version}" for key, version in _NEEDED.items() if newest.get(key, -1) < version]
    if missing:
        raise Refused(
            "cluster-too-old",
            f"cluster {settings.name} ({settings.bootstrap_servers}) does not speak {', '.join(missing)}, "
            f"as Kafka does from {OLDEST} on",
            still_true="nothing was changed",
            next_step=f"bring its brokers to Kafka {OLDEST} or newer",
        )
