"""Translates setting names of Kafka's Java clients to the names that kmigrate reads."""

from __future__ import annotations

from collections.abc import Mapping

from kmigrate.config.secret_text import shown

__all__ = ["java_hint", "toml_line"]

_STORE = "a PEM file in place of Java's keystore: keytool -importkeystore … -deststoretype PKCS12, then openssl pkcs12"
_LOGIN = "the user name and password of the JAAS line"
_TOKEN = "a file, or a command that fetches the token"
_KEYS: Mapping[str, tuple[str, str]] = {
    "ssl.truststore.location": ('"ssl.ca.location"', "a PEM file: keytool -exportcert -rfc -keystore TRUSTSTORE"),
    "ssl.truststore.certificates": ('"ssl.ca.location"', "a PEM file with these certificates"),
    "ssl.truststore.password": ("nothing", "a PEM file of authorities has no password"),
    "ssl.truststore.type": ("nothing", '"ssl.ca.location" is always PEM'),
    "ssl.keystore.location": ('"ssl.certificate.location" and "ssl.key.location"', _STORE),
    "ssl.keystore.certificate.chain": ('"ssl.certificate.location"', "a PEM file with this chain"),
    "ssl.keystore.key": ('"ssl.key.location"', "a PEM file with this key"),
    "ssl.keystore.password": ('"ssl.key.password"', "the password of the PEM key"),
    "ssl.keystore.type": ("nothing", "certificate and key are always PEM"),
    "sasl.jaas.config": ('"sasl.username" and "sasl.password"', _LOGIN),
    "sasl.client.callback.handler.class": ("nothing", "kmigrate has no Java callbacks"),
    "sasl.login.callback.handler.class": (
        '"sasl.oauthbearer.token.file" or "sasl.oauthbearer.token.command"',
        _TOKEN,
    ),
    "sasl.oauthbearer.token.endpoint.url": ('"sasl.oauthbearer.token.command"', _TOKEN),
    "sasl.oauthbearer.config": ('"sasl.oauthbearer.token.command"', _TOKEN),
    "sasl.kerberos.service.name": ("nothing", "kmigrate does not speak Kerberos (docs/security.md)"),
    "metadata.broker.list": ('"bootstrap.servers"', "host:port, separated by commas"),
    "bootstrap.controllers": ('"bootstrap.servers"', "addresses of brokers, not of controllers"),
}


def java_hint(key: str) -> str:
    """Return kmigrate's setting for a Java client's setting, as the end of a sentence; '' for other names."""
    if key not in _KEYS:
        return ""
    name, how = _KEYS[key]
    return f"; in place of this setting of Java clients kmigrate reads {name} ({how})"


def toml_line(key: str, value: str) -> str:
    """Return the TOML line for a property of a Java client, or the name of the setting in its place."""
    if key in _KEYS:
        name, how = _KEYS[key]
        return f"{name} ({how})"
    return f'"{key}" = "{shown(key, value)}"'
