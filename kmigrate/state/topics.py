"""Checks the metadata of a state topic before kmigrate reads or writes the topic.

A broker returns a topic without partitions if the principal lacks DESCRIBE, or while the topic is being created. The
error code of the topic names the reason. Only a topic without an error can have a wrong number of partitions.
"""

from __future__ import annotations

from kmigrate.cluster.acls import denied
from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import Failed, Refused, Unreachable
from kmigrate.net.retry import Backoff
from kmigrate.protocol.codes import Code, row

__all__ = ["bad_state_topic", "refuse_untold", "single_partition_topic"]

_POLL_SECONDS = 0.05


async def single_partition_topic(client: ClusterClient, topic: str, patience_s: float = 10.0) -> TopicInfo | None:
    """Return the topic, or None if the cluster has no such topic; raise if the topic cannot hold state."""
    tries = Backoff(_POLL_SECONDS, within_s=patience_s)
    while True:
        info = await client.topic(topic)
        if info is None or not info.error or not row(info.error).retriable or tries.over:
            break
        await tries.pause()
    if info is not None:
        refuse_untold(client, info)
        if len(info.partitions) != 1:
            why = f"has {len(info.partitions)} partitions; the state log needs exactly one"
            raise await bad_state_topic(client, info, why)
    return info


def refuse_untold(client: ClusterClient, info: TopicInfo) -> None:
    """Raise if the broker returned an error in place of the topic's partitions."""
    if info.error == Code.TOPIC_AUTHORIZATION_FAILED:
        still_true = "nothing was changed; the topic and its records are untouched"
        raise denied(client.settings, info.error, ("DESCRIBE", f"topic {info.name}"), still_true=still_true)
    if info.error:
        raise Unreachable(
            "state-topic-not-told",
            f"cluster {client.settings.name} does not tell the partitions of topic {info.name}: {row(info.error).name}",
            still_true="nothing was changed; the topic and its records are untouched",
            next_step="repeat the command when the brokers of the cluster are up",
        )


async def bad_state_topic(client: ClusterClient, info: TopicInfo, why: str) -> Refused:
    """Return the refusal of a topic that cannot hold state; only an empty topic may be deleted."""
    cluster = client.settings.name
    if await _is_empty(client, info):
        still_true = f"nothing was changed; topic {info.name} holds no record"
        next_step = f"delete the empty topic {info.name} on {cluster}, then repeat the command"
    else:
        still_true = f"nothing was changed; topic {info.name} holds records, and they may be the state of a migration"
        next_step = f"keep topic {info.name} and find its owner (docs/state-log.md), or use another target cluster"
    return Refused(
        "bad-state-topic",
        f"topic {info.name} on cluster {cluster} {why}",
        still_true=still_true,
        next_step=next_step,
    )


async def _is_empty(client: ClusterClient, info: TopicInfo) -> bool:
    """Return whether the topic surely holds no record; False if a log end cannot be read."""
    try:
        ends = await client.list_offsets(dict.fromkeys(((info.name, each) for each in info.partitions), LATEST))
    except Failed:
        return False
    return len(ends) == len(info.partitions) and all(not end.error and end.offset == 0 for end in ends.values())
