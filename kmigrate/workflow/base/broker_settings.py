"""Compares broker-wide settings that live clients and stored state depend on: the source's with the target's.

A lower limit on the target may refuse a client. A rule names the setting, harmful direction, harm and `Scope`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Literal

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.records import LinkRecord
from kmigrate.net.tasks import together
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding

__all__ = [
    "ALL",
    "OF_CLUSTERS",
    "BrokerSettings",
    "Scope",
    "compare_settings",
    "limit",
    "read_both",
    "read_settings",
    "setting_findings",
    "settings_unknown",
]

BrokerSettings = Mapping[str, tuple[str, ...]]
"""The distinct values of each setting on the brokers of one cluster."""
_MOST_BROKERS = 50
"""Maximum number of brokers that are asked; in a larger cluster the first brokers are asked."""


class Scope(StrEnum):
    """The parts of a cluster's work that a setting matters to."""

    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    CONNECTIONS = "connections"
    MESSAGES = "messages"
    TOPICS = "topics"


ALL = frozenset(Scope)
OF_CLUSTERS = frozenset({"broker-setting", "broker-settings-unknown"})
"""References of findings about whole clusters, not about a topic or group."""
_PROTOCOLS, _NEW_PROTOCOL, _OF_NEW_PROTOCOL = "group.coordinator.rebalance.protocols", "consumer", "group.consumer."
_ASSIGNOR = re.compile(r"org\.apache\.kafka\.coordinator\.group\.assignor\.(\w+)Assignor")
_Harm = Literal["lower", "higher", "missing words", "switched off"]


_EFFECTS: Mapping[tuple[Scope, _Harm], Mapping[str, str]] = {
    (Scope.GROUPS, "lower"): {
        "group.max.session.timeout.ms": "a consumer with a longer session.timeout.ms is refused "
        "(INVALID_SESSION_TIMEOUT)",
        "group.max.size": "members beyond that number are refused (GROUP_MAX_SIZE_REACHED)",
        "group.consumer.max.size": "members of the new protocol beyond that number are refused "
        "(GROUP_MAX_SIZE_REACHED)",
        "group.consumer.session.timeout.ms": "members of the new protocol that are silent for longer lose their "
        "partitions",
        "group.consumer.max.session.timeout.ms": "a group's own longer session timeout is cut",
        "offsets.retention.minutes": "the positions of a group without members are deleted sooner",
        "offset.metadata.max.bytes": "a commit with longer metadata is refused (OFFSET_METADATA_TOO_LARGE)",
    },
    (Scope.GROUPS, "higher"): {
        "group.min.session.timeout.ms": "a consumer with a shorter session.timeout.ms is refused "
        "(INVALID_SESSION_TIMEOUT)",
        "group.consumer.heartbeat.interval.ms": "members of the new protocol hear of a new assignment later",
    },
    (Scope.GROUPS, "missing words"): {
        "group.consumer.assignors": "a member of the new protocol that names such an assignor is refused "
        "(UNSUPPORTED_ASSIGNOR)",
        _PROTOCOLS: "members of such a protocol cannot join a group",
    },
    (Scope.TRANSACTIONS, "lower"): {
        "transaction.max.timeout.ms": "a producer with a longer transaction.timeout.ms is refused "
        "(INVALID_TRANSACTION_TIMEOUT)",
        "transactional.id.expiration.ms": "a producer that is idle for longer loses its transactional id "
        "(INVALID_PRODUCER_ID_MAPPING)",
    },
    (Scope.CONNECTIONS, "lower"): {
        "max.connections": "connections beyond that number wait",
        "max.connections.per.ip": "connections beyond that number are closed; all clients of a router come from the "
        "router's address",
        "max.connection.creation.rate": "new connections beyond that rate wait, as when clients are restarted together",
        "connections.max.idle.ms": "idle connections are closed sooner",
    },
    (Scope.MESSAGES, "lower"): {
        "message.max.bytes": "a topic without a max.message.bytes of its own takes smaller batches only "
        "(MESSAGE_TOO_LARGE)",
        "socket.request.max.bytes": "the connection of a client that sends a larger request is closed",
        "fetch.max.bytes": "one Fetch response holds less",
        "max.incremental.fetch.session.cache.slots": "consumers beyond that number send whole Fetch requests, which "
        "costs processor time",
    },
    (Scope.TOPICS, "switched off"): {
        "auto.create.topics.enable": "a topic that a client uses for the first time is not created",
        "delete.topic.enable": "an application that deletes topics is refused",
    },
}
"""The effect of a harmful difference in a setting, by the setting's scope and the direction that does harm."""
_DYNAMIC = frozenset(
    {
        "group.consumer.session.timeout.ms",
        "group.consumer.heartbeat.interval.ms",
        "max.connections",
        "max.connections.per.ip",
        "max.connection.creation.rate",
        "message.max.bytes",
    }
)
"""Settings that can be changed while brokers run."""
_UNLIMITED = {"connections.max.idle.ms": -1}
"""Values that mean no limit."""
_KEYS = frozenset(key for effects in _EFFECTS.values() for key in effects)


