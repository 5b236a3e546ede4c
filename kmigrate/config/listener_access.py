"""Security keys of `[router]` and its client table; only a router reads them, at its start: files are on its host.

A key that the chosen protocol does not use is refused, as for clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli

from kmigrate.config.load import flat
from kmigrate.config.raw_value import RawValue, bad_value, is_file, located, resolve
from kmigrate.config.secret_text import FileText, SecretText
from kmigrate.config.security import no_kerberos, security_of
from kmigrate.config.settings import RouterSection, Settings
from kmigrate.errors import UsageError
from kmigrate.model.listener_access import ANYBODY, MECHANISMS, OPEN_ACCESS, ClientEntry, ListenerAccess, ListenerTls
from kmigrate.model.nearest import nearest
from kmigrate.model.security import Security
from kmigrate.model.settings import ClusterSettings

__all__ = ["access_of"]

_TLS_KEYS = ("certificate", "key", "key_password", "client_ca")
_SASL_KEYS = ("login", "sasl_mechanisms", "login_timeout_ms")
_JUDGED = tuple(each for each in MECHANISMS if each != "OAUTHBEARER")
"""Mechanisms that the router can check itself: only parties that know a token's issuer can check the token."""
_OWN_KEYS = ("sasl.", "ssl.certificate.location", "ssl.key.")
"""Prefixes of a cluster's keys that each client has for itself; all clients trust the same authorities."""


def access_of(settings: Settings, env: Mapping[str, str]) -> ListenerAccess:
    """Return what `[router]` says about its listeners; read the named files now."""
    return _Reader(settings, env).access()


