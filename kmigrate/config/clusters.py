"""`[clusters.NAME]`: librdkafka's names, some of which our own wire client reads (`security` has the security keys).

Any other key is refused by name, because a setting that only half of the product obeys is worse than no setting. Keys
under `[clusters.NAME.admin]` reach librdkafka's admin client alone, as written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kmigrate.config.java_names import java_hint
from kmigrate.config.raw_value import RawValue, bad_value
from kmigrate.config.secret_text import HiddenMap, SecretText
from kmigrate.config.security import SECURITY_KEYS, protocol_of, security_of
from kmigrate.errors import UsageError
from kmigrate.model.digits import whole_number
from kmigrate.model.nearest import nearest
from kmigrate.model.settings import ClusterSettings

__all__ = ["CLUSTER_KEYS", "cluster_settings", "parse_bootstrap"]

CLUSTER_KEYS: Mapping[str, str] = {
    "bootstrap.servers": "one or more host:port, separated by commas",
    "client.id": "a name without spaces",
    "request.timeout.ms": "a number of milliseconds from 100 to 3600000",
    **SECURITY_KEYS,
}
_ALIASES: Mapping[str, str] = {"sasl.mechanisms": "sasl.mechanism"}
"""librdkafka's second name of a key."""


def cluster_settings(
    name: str, keys: Mapping[str, RawValue], admin: Mapping[str, RawValue], place: str, folder: Path
) -> ClusterSettings:
    """Return a cluster's settings; `keys` and `admin` hold the winning value of all sources for each key."""
    keys = _with_aliases(keys)
    for key, given in keys.items():
        if key not in CLUSTER_KEYS:
            raise _unknown(name, key, given)
    if "bootstrap.servers" not in keys:
        raise UsageError(
            "bad-config-value",
            f'{place}: [clusters.{name}]: "bootstrap.servers" is missing',
            still_true="nothing was contacted or changed",
            next_step=f"expected: {CLUSTER_KEYS['bootstrap.servers']}",
        )
    client_id = keys.get("client.id")
    timeout = keys.get("request.timeout.ms")
    return ClusterSettings(
        name=name,
        bootstrap=parse_bootstrap(keys["bootstrap.servers"], protocol_of(keys)),
        client_id=_client_id(client_id) if client_id else "kmigrate",
        request_timeout_s=_milliseconds(timeout) / 1000 if timeout else 30.0,
        admin=HiddenMap({key: _admin_value(key, given) for key, given in admin.items()}),
        security=security_of(name, keys, folder),
    )


def _unknown(name: str, key: str, given: RawValue) -> UsageError:
    hint = java_hint(key) or nearest(key, CLUSTER_KEYS)
    return UsageError(
        "unknown-config-key",
        f"{given.place}: {given.key}: mirror and router do not know this key{hint}",
        still_true="nothing was contacted or changed",
        next_step=f"expected: {', '.join(CLUSTER_KEYS)}; "
        f"other librdkafka settings go under [clusters.{name}.admin] and reach the admin client alone",
    )


def _with_aliases(keys: Mapping[str, RawValue]) -> dict[str, RawValue]:
    """Return the keys; the first name of a key replaces librdkafka's second name."""
    out = dict(keys)
    for alias, key in _ALIASES.items():
        given = out.pop(alias, None)
        if given is not None and key in out:
            raise bad_value(given, f"{key} or {alias}, not both", f"{key} is given, too")
        if given is not None:
            out[key] = given
    return out


def parse_bootstrap(given: RawValue, protocol: str = "PLAINTEXT") -> tuple[tuple[str, int], ...]:
    """Return `h:p,h:p` as pairs; IPv6 addresses stand in brackets, and a `PROTOCOL://` before an address must match."""
    expected = CLUSTER_KEYS["bootstrap.servers"]
    if not isinstance(given.value, str) or not given.value.strip():
        raise bad_value(given, expected)
    out: list[tuple[str, int]] = []
    for each in given.value.split(","):
        named, scheme, address = each.strip().rpartition("://")
        if scheme and named.upper() != protocol:
            told = f'{expected}, and "security.protocol" = "{named.upper()}" as a key of its own'
            raise bad_value(given, told, f"{each.strip()!r} names protocol {named}; security.protocol is {protocol}")
        host, colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host:
            raise bad_value(given, expected, f"{each.strip()!r} is not host:port")
        number = whole_number(port)
        if number is None or not 1 <= number <= 65535:
            raise bad_value(given, f"{expected}; a port is 1 to 65535", f"{each.strip()!r} has a bad port")
        out.append((host, number))
    return tuple(out)


def _client_id(given: RawValue) -> str:
    value = given.value
    if not isinstance(value, str) or not value or any(c.isspace() for c in value):
        raise bad_value(given, CLUSTER_KEYS["client.id"])
    return value


def _milliseconds(given: RawValue) -> int:
    value: Any = given.value
    if isinstance(value, str):
        value = whole_number(value)  # librdkafka's own files quote numbers, too
    if isinstance(value, bool) or not isinstance(value, int) or not 100 <= value <= 3_600_000:
        raise bad_value(given, CLUSTER_KEYS["request.timeout.ms"])
    return value


def _admin_value(key: str, given: RawValue) -> str:
    if key == "bootstrap.servers":
        raise bad_value(given, "this key in the cluster's own section, so that all clients reach one cluster")
    if key in SECURITY_KEYS or key in _ALIASES:
        raise bad_value(given, "this key in the cluster's own section, so that all clients log in alike")
    value = given.value
    if isinstance(value, SecretText):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise bad_value(given, "a text, a number or a boolean")