async def read_settings(client: ClusterClient, admin: Admin) -> BrokerSettings:
    """Read the settings of a cluster's brokers. Raises BrokerRefused or Unreachable."""
    if not client.metadata.brokers:
        await client.refresh([])
    nodes = sorted(client.metadata.brokers)[:_MOST_BROKERS]
    configs = await together(*(admin.broker_configs(node) for node in nodes))
    return {key: tuple(sorted({each[key].value for each in configs if key in each} - {""})) for key in _KEYS}


def compare_settings(source: BrokerSettings, target: BrokerSettings, scopes: Collection[Scope] = ALL) -> list[Finding]:
    """Return a warning for each setting that does harm on the target. An unknown value is not compared."""
    served = any(_NEW_PROTOCOL in _words(value) for value in source.get(_PROTOCOLS, ()))
    found: list[Finding] = []
    for (scope, harm), effects in _EFFECTS.items():
        for key, effect in effects.items() if scope in scopes else ():
            here, there = source.get(key, ()), target.get(key, ())
            unused = key.startswith(_OF_NEW_PROTOCOL) and not served
            if not unused and here and there and (difference := _COMPARED[harm](key, here, there)) is not None:
                on_source, on_target, wanted = difference
                what = f"{key} is {on_source} on the source and {on_target} on the target: {effect}"
                found.append(Finding("warn", "broker-setting", what, _change(key, wanted)))
    return found


async def read_both(connections: Connections, link: LinkRecord) -> tuple[BrokerSettings, BrokerSettings]:
    """Read the settings of a link's source and target. Raises BrokerRefused or Unreachable."""
    source, source_admin = await connections.source(link)
    return await together(
        read_settings(source, source_admin), read_settings(connections.target, connections.target_admin)
    )


async def setting_findings(
    connections: Connections, link: LinkRecord, scopes: Collection[Scope] = ALL
) -> list[Finding]:
    """Compare the clusters of a link; a cluster that does not tell its settings is a finding of its own."""
    try:
        source, target = await read_both(connections, link)
    except KmigrateError as error:
        return [settings_unknown(error)]
    return compare_settings(source, target, scopes)


def settings_unknown(error: KmigrateError) -> Finding:
    what = f"the brokers' settings are not compared: {error.what}"
    return Finding("warn", "broker-settings-unknown", what, "grant DESCRIBE_CONFIGS on that cluster")


def limit(settings: BrokerSettings, key: str) -> int | None:
    """Return the lowest value of a numeric setting on the brokers of a cluster; None where unknown."""
    return min((int(value) for value in settings.get(key, ()) if value.isdigit()), default=None)


def _change(key: str, value: str) -> str:
    if key in _DYNAMIC:
        return (
            f"on the target: kafka-configs.sh --alter --entity-type brokers --entity-default --add-config {key}={value}"
        )
    return f"set {key}={value} in the target brokers' server.properties, and restart these one by one"


_Difference = tuple[str, str, str]
"""The value on the source, the value on the target, and the value that the target should have."""


def _is_lower(key: str, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    ours, theirs = _numbers(key, here), _numbers(key, there)
    if not ours or not theirs or min(theirs) >= max(ours):
        return None
    return _number(max(ours)), _number(min(theirs)), _plain(key, max(ours))


def _is_higher(key: str, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    ours, theirs = _numbers(key, here), _numbers(key, there)
    if not ours or not theirs or max(theirs) <= min(ours):
        return None
    return _number(min(ours)), _number(max(theirs)), _plain(key, min(ours))


def _numbers(key: str, values: Sequence[str]) -> list[float]:
    found = [int(value) for value in values if value.lstrip("-").isdigit()]
    return [float("inf") if number == _UNLIMITED.get(key) else number for number in found]


def _number(value: float) -> str:
    return "without limit" if value == float("inf") else f"{value:,.0f}"


def _plain(key: str, value: float) -> str:
    return str(_UNLIMITED[key]) if value == float("inf") else f"{value:.0f}"


def _lacks_words(_: str, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    ours = {word for value in here for word in _words(value)}
    theirs = [_words(value) for value in there]
    if all(ours <= each for each in theirs):
        return None
    every = set.intersection(*theirs)
    return ",".join(sorted(ours)), ",".join(sorted(every)) or "empty", ",".join(sorted(ours | every))


def _words(value: str) -> set[str]:
    """Split a list into words; Kafka's own assignors, by class name or short name, become the short name."""
    return {_ASSIGNOR.sub(lambda found: found[1].lower(), word.strip()) for word in value.split(",")}


def _is_off(_: str, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    return ("true", "false", "true") if "true" in here and "false" in there else None


_COMPARED: Mapping[_Harm, Callable[[str, Sequence[str], Sequence[str]], _Difference | None]] = {
    "lower": _is_lower,
    "higher": _is_higher,
    "missing words": _lacks_words,
    "switched off": _is_off,
}
