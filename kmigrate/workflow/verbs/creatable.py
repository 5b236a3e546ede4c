"""Asks the target, before `topic mirror` writes anything, whether the target takes the topics and their producers.

The target's controller decides on colliding names, policies and limits; CreateTopics is sent with `validate_only`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from kmigrate.cluster.admin import TopicShape
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.cluster.transactions import transaction_timeouts
from kmigrate.errors import BrokerRefused, Failed, KmigrateError
from kmigrate.protocol.codes import Code
from kmigrate.workflow.base.broker_settings import BrokerSettings, limit
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, warn

__all__ = ["ConfigsOf", "creation_findings", "no_configs", "timeout_findings"]

ConfigsOf = Callable[[Sequence[str]], Awaitable[Mapping[str, Mapping[str, str]]]]
"""Returns the configs with which the mirror would create each of some topics on the target."""
_LASTING = frozenset({17, 37, 38, 40, 42, 44})
"""Codes that neither a grant nor time lifts; for other codes the mirror names the reason and waits (a warning).

Invalid (also colliding) name, partitions, replication factor, configs, request, policy.
"""
_TIMEOUT = "transaction.max.timeout.ms"
_MOST_NAMED = 20


async def no_configs(_: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return no configs: the target is then asked about names, partitions and replicas only."""
    return {}


async def creation_findings(
    connections: Connections, missing: Collection[TopicInfo], configs_of: ConfigsOf
) -> list[Finding]:
    """Return a finding for each topic that the target would not create."""
    if not missing:
        return []
    names = [info.name for info in missing]
    configs = await configs_of(names)
    brokers = len(connections.target.metadata.brokers)
    shapes = [
        TopicShape(info.name, len(info.partitions), _replicas(info, brokers), configs.get(info.name, {}))
        for info in missing
    ]
    try:
        refused = await connections.target_admin.try_topics(shapes)
    except KmigrateError as error:
        what = f"whether the target would create the topics could not be asked: {error.what}"
        return [warn("creation-unknown", what, error.next_step)]
    return [_refusal(name, why) for name, why in refused.items() if not _exists(why)]


def _exists(why: Failed) -> bool:
    return isinstance(why, BrokerRefused) and why.code == Code.TOPIC_ALREADY_EXISTS


def _refusal(name: str, why: Failed) -> Finding:
    lasting = isinstance(why, BrokerRefused) and why.code in _LASTING
    return Finding(
        "refuse" if lasting else "warn",
        "target-refuses-topic",
        f"the target would not create topic {name}: {why.what}",
        why.next_step
        or f"change what the target objects to, or make topic {name} there by hand, empty and with as many partitions",
    )


async def timeout_findings(source: ClusterClient, here: BrokerSettings, there: BrokerSettings) -> list[Finding]:
    """Return a warning for each transactional id whose transaction timeout the target does not take."""
    most, on_source = limit(there, _TIMEOUT), limit(here, _TIMEOUT)
    if most is None or (on_source is not None and on_source <= most):
        return []  # no producer of the source can have a longer timeout
    try:
        timeouts = await transaction_timeouts(source)
    except KmigrateError as error:
        what = f"the timeouts of transactional ids could not be asked: {error.what}"
        return [warn("transaction-timeouts-unknown", what, error.next_step)]
    longer = sorted((name, timeout) for name, timeout in timeouts.items() if timeout > most)
    found = [
        warn(
            "transaction-timeout",
            f"transactional id {name} has transaction.timeout.ms {timeout:,}; the target takes {most:,} at most, and "
            "refuses its producer (INVALID_TRANSACTION_TIMEOUT) from the start at a router on",
            f"set {_TIMEOUT}={timeout} in the target brokers' server.properties and restart these one by one, or give "
            "the producer a shorter transaction.timeout.ms",
        )
        for name, timeout in longer[:_MOST_NAMED]
    ]
    if len(longer) > _MOST_NAMED:
        more = f"{len(longer) - _MOST_NAMED} more transactional ids have such a timeout"
        found.append(warn("transaction-timeout", more))
    return found


def _replicas(info: TopicInfo, brokers: int) -> int:
    return min(len(info.partitions[0].replicas) or 1, brokers or 1)
