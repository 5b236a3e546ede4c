"""OAUTHBEARER for Spark's Kafka client, which takes only JSON Web Tokens, from a file or made by the client.

Spark uses Java's Kafka client. The client reads a signed token from the token's file, again at each login. The client
refuses a file with an unsigned token (`alg` none, which only brokers for trials believe). Instead the client makes a
similar token out of the claims of kmigrate's token.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Any

from kmigrate.errors import UsageError

__all__ = ["bearer_settings"]

_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_KINDS = ((str, "String"), ((int, float), "Number"))
_MADE_BY_THE_CLIENT = ("iat", "exp")


def bearer_settings(token: str, file: Path) -> dict[str, str]:
    """Return the settings with which Java's client logs in by the token, which also stands in the file."""
    header, _, rest = token.partition(".")
    payload, _, signature = rest.partition(".")
    claims = _claims(payload)
    if signature and header:
        return {
            "sasl.jaas.config": f"{_MODULE};",
            "sasl.login.callback.handler.class": _HANDLER,
            "sasl.oauthbearer.token.endpoint.url": file.absolute().as_uri(),
        }
    given = " ".join(
        f'unsecuredLogin{kind}Claim_{name}="{_quoted(value)}"'
        for name, value in claims.items()
        for types, kind in _KINDS
        if name not in _MADE_BY_THE_CLIENT and isinstance(value, types) and not isinstance(value, bool)
    )
    return {"sasl.jaas.config": f"{_MODULE} {given};"}


def _claims(payload: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(
            "parity-token",
            "the token of this cluster is no JSON Web Token, and Spark's Kafka client takes no other",
            still_true="nothing was read and nothing was changed",
            next_step="give verify a login by SCRAM or a certificate, in a configuration file of its own (--config)",
        )
    return found


def _quoted(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"')
