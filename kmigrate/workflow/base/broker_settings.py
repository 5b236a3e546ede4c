"""Compares broker-wide settings that live clients and stored state depend on: the source's with the target's.

A client that works on the source may be refused by the target, because a limit there is lower. Each rule names one
setting, the direction that does harm, and the harm. Which rules matter depends on the step (`Scope`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Rule:
    """One setting, and what a harmful difference means; `dynamic` where it can be changed while brokers run."""

    key: str
    scope: Scope
    harm: _Harm
    effect: str
    dynamic: bool = False
    unlimited: int | None = None
    """The value that means no limit."""


def _lower(key: str, scope: Scope, effect: str, *, dynamic: bool = False, unlimited: int | None = None) -> _Rule:
    return _Rule(key, scope, "lower", effect, dynamic, unlimited)


_RULES: tuple[_Rule, ...] = (
    _lower(
        "group.max.session.timeout.ms",
        Scope.GROUPS,
        "a consumer with a longer session.timeout.ms is refused (INVALID_SESSION_TIMEOUT)",
    ),
    _Rule(
        "group.min.session.timeout.ms",
        Scope.GROUPS,
        "higher",
        "a consumer with a shorter session.timeout.ms is refused (INVALID_SESSION_TIMEOUT)",
    ),
    _lower("group.max.size", Scope.GROUPS, "members beyond that number are refused (GROUP_MAX_SIZE_REACHED)"),
    _lower(
        "group.consumer.max.size",
        Scope.GROUPS,
        "members of the new protocol beyond that number are refused (GROUP_MAX_SIZE_REACHED)",
    ),
    _lower(
        "group.consumer.session.timeout.ms",
        Scope.GROUPS,
        "members of the new protocol that are silent for longer lose their partitions",
        dynamic=True,
    ),
    _lower("group.consumer.max.session.timeout.ms", Scope.GROUPS, "a group's own longer session timeout is cut"),
    _Rule(
        "group.consumer.heartbeat.interval.ms",
        Scope.GROUPS,
        "higher",
        "members of the new protocol hear of a new assignment later",
        dynamic=True,
    ),
    _Rule(
        "group.consumer.assignors",
        Scope.GROUPS,
        "missing words",
        "a member of the new protocol that names such an assignor is refused (UNSUPPORTED_ASSIGNOR)",
    ),
    _Rule(
        _PROTOCOLS,
        Scope.GROUPS,
        "missing words",
        "members of such a protocol cannot join a group",
    ),
    _lower(
        "offsets.retention.minutes",
        Scope.GROUPS,
        "the positions of a group without members are deleted sooner",
    ),
    _lower(
        "offset.metadata.max.bytes",
        Scope.GROUPS,
        "a commit with longer metadata is refused (OFFSET_METADATA_TOO_LARGE)",
    ),
    _lower(
        "transaction.max.timeout.ms",
        Scope.TRANSACTIONS,
        "a producer with a longer transaction.timeout.ms is refused (INVALID_TRANSACTION_TIMEOUT)",
    ),
    _lower(
        "transactional.id.expiration.ms",
        Scope.TRANSACTIONS,
        "a producer that is idle for longer loses its transactional id (INVALID_PRODUCER_ID_MAPPING)",
    ),
    _lower("max.connections", Scope.CONNECTIONS, "connections beyond that number wait", dynamic=True),
    _lower(
        "max.connections.per.ip",
        Scope.CONNECTIONS,
        "connections beyond that number are closed; all clients of a router come from the router's address",
        dynamic=True,
    ),
    _lower(
        "max.connection.creation.rate",
        Scope.CONNECTIONS,
        "new connections beyond that rate wait, as when clients are restarted together",
        dynamic=True,
    ),
    _lower("connections.max.idle.ms", Scope.CONNECTIONS, "idle connections are closed sooner", unlimited=-1),
    _lower(
        "message.max.bytes",
        Scope.MESSAGES,
        "a topic without a max.message.bytes of its own takes smaller batches only (MESSAGE_TOO_LARGE)",
        dynamic=True,
    ),
    _lower(
        "socket.request.max.bytes",
        Scope.MESSAGES,
        "the connection of a client that sends a larger request is closed",
    ),
    _lower("fetch.max.bytes", Scope.MESSAGES, "one Fetch response holds less", dynamic=False),
    _lower(
        "max.incremental.fetch.session.cache.slots",
        Scope.MESSAGES,
        "consumers beyond that number send whole Fetch requests, which costs processor time",
    ),
    _Rule(
        "auto.create.topics.enable",
        Scope.TOPICS,
        "switched off",
        "a topic that a client uses for the first time is not created",
    ),
    _Rule("delete.topic.enable", Scope.TOPICS, "switched off", "an application that deletes topics is refused"),
)


async def read_settings(client: ClusterClient, admin: Admin) -> BrokerSettings:
    """Read the settings of a cluster's brokers. Raises BrokerRefused or Unreachable."""
    if not client.metadata.brokers:
        await client.refresh([])
    nodes = sorted(client.metadata.brokers)[:_MOST_BROKERS]
    told = await together(*(admin.broker_configs(node) for node in nodes))
    keys = {rule.key for rule in _RULES}
    return {key: tuple(sorted({each[key].value for each in told if key in each and each[key].value})) for key in keys}


