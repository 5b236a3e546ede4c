"""Spark's access to a cluster: settings of Kafka's Java client, from the settings of the configuration file.

For OAUTHBEARER the Java client takes only JSON Web Tokens: a signed token from a file, read again at each login, or a
token that the client makes. An unsigned token (`alg` none, which only brokers for trials believe) is refused in a file,
so the client makes a similar token out of the claims of kmigrate's token.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kmigrate.errors import UsageError

__all__ = ["KafkaOptions"]

SAME_NAME = {
    "security.protocol",
    "sasl.kerberos.service.name",
    "ssl.endpoint.identification.algorithm",
    "client.id",
    "metadata.max.age.ms",
}

_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_KINDS = ((str, "String"), ((int, float), "Number"))
_MADE_BY_THE_CLIENT = ("iat", "exp")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Spark's access to a cluster: bootstrap addresses, and settings of the Java client by their own names."""

    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets

    def java(self) -> dict[str, str]:
        """Return every setting by its Java name."""
        return {**self.settings, "bootstrap.servers": self.bootstrap}

    @classmethod
    def from_librdkafka(
        cls, settings: Mapping[str, str], *, token: str = "", token_file: Path | None = None
    ) -> KafkaOptions:
        """Return the options of librdkafka's settings; the token comes as text, and in a file for Java's client."""
        java = {name: value for name, value in settings.items() if name in SAME_NAME}
        if java.get("ssl.endpoint.identification.algorithm") == "none":
            java["ssl.endpoint.identification.algorithm"] = ""  # Java's word for none
        mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
        if mechanism == "OAUTHBEARER" and token_file is not None:
            java |= {"sasl.mechanism": mechanism, **_bearer(token, token_file)}
        elif mechanism is not None:
            java["sasl.mechanism"] = mechanism
            java["sasl.jaas.config"] = _jaas(
                mechanism, settings.get("sasl.username", ""), settings.get("sasl.password", "")
            )
        if "ssl.ca.location" in settings:
            java["ssl.truststore.type"] = "PEM"
            java["ssl.truststore.location"] = settings["ssl.ca.location"]
        if "ssl.certificate.location" in settings and "ssl.key.location" in settings:
            java["ssl.keystore.type"] = "PEM"
            java["ssl.keystore.certificate.chain"] = Path(settings["ssl.certificate.location"]).read_text()
            java["ssl.keystore.key"] = Path(settings["ssl.key.location"]).read_text()
            if "ssl.key.password" in settings:
                java["ssl.key.password"] = settings["ssl.key.password"]
        return cls(settings["bootstrap.servers"], java)


def _jaas(mechanism: str, username: str, password: str) -> str:
    modules = {
        "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
        "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
        "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    }
    if mechanism not in modules:
        raise UsageError(
            "parity-sasl-mechanism",
            f"parity can not log in with SASL mechanism {mechanism or '(none given)'}",
            still_true="nothing was read and nothing was changed",
            next_step=f"use one of {', '.join(modules)}",
        )

    return f"{modules[mechanism]} required username={_quoted(username)} password={_quoted(password)};"


def _bearer(token: str, file: Path) -> dict[str, str]:
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
        f"unsecuredLogin{kind}Claim_{name}={_quoted(value)}"
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
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
