"""The configuration of a librdkafka client of a cluster: addresses and security, from the cluster's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmigrate.model.security import Bearer, Login
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import now_ms
from kmigrate.net.login import current_password, current_token
from kmigrate.protocol.codes import Code
from kmigrate.protocol.sasl import expiry_of

__all__ = ["client_config", "is_refusal"]

_TOKEN_SECONDS = 60.0
"""Assumed lifetime of a token that does not name its expiry."""

_AUTHENTICATION = -169
"""librdkafka's code of a failed login."""
_REFUSALS = frozenset(
    {
        _AUTHENTICATION,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def is_refusal(code: int) -> bool:
    """Return whether an error code says that a cluster refuses a client; librdkafka tries such a request for ever."""
    return code in _REFUSALS


def client_config(settings: ClusterSettings) -> dict[str, Any]:
    """Return the configuration with the present credentials of a silent client."""
    sasl = settings.security.sasl
    config: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap_servers,
        **settings.security.librdkafka(),
        "client.id": settings.client_id,
        "log_level": 0,
    }
    if isinstance(sasl, Bearer):
        config["oauth_cb"] = _tokens(sasl)
    if isinstance(sasl, Login):
        config["sasl.password"] = current_password(sasl)
    return config


def _tokens(bearer: Bearer) -> Callable[[str | None], tuple[str, float]]:
    """Return the callback that gives librdkafka a bearer's token and the time of the next call."""

    def token(_: str | None) -> tuple[str, float]:
        current = current_token(bearer)
        return current, expiry_of(current) or now_ms() / 1000 + _TOKEN_SECONDS

    return token
