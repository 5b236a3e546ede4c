"""Creates the state log's topics, or refuses the ones that stand there in their place."""

from __future__ import annotations

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused, Failed, Refused
from kmigrate.model.records import SIZE_LIMIT
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import Code
from kmigrate.state.log import PRESENCE_TOPIC, STATE_TOPIC

__all__ = ["check_state_log", "ensure_state_log"]

_HOUR_MS = 3600 * 1000
_DAY_MS = 24 * _HOUR_MS
_RECORD_BYTES = 8 << 20
"""Of one record: what a mirror process says of 20,000 partitions, at 400 bytes each; managed clusters allow no more."""


def _configs(brokers: int) -> dict[str, dict[str, str]]:
    durable = {
        "cleanup.policy": "compact",
        "compression.type": "producer",  # whatever the cluster's default: records are read uncompressed, as written
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "2" if brokers >= 3 else "1",
    }
    small = {**durable, "segment.bytes": str(16 << 20)}  # the newest segment is never compacted, and is a gigabyte else
    return {
        STATE_TOPIC: {
            **small,
            "min.compaction.lag.ms": str(_DAY_MS),  # in which a record that is void is repaired
            "max.compaction.lag.ms": str(2 * _DAY_MS),
            "delete.retention.ms": str(_DAY_MS),  # in which who begins to read comes to the tombstones
        },
        PRESENCE_TOPIC: {**small, "max.compaction.lag.ms": str(_HOUR_MS)},
    }


async def ensure_state_log(client: ClusterClient, admin: Admin) -> list[str]:
    """Make the two topics where they are missing, with room for large records; returns what a person should know."""
    metadata = await client.refresh([STATE_TOPIC, PRESENCE_TOPIC])
    brokers = len(metadata.brokers)
    made = False
    for topic, configs in _configs(brokers).items():
        if topic not in metadata.topics:
            made = await admin.create_topic(topic, 1, min(3, brokers), configs) or made
    if made:
        await _wait_for_leaders(client)
    await _make_room(admin, await check_state_log(client, admin))
    if not made or brokers >= 3:
        return []
    small = (
        f"cluster {client.settings.name} has {brokers} broker(s): the state log is kept on "
        f"{brokers} of them only; use three or more where it matters"
    )
    return [small]


async def _wait_for_leaders(client: ClusterClient, timeout: float = 20.0) -> None:
    deadline = monotonic() + timeout
    while monotonic() < deadline:
        metadata = await client.refresh([STATE_TOPIC, PRESENCE_TOPIC])
        if all(topic in metadata.topics and client.leader(topic, 0) >= 0 for topic in (STATE_TOPIC, PRESENCE_TOPIC)):
            return
        await sleep(0.05)


async def _make_room(admin: Admin, limits: dict[str, int]) -> None:
    """Let each topic take records of `_RECORD_BYTES`, where that is allowed.

    A cluster that refuses it has a state log all the same: what is too large for it is told by who wants to write it.
    """
    for topic, limit in limits.items():
        if limit >= _RECORD_BYTES:
            continue
        try:
            await admin.alter_topic_configs(topic, {SIZE_LIMIT: str(_RECORD_BYTES)})
        except Failed:
            continue


async def check_state_log(client: ClusterClient, admin: Admin) -> dict[str, int]:
    """Refuse a state topic that cannot hold state: several partitions, or a policy that deletes (AL-14, EO-95).

    Returns how large a record each of them takes, in bytes, where the cluster tells.
    """
    metadata = await client.refresh([STATE_TOPIC, PRESENCE_TOPIC])
    present = [t for t in (STATE_TOPIC, PRESENCE_TOPIC) if t in metadata.topics]
    for topic in present:
        count = len(metadata.topics[topic].partitions)
        if count != 1:
            raise _bad(client, topic, f"has {count} partitions; the state log needs exactly one")
    limits: dict[str, int] = {}
    for topic, configs in (await _configs_of(admin, present)).items():
        policy = configs["cleanup.policy"].value
        if policy != "compact":
            raise _bad(client, topic, f"has cleanup.policy={policy}; the state log needs 'compact' alone")
        if SIZE_LIMIT in configs:
            limits[topic] = int(configs[SIZE_LIMIT].value)
    return limits


async def _configs_of(
    admin: Admin, present: list[str], patience_s: float = 10.0
) -> dict[str, dict[str, ConfigValue]]:
    """Configs of topics that exist; a broker that has not heard yet of one made a moment ago is asked again."""
    deadline = monotonic() + patience_s
    while True:
        try:
            return await admin.topic_configs(present)
        except BrokerRefused as refused:
            if refused.code != Code.UNKNOWN_TOPIC_OR_PARTITION or monotonic() > deadline:
                raise
        await sleep(0.05)


def _bad(client: ClusterClient, topic: str, why: str) -> Refused:
    return Refused(
        "bad-state-topic",
        f"topic {topic} on cluster {client.settings.name} {why}",
        still_true="nothing was changed",
        next_step=f"remove or repair {topic} by hand (docs/state-log.md), then repeat the command",
    )
