"""Whether a cluster speaks what kmigrate speaks, asked before anything else is.

A broker closes the connection on a version that it does not know, without a word: it would be tried for ever.
"""

from __future__ import annotations

from kmigrate.cluster.layout import METADATA, METADATA_VERSION
from kmigrate.errors import Refused
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import API_NAMES, entity
from kmigrate.protocol.hot import FETCH, FETCH_VERSION, PRODUCE, PRODUCE_VERSION

__all__ = ["OLDEST", "refuse_too_old"]

OLDEST = "2.8"
"""The first Kafka that has all of them: Metadata 10 brought topic ids (KIP-516)."""
_NEEDED = {METADATA: METADATA_VERSION, FETCH: FETCH_VERSION, PRODUCE: PRODUCE_VERSION}
_API_VERSIONS = 18


async def refuse_too_old(connection: BrokerConnection, settings: ClusterSettings) -> None:
    """Raise Refused where the broker behind a connection is older than the oldest that is served."""
    answer = await connection.call(entity(_API_VERSIONS, 0, "request")(), settings.request_timeout_s)
    newest = {int(api.api_key): int(api.max_version) for api in answer.api_keys}
    missing = [f"{API_NAMES[key]} {version}" for key, version in _NEEDED.items() if newest.get(key, -1) < version]
    if missing:
        raise Refused(
            "cluster-too-old",
            f"cluster {settings.name} ({settings.bootstrap_servers}) does not speak {', '.join(missing)}, "
            f"as Kafka does from {OLDEST} on",
            still_true="nothing was changed",
            next_step=f"bring its brokers to Kafka {OLDEST} or newer",
        )