class _Reader:
    """A single read of the section, with the origin of each key."""

    def __init__(self, settings: Settings, env: Mapping[str, str]) -> None:
        self._settings = settings
        self._section: RouterSection = settings.router
        self._env = env
        self._folder = settings.path.parent if settings.path else Path()
        self._files: list[str] = []

    def access(self) -> ListenerAccess:
        protocol = self._section.security_protocol
        tls, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
        for keys, used, wanted in (
            (_TLS_KEYS, tls, "SSL or SASL_SSL"),
            (_SASL_KEYS, sasl, "SASL_SSL or SASL_PLAINTEXT"),
            (("credentials",), sasl or tls, "SASL_SSL, SASL_PLAINTEXT or SSL"),
        ):
            for key in keys:
                if not used and self._is_given(key):
                    raise self._bad(key, f"security_protocol {wanted}, or this key left out", "it would not be used")
        if protocol == "PLAINTEXT":
            return OPEN_ACCESS
        mapped = sasl and self._section.login == "mapped"
        clients = self._clients(mapped, sasl)
        return ListenerAccess(
            tls=self._tls() if tls else None,
            mechanisms=self._mechanisms(mapped) if sasl else (),
            mapped=mapped,
            clients=clients,
            files=tuple(self._files),
        )

    def _tls(self) -> ListenerTls:
        section = self._section
        for key in ("certificate", "key"):
            if not getattr(section, key):
                why = f"it is missing, and security_protocol is {section.security_protocol}"
                raise self._bad(key, "a PEM file", why)
        return ListenerTls(
            self._file("certificate"), self._file("key"), str(section.key_password), self._file("client_ca")
        )

    def _mechanisms(self, mapped: bool) -> tuple[str, ...]:
        able = _JUDGED if mapped else MECHANISMS
        chosen = tuple(each.upper() for each in self._section.sasl_mechanisms)
        for each in chosen:
            if each == "GSSAPI":
                raise no_kerberos(self._given("sasl_mechanisms"), "its tickets are for a broker's host name")
            if each not in able:
                why = f"the router cannot judge {each} itself" if each in MECHANISMS else f"found {each!r}"
                raise self._bad("sasl_mechanisms", ", ".join(able), why)
        return chosen or able

    # the table

    def _clients(self, mapped: bool, sasl: bool) -> dict[str, ClientEntry]:
        if not self._section.credentials:
            if mapped:
                raise self._bad("credentials", "a TOML file with the clients", "it is missing, and login is mapped")
            return {}
        path = Path(self._file("credentials"))
        self._files.append(str(path))
        try:
            content = tomli.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise self._bad("credentials", "a TOML file with the clients", f"{path}: {why}") from error
        found: dict[str, ClientEntry] = {}
        for section, table in content.items():
            if section != "clients" or not isinstance(table, dict):
                raise self._bad("credentials", "tables named [clients.NAME]", f"{path}: [{section}] is none")
            for name, keys in table.items():
                found[name] = self._entry(name, keys, path, mapped, sasl)
        if mapped and not found:  # such as a file that is still empty
            raise self._bad("credentials", "tables named [clients.NAME]", f"{path} has no client, and login is mapped")
        return found

    def _entry(self, name: str, keys: Any, path: Path, mapped: bool, sasl: bool) -> ClientEntry:
        place = f"[clients.{name}]"
        if not isinstance(keys, dict):
            raise bad_value(RawValue(place, SecretText(), str(path)), f"a table {place}", "it is none")
        texts = {"password": "", "certificate": ""}
        upstream: dict[str, Security] = {}
        for key, value in keys.items():
            given = RawValue(f"{place} {key}", value, str(path))
            if key == "clusters" and isinstance(value, dict):
                upstream = {each: self._upstream(place, each, table, path) for each, table in value.items()}
            elif key in texts:
                text = resolve(given, self._env, path.parent)
                if isinstance(text.value, FileText):
                    self._files.append(text.value.path)
                texts[key] = self._text(text)
            else:
                raise bad_value(given, f"password, certificate or [clients.{name}.clusters.CLUSTER]", "no such key")
        password, certificate = texts["password"], texts["certificate"]
        called = RawValue(place, SecretText(), str(path))
        if bool(password) != (mapped and name != ANYBODY):
            why = "its password is missing" if mapped and name != ANYBODY else "it has a password that nobody asks for"
            raise bad_value(called, "a password where login is mapped, and nowhere else", why)
        if certificate and (sasl or not self._section.client_ca):
            why = "its certificate is never looked at"
            raise bad_value(called, "security_protocol SSL with client_ca, or no certificate", why)
        return ClientEntry(name, password, certificate, upstream)

    def _upstream(self, place: str, cluster: str, table: Any, path: Path) -> Security:
        """Return a client's security at a cluster: the cluster's protocol and authorities, the client's credential."""
        known = self._settings.clusters
        section = f"{place[:-1]}.clusters.{cluster}]"
        if cluster not in known or not isinstance(table, dict):
            why = f"no such cluster{nearest(cluster, known)}" if cluster not in known else "it is no table"
            raise bad_value(RawValue(section, SecretText(), str(path)), f"one of {', '.join(sorted(known))}", why)
        general: ClusterSettings = known[cluster]
        given = {"security.protocol": RawValue(section, general.security.protocol, str(path), text=True)}
        for key, value in flat(table, ()):
            one = resolve(RawValue(f"{section} {key}", value, str(path)), self._env, path.parent)
            if not key.startswith(_OWN_KEYS):
                raise bad_value(one, f"keys that begin with {', '.join(_OWN_KEYS)}", "it is the same for all clients")
            given[key] = one
        own = security_of(cluster, given, path.parent)
        if own.tls is None or general.security.tls is None:
            return own
        trusted = replace(own.tls, ca_file=general.security.tls.ca_file, check_host=general.security.tls.check_host)
        return replace(own, tls=trusted)

    # keys

    def _text(self, given: RawValue) -> str:
        if not isinstance(given.value, str) or not given.value:
            raise bad_value(given, "a text")
        return str(given.value)

    def _is_given(self, key: str) -> bool:
        return f"[router] {key}" in self._settings.origins

    def _given(self, key: str) -> RawValue:
        name = f"[router] {key}"
        value = getattr(self._section, key)
        return RawValue(name, value, self._settings.origins.get(name, self._settings.place))

    def _bad(self, key: str, expected: str, why: str) -> UsageError:
        return bad_value(self._given(key), expected, why)

    def _file(self, key: str) -> str:
        name = str(getattr(self._section, key))
        if not name:
            return ""
        path = located(self._folder, name)
        if not is_file(path):
            raise self._bad(key, "a file", f"{path} is no file")
        return str(path)
