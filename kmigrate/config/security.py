"""The security keys of `[clusters.NAME]`, by librdkafka's names, as one frozen value for all our clients.

Two names are not librdkafka's, as a token changes: `sasl.oauthbearer.token.file` and `sasl.oauthbearer.token.command`.
A key that the protocol does not use is refused: a password that no login asks for is a mistake.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from kmigrate.config.raw_value import RawValue, bad_value, is_file, located
from kmigrate.config.secret_text import FileText
from kmigrate.errors import UsageError
from kmigrate.model.security import PLAINTEXT, Bearer, Login, Security, Tls

__all__ = ["SECURITY_KEYS", "no_kerberos", "protocol_of", "security_of"]

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = (*_PASSWORDS, "OAUTHBEARER")

_TLS_KEYS: Mapping[str, str] = {
    "ssl.ca.location": "a PEM file with the authorities to trust",
    "ssl.certificate.location": "a PEM file with our certificate and its chain",
    "ssl.key.location": "a PEM file with our private key",
    "ssl.key.password": "the private key's password, best as { env = … } or { file = … }",
    "ssl.endpoint.identification.algorithm": "https, or none to accept a certificate of another host name",
}
_SASL_KEYS: Mapping[str, str] = {
    "sasl.mechanism": f"one of {', '.join(_MECHANISMS)}",
    "sasl.username": "a name",
    "sasl.password": "a password, best as { env = … } or { file = … }",
    "sasl.oauthbearer.token.file": "a file that holds the token, read at each login",
    "sasl.oauthbearer.token.command": "a command that prints the token, run at each login",
}
SECURITY_KEYS: Mapping[str, str] = {
    "security.protocol": f"one of {', '.join(_PROTOCOLS)}",
    **_SASL_KEYS,
    **_TLS_KEYS,
}


def security_of(name: str, keys: Mapping[str, RawValue], folder: Path) -> Security:
    """Return the security settings of a cluster's keys; relative paths start at `folder`."""
    protocol = protocol_of(keys)
    tls, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for key, given in keys.items():
        if (key in _TLS_KEYS and not tls) or (key in _SASL_KEYS and not sasl):
            wanted = "SSL or SASL_SSL" if key in _TLS_KEYS else "SASL_SSL or SASL_PLAINTEXT"
            raise bad_value(
                given,
                f"security.protocol {wanted} in [clusters.{name}], or this key left out",
                f"not used with security.protocol {protocol}",
            )
    if protocol == "PLAINTEXT":
        return PLAINTEXT
    return Security(
        tls=_tls(keys, folder) if tls else None,
        sasl=_sasl(name, keys, folder) if sasl else None,
    )


def protocol_of(keys: Mapping[str, RawValue]) -> str:
    """Return `security.protocol` in capitals, PLAINTEXT if the key is not given."""
    given = keys.get("security.protocol")
    if given is None:
        return "PLAINTEXT"
    found = str(given.value).upper()
    if found not in _PROTOCOLS:
        raise bad_value(given, SECURITY_KEYS["security.protocol"])
    return found


def _tls(keys: Mapping[str, RawValue], folder: Path) -> Tls:
    certificate, key = (_file(keys, name, folder) for name in ("ssl.certificate.location", "ssl.key.location"))
    if bool(certificate) != bool(key):
        lonely = keys["ssl.certificate.location" if certificate else "ssl.key.location"]
        raise bad_value(lonely, "ssl.certificate.location and ssl.key.location together", "its other half is missing")
    check = keys.get("ssl.endpoint.identification.algorithm")
    if check is not None and str(check.value).lower() not in ("https", "none"):
        raise bad_value(check, _TLS_KEYS["ssl.endpoint.identification.algorithm"])
    return Tls(
        ca_file=_file(keys, "ssl.ca.location", folder),
        cert_file=certificate,
        key_file=key,
        key_password=_text(keys, "ssl.key.password"),
        check_host=check is None or str(check.value).lower() == "https",
    )


def _sasl(name: str, keys: Mapping[str, RawValue], folder: Path) -> Login | Bearer:
    given = keys.get("sasl.mechanism")
    if given is None:
        raise _missing(name, keys, "sasl.mechanism")
    mechanism = str(given.value).upper()
    if mechanism == "GSSAPI":
        raise no_kerberos(given, "kmigrate does not speak Kerberos")
    if mechanism not in _MECHANISMS:
        raise bad_value(given, _SASL_KEYS["sasl.mechanism"])
    if mechanism == "OAUTHBEARER":
        return _bearer(name, keys, folder)
    for key in ("sasl.username", "sasl.password"):
        if key not in keys:
            raise _missing(name, keys, key)
    for key in ("sasl.oauthbearer.token.file", "sasl.oauthbearer.token.command"):
        if key in keys:
            raise bad_value(keys[key], '"sasl.mechanism" = "OAUTHBEARER"', f"not used with {mechanism}")
    password = keys["sasl.password"].value
    return Login(
        mechanism,
        _text(keys, "sasl.username"),
        _text(keys, "sasl.password"),
        password.path if isinstance(password, FileText) else "",
    )


def _bearer(name: str, keys: Mapping[str, RawValue], folder: Path) -> Bearer:
    for key in ("sasl.username", "sasl.password"):
        if key in keys:
            raise bad_value(keys[key], "it left out", "not used with OAUTHBEARER")
    file = _file(keys, "sasl.oauthbearer.token.file", folder)
    command = tuple(shlex.split(_text(keys, "sasl.oauthbearer.token.command")))
    if bool(file) == bool(command):
        raise _missing(name, keys, "sasl.oauthbearer.token.file or .command, one of them,")
    return Bearer(file, command)


def no_kerberos(given: RawValue, why: str) -> UsageError:
    """Return the error for `GSSAPI`, the same for a cluster and for a router."""
    return UsageError(
        "kerberos-not-supported",
        f"{given.place}: {given.key}: GSSAPI: {why}",
        still_true="nothing was contacted or changed",
        next_step="give the brokers a listener with SCRAM-SHA-512, OAUTHBEARER or client certificates for "
        "kmigrate; the other clients can stay with Kerberos",
    )


def _missing(name: str, keys: Mapping[str, RawValue], key: str) -> UsageError:
    protocol = keys["security.protocol"]
    return UsageError(
        "bad-config-value",
        f"{protocol.origin}: [clusters.{name}]: {key} is missing",
        still_true="nothing was contacted or changed",
        next_step=f"expected: {_SASL_KEYS.get(key, 'a token for OAUTHBEARER')}",
    )


def _text(keys: Mapping[str, RawValue], key: str) -> str:
    given = keys.get(key)
    if given is None:
        return ""
    if not isinstance(given.value, str) or not given.value:
        raise bad_value(given, SECURITY_KEYS[key])
    return given.value


def _file(keys: Mapping[str, RawValue], key: str, folder: Path) -> str:
    """Return a path relative to the configuration file; '' if no path is given."""
    name = str(_text(keys, key))
    if not name:
        return ""
    path = located(folder, name)
    if not is_file(path):
        raise bad_value(keys[key], SECURITY_KEYS[key], f"{path} is no file")
    return str(path)
