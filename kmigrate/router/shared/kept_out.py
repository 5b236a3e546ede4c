"""Clients whose connections the router closes because a request has an API or version that the router does not take.

Such a client connects again and again. So each client is logged once, and reported while it goes on trying. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kmigrate.model.presences import KeptOutClient
from kmigrate.protocol.api import API_NAMES
from kmigrate.router.wire.apis import OFFERED

__all__ = ["KeptOutClients", "library_of", "why_kept_out"]

_REPORTED_S = 600.0
"""Time after its last request for which a client is reported."""
_MOST_KEPT = 1_000
_MOST_REPORTED = 10
"""Maximum number of reported clients; a presence record must fit into one message."""
_NAMED_BY_CLIENT_ID = re.compile(r"(kafka-python|aiokafka|pykafka)-(\d[\w.]*)")
"""Client ids that libraries use by default, and that tell name and version."""
_DEFAULT_IDS = {
    "rdkafka": "librdkafka",
    "sarama": "sarama",
    "kafkajs": "kafkajs",
    "ruby-kafka": "ruby-kafka",
    "kafka-node-client": "kafka-node",
}
"""Libraries by the client id that each uses by default."""


def library_of(software: str, client_id: str) -> str:
    """Return the library that a client has named (KIP-511), or that uses this client id by default; '' if unknown."""
    if software:
        return software
    found = _NAMED_BY_CLIENT_ID.match(client_id)
    return f"{found[1]} {found[2]}" if found else _DEFAULT_IDS.get(client_id, "")


def why_kept_out(api_key: int, version: int) -> str:
    """Return what a client sent that the router does not take."""
    if api_key not in OFFERED:
        name = API_NAMES.get(api_key)
        return f"it sends {_title(name)}, which the router hides" if name else f"it sends API key {api_key}"
    low, high = OFFERED[api_key].versions
    return f"it sends {_title(API_NAMES[api_key])} version {version}, and the router takes {low} to {high}"


def _title(name: str) -> str:
    """Return the name of an API as Kafka writes the name."""
    return "".join(part.capitalize() for part in name.split("_"))


@dataclass(slots=True)
class KeptOutClients:
    """The clients that one router has kept out lately."""

    requests: int = 0
    """Number of refused requests."""
    _last: dict[KeptOutClient, float] = field(default_factory=dict)
    """Time of each client's last refused request."""

    def note(self, client: KeptOutClient, now: float) -> bool:
        """Note a refused request; return whether the client is new here and has to be logged."""
        self.requests += 1
        is_new = client not in self._last
        if is_new and len(self._last) >= _MOST_KEPT:
            self._forget(now)
            if len(self._last) >= _MOST_KEPT:
                return False
        self._last[client] = now
        return is_new

    def reported(self, now: float) -> tuple[KeptOutClient, ...]:
        """Return the clients that have tried lately, the first few of many."""
        return tuple(sorted(self._lately(now)))[:_MOST_REPORTED]

    def count(self, now: float) -> int:
        """Return how many clients have tried lately."""
        return sum(1 for _ in self._lately(now))

    def _lately(self, now: float) -> Iterator[KeptOutClient]:
        return (client for client, last in self._last.items() if now - last <= _REPORTED_S)

    def _forget(self, now: float) -> None:
        self._last = {client: last for client, last in self._last.items() if now - last <= _REPORTED_S}