def compare_settings(source: BrokerSettings, target: BrokerSettings, scopes: Collection[Scope] = ALL) -> list[Finding]:
    """Return a warning for each setting that does harm on the target. An unknown value is not compared."""
    found: list[Finding] = []
    served = any(_NEW_PROTOCOL in _words(value) for value in source.get(_PROTOCOLS, ()))
    for rule in _RULES:
        here, there = source.get(rule.key, ()), target.get(rule.key, ())
        unused = rule.key.startswith(_OF_NEW_PROTOCOL) and not served
        if rule.scope not in scopes or unused or not here or not there:
            continue
        if (difference := _COMPARED[rule.harm](rule, here, there)) is not None:
            on_source, on_target, wanted = difference
            found.append(
                Finding(
                    "warn",
                    "broker-setting",
                    f"{rule.key} is {on_source} on the source and {on_target} on the target: {rule.effect}",
                    _change(rule, wanted),
                )
            )
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
    """Return the warning that a cluster does not tell its settings."""
    what = f"the brokers' settings are not compared: {error.what}"
    return Finding("warn", "broker-settings-unknown", what, "grant DESCRIBE_CONFIGS on that cluster")


def limit(settings: BrokerSettings, key: str) -> int | None:
    """Return the lowest value of a numeric setting on the brokers of a cluster; None where unknown."""
    return min((int(value) for value in settings.get(key, ()) if value.isdigit()), default=None)


def _change(rule: _Rule, value: str) -> str:
    if rule.dynamic:
        return (
            "on the target: kafka-configs.sh --alter --entity-type brokers --entity-default "
            f"--add-config {rule.key}={value}"
        )
    return f"set {rule.key}={value} in the target brokers' server.properties, and restart these one by one"


_Difference = tuple[str, str, str]
"""The value on the source, the value on the target, and the value that the target should have."""


def _numbers(rule: _Rule, values: Sequence[str]) -> list[float]:
    found = [int(value) for value in values if value.lstrip("-").isdigit()]
    return [float("inf") if number == rule.unlimited else number for number in found]


def _is_lower(rule: _Rule, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    ours, theirs = _numbers(rule, here), _numbers(rule, there)
    if not ours or not theirs or min(theirs) >= max(ours):
        return None
    return _number(max(ours)), _number(min(theirs)), _plain(max(ours), rule)


def _is_higher(rule: _Rule, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    ours, theirs = _numbers(rule, here), _numbers(rule, there)
    if not ours or not theirs or max(theirs) <= min(ours):
        return None
    return _number(min(ours)), _number(max(theirs)), _plain(min(ours), rule)


def _lacks_words(_: _Rule, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    ours = {word for value in here for word in _words(value)}
    theirs = [_words(value) for value in there]
    if all(ours <= each for each in theirs):
        return None
    every = set.intersection(*theirs)
    return ",".join(sorted(ours)), ",".join(sorted(every)) or "empty", ",".join(sorted(ours | every))


def _words(value: str) -> set[str]:
    """Split a list into words.

    Kafka's own assignors have a class name in some versions and a short name in others; both become the short name.
    """
    return {_ASSIGNOR.sub(lambda found: found[1].lower(), word.strip()) for word in value.split(",")}


def _is_off(_: _Rule, here: Sequence[str], there: Sequence[str]) -> _Difference | None:
    return ("true", "false", "true") if "true" in here and "false" in there else None


_COMPARED: Mapping[_Harm, Callable[[_Rule, Sequence[str], Sequence[str]], _Difference | None]] = {
    "lower": _is_lower,
    "higher": _is_higher,
    "missing words": _lacks_words,
    "switched off": _is_off,
}


def _number(value: float) -> str:
    return "without limit" if value == float("inf") else f"{value:,.0f}"


def _plain(value: float, rule: _Rule) -> str:
    return str(rule.unlimited) if value == float("inf") else f"{value:.0f}"
