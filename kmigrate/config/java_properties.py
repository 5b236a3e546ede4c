"""Translates a property file of a Java client to the keys of `[clusters.NAME]`.

Passwords are kept apart from the other values, because a configuration file names a password's place only. A store in
Java's own format is refused with the command that makes a PEM file of the store.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import javaproperties

from kmigrate.config.java_names import java_hint
from kmigrate.config.secret_text import SecretText
from kmigrate.errors import UsageError

__all__ = ["JavaClient", "read_properties", "translate_properties"]

_SAME = ("bootstrap.servers", "security.protocol", "sasl.mechanism", "client.id", "request.timeout.ms")
"""Settings with the same name and the same values."""
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_CONVERT = {
    "truststore": "keytool -exportcert -rfc -keystore {store} -alias ALIAS -file ca.pem, "
    "then ssl.truststore.type=PEM and ssl.truststore.location=ca.pem",
    "keystore": "keytool -importkeystore -srckeystore {store} -destkeystore key.p12 -deststoretype PKCS12, "
    "openssl pkcs12 -in key.p12 -out key.pem, then ssl.keystore.type=PEM and ssl.keystore.location=key.pem",
}
_PEM_TEXTS = ("certificates", "certificate.chain", "key")
"""Settings of a store that hold PEM text in place of a file."""


@dataclass(frozen=True, slots=True)
class JavaClient:
    """The settings of a Java client in kmigrate's names."""

    keys: Mapping[str, str]
    """Keys of `[clusters.NAME]` with values that are no secrets."""
    secrets: Mapping[str, SecretText] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    """Settings that kmigrate does not need, such as those of a producer or consumer."""


def read_properties(file: Path) -> dict[str, str]:
    """Return the settings of a property file; raise UsageError if the file cannot be read."""
    try:
        return dict(javaproperties.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        why = error.strerror or "it cannot be read"
    except UnicodeDecodeError:
        why = "it is not UTF-8 text"
    except javaproperties.InvalidUEscapeError as error:
        why = f"it holds the broken escape {error.escape}"
    raise UsageError(
        "bad-properties",
        f"property file {file}: {why}",
        still_true="nothing was contacted or changed",
        next_step="expected: the property file of a Java client, as --command-config of Kafka's own tools takes it",
    )


def translate_properties(properties: Mapping[str, str], file: str, folder: Path) -> JavaClient:
    """Return the settings in kmigrate's names; relative paths start at `folder`, as in the Java client's process."""
    return _Translation(properties, file, folder).client()


class _Translation:
    """One property file during its translation."""

    def __init__(self, properties: Mapping[str, str], file: str, folder: Path) -> None:
        self._given, self._file, self._folder = dict(properties), file, folder
        self._keys: dict[str, str] = {}
        self._secrets: dict[str, SecretText] = {}
        self._read: set[str] = set()

    def client(self) -> JavaClient:
        for key, value in self._given.items():
            if "${" in value:
                raise self._bad(key, "names a value of a config provider", "the value itself")
        self._keys |= {key: value for key in _SAME if (value := self._take(key))}
        protocol = self._keys.get("security.protocol", "").upper()
        if protocol.endswith("SSL"):  # Java ignores settings of TLS and of a login that the protocol does not use
            self._tls()
        if protocol.startswith("SASL"):
            self._login()
        else:
            self._keys.pop("sasl.mechanism", None)
        return JavaClient(self._keys, self._secrets, tuple(sorted(self._given.keys() - self._read)))

    def _take(self, key: str) -> str:
        self._read.add(key)
        return self._given.get(key, "").strip()

    def _tls(self) -> None:
        key = "ssl.endpoint.identification.algorithm"
        if key in self._given:
            self._keys[key] = self._take(key) or "none"
        trusted, own = self._store("truststore"), self._store("keystore")
        if trusted:
            self._keys["ssl.ca.location"] = trusted
        if own:  # a PEM file of Java holds the chain and the private key
            self._keys |= {"ssl.certificate.location": own, "ssl.key.location": own}
        password = self._take("ssl.key.password")
        if password:
            self._secrets["ssl.key.password"] = SecretText(password)

    def _store(self, kind: str) -> str:
        """Return the path of a PEM store; '' without a store; refuse a store in another form."""
        prefix = f"ssl.{kind}."
        for part in _PEM_TEXTS:
            key = f"{prefix}{part}"
            if key in self._given:
                raise self._bad(key, f"holds PEM text{java_hint(key)}", f"a PEM file and {prefix}location")
        kind_of_file, location = self._take(f"{prefix}type").upper(), self._take(f"{prefix}location")
        self._take(f"{prefix}password")
        if location and kind_of_file != "PEM":
            what = f"is a store of type {kind_of_file or 'JKS'}, and kmigrate reads PEM files"
            raise self._bad(f"{prefix}location", what, _CONVERT[kind].format(store=shlex.quote(location)))
        return str((self._folder / Path(location).expanduser()).absolute()) if location else ""

    def _login(self) -> None:
        mechanism = self._keys.get("sasl.mechanism", "")
        if mechanism.upper() == "OAUTHBEARER":
            self._token()
        elif mechanism.upper() in _PASSWORD_MECHANISMS:
            self._password()

    def _password(self) -> None:
        jaas = self._take("sasl.jaas.config")
        options = {found[1]: _unescaped(found) for found in _JAAS_OPTION.finditer(jaas)}
        for option in ("username", "password"):
            if not options.get(option):
                raise self._bad("sasl.jaas.config", f"names no {option}", 'username="…" password="…"')
        self._keys["sasl.username"] = options["username"]
        self._secrets["sasl.password"] = SecretText(options["password"])

    def _token(self) -> None:
        url = self._take(_TOKEN_URL)
        self._read |= {"sasl.jaas.config", "sasl.login.callback.handler.class"}
        if not url.startswith("file://"):
            key = _TOKEN_URL if url else "sasl.mechanism"
            what = "needs a token, which a class of the Java client fetches"
            raise self._bad(key, what, f"a token file: {_TOKEN_URL}=file:///PATH")
        self._keys["sasl.oauthbearer.token.file"] = url.removeprefix("file://")

    def _bad(self, key: str, what: str, expected: str) -> UsageError:
        return UsageError(
            "bad-properties",
            f"property file {self._file}: {key} {what}",
            still_true="nothing was contacted or changed",
            next_step=f"expected: {expected}",
        )


def _unescaped(found: re.Match[str]) -> str:
    """Return the value of a JAAS option without quotes and backslashes."""
    quoted = found[2] if found[2] is not None else found[3]
    return found[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
