"""The topics of the state log and of offset maps: their creation, their configs, and checks of existing topics.

A broker returns a topic without partitions if the principal lacks DESCRIBE, or while the topic is being created. The
error code of the topic names the reason. Only a topic without an error can have a wrong number of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from kmigrate.cluster.acls import denied
from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import BrokerRefused, Failed, Refused, Unreachable
from kmigrate.model.records import SIZE_LIMIT
from kmigrate.net.retry import Backoff
from kmigrate.protocol.codes import Code, row

__all__ = [
    "MAP_TOPIC",
    "PRESENCE_TOPIC",
    "STATE_TOPIC",
    "ConfigFault",
    "bad_state_topic",
    "check_state_log",
    "ensure_map_topic",
    "ensure_state_log",
    "refuse_topic_error",
    "single_partition_topic",
]

STATE_TOPIC = "__kmigrate_state"
PRESENCE_TOPIC = "__kmigrate_presence"
MAP_TOPIC = "__kmigrate_offset_maps"

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
        refuse_topic_error(client, info)
        if len(info.partitions) != 1:
            why = f"has {len(info.partitions)} partitions; the state log needs exactly one"
            raise await bad_state_topic(client, info, why)
    return info


def refuse_topic_error(client: ClusterClient, info: TopicInfo) -> None:
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


_STATE_TOPICS = (STATE_TOPIC, PRESENCE_TOPIC)

_LOOK_S = 0.05
_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_RECORD_BYTES = 8 << 20
"""Most bytes of a record: a mirror's presence with 20,000 partitions of 400 bytes; managed clusters allow no more."""


_MIN_INSYNC = "min.insync.replicas"
_AT_LEAST = frozenset({SIZE_LIMIT, _MIN_INSYNC, "min.compaction.lag.ms", "delete.retention.ms"})
_OPEN = frozenset({"segment.bytes", "max.compaction.lag.ms"})
"""Configs of when the log cleaner runs: no decision needs them, and a person had a reason to set them on the topic."""


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """A config of a state topic with a wrong value."""

    topic: str
    key: str
    found: str
    wanted: str

    @property
    def text(self) -> str:
        return f"topic {self.topic} has {self.key}={self.found}; it is safe with {self.wanted}"


def _configs(replicas: int) -> dict[str, dict[str, str]]:
    durable = {
        "cleanup.policy": "compact",
        "compression.type": "producer",  # records stay uncompressed, whatever the cluster's default
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        _MIN_INSYNC: "2" if replicas >= 3 else "1",
    }
    # The newest segment is never compacted; the default size is 1 GiB.
    small = {**durable, "segment.bytes": str(16 << 20)}
    return {
        STATE_TOPIC: {
            **small,
            "min.compaction.lag.ms": str(_DAY_MS),  # time to repair a void record
            "max.compaction.lag.ms": str(2 * _DAY_MS),
            "delete.retention.ms": str(_DAY_MS),  # time for a new reader to reach the tombstones
        },
        PRESENCE_TOPIC: {
            **small,
            "min.compaction.lag.ms": str(2 * _MINUTE_MS),  # a new reader reads the parts of the last minute
            "max.compaction.lag.ms": str(_HOUR_MS),
        },
        MAP_TOPIC: {**durable, "segment.bytes": str(64 << 20)},
    }


async def ensure_state_log(client: ClusterClient, admin: Admin) -> list[tuple[str, str]]:
    """Create missing state topics, or correct their configs; return messages for a person, each with its reference."""
    metadata = await client.refresh(_STATE_TOPICS)
    brokers = len(metadata.brokers)
    made = False
    for topic in _STATE_TOPICS:
        if topic not in metadata.topics:
            made = await _create(admin, topic, brokers) or made
    if made:
        await _wait_for_leaders(client)
    messages = [("state-log-weak", each) for each in await _put_right(admin, await check_state_log(client, admin))]
    if made and brokers < 3:
        small = (
            f"cluster {client.settings.name} has {brokers} broker(s): the state log is kept on "
            f"{brokers} of them only; use three or more where it matters"
        )
        messages.append(("state-log-small", small))
    return messages


async def ensure_map_topic(client: ClusterClient, admin: Admin, patience_s: float = 30.0) -> None:
    """Create the topic of offset maps if it is missing, and wait for its leader."""
    metadata = await client.refresh([MAP_TOPIC])
    if MAP_TOPIC not in metadata.topics:
        await _create(admin, MAP_TOPIC, len(metadata.brokers))
    looks = Backoff(_LOOK_S, within_s=patience_s)
    while client.leader(MAP_TOPIC, 0) < 0:
        await looks.pause(Unreachable("no-leader", f"{MAP_TOPIC} gets no leader"))
        reported = (await client.refresh([MAP_TOPIC])).topics.get(MAP_TOPIC)
        if reported is not None and reported.error == Code.TOPIC_AUTHORIZATION_FAILED:
            refuse_topic_error(client, reported)


async def _create(admin: Admin, topic: str, brokers: int) -> bool:
    return await admin.create_topic(topic, 1, min(3, brokers), _configs(brokers)[topic])


async def _wait_for_leaders(client: ClusterClient, timeout: float = 20.0) -> None:
    looks = Backoff(_LOOK_S, within_s=timeout)
    while not looks.over:
        metadata = await client.refresh(_STATE_TOPICS)
        if all(topic in metadata.topics and client.leader(topic, 0) >= 0 for topic in _STATE_TOPICS):
            return
        await looks.pause()


async def _put_right(admin: Admin, faults: list[ConfigFault]) -> list[str]:
    """Set every wrong config that may be set; return the faults that stay.

    `min.insync.replicas` stays: a person may have lowered it while brokers are away, and the old value would stop all
    writes. Without a higher record limit the log works: a process with a larger record reports the limit.
    """
    stays: list[str] = []
    for fault in faults:
        try:
            if fault.key == _MIN_INSYNC:
                stays.append(fault.text)
            else:
                await admin.alter_topic_configs(fault.topic, {fault.key: fault.wanted})
        except Failed as error:
            if fault.key != SIZE_LIMIT:
                stays.append(f"{fault.text}, and that may not be altered: {error.what}")
    return stays


async def check_state_log(client: ClusterClient, admin: Admin) -> list[ConfigFault]:
    """Refuse a state topic that cannot hold state: several partitions, or a policy that deletes.

    Return wrong configs, also of the topic of offset maps: such a topic is older, altered, or somebody else's.
    """
    infos = {topic: info for topic in _STATE_TOPICS if (info := await single_partition_topic(client, topic))}
    faults: list[ConfigFault] = []
    reported = await _configs_of(admin, list(infos))
    maps = await client.topic(MAP_TOPIC)
    if maps is not None and 0 in maps.partitions:
        infos[MAP_TOPIC] = maps
        with suppress(BrokerRefused):  # without that right no topic is mapped, or somebody else created it
            reported |= await admin.topic_configs([MAP_TOPIC])
    for topic, configs in reported.items():
        wanted = _configs(len(infos[topic].partitions[0].replicas))[topic]
        if topic in _STATE_TOPICS:
            _refuse_policy(client, topic, configs)
            wanted[SIZE_LIMIT] = str(_RECORD_BYTES)
        for key, value in wanted.items():
            if key in configs and _falls_short(key, configs[key], value):
                faults.append(ConfigFault(topic, key, configs[key].value, value))
    return faults


def _refuse_policy(client: ClusterClient, topic: str, configs: Mapping[str, ConfigValue]) -> None:
    if "cleanup.policy" not in configs:
        raise _bad_policy(client, topic, "does not tell its cleanup.policy")
    policy = configs["cleanup.policy"].value
    if policy != "compact":
        raise _bad_policy(client, topic, f"has cleanup.policy={policy}")


def _bad_policy(client: ClusterClient, topic: str, why: str) -> Refused:
    return Refused(
        "bad-state-topic",
        f"topic {topic} on cluster {client.settings.name} {why}; the state log needs 'compact' alone",
        still_true="nothing was changed; the records of the topic are untouched",
        next_step=f"set cleanup.policy=compact on topic {topic} (its records stay), then repeat the command",
    )


def _falls_short(key: str, found: ConfigValue, wanted: str) -> bool:
    """Return whether a config surely falls short; a cluster may list a config and hide its value."""
    if not found.value:
        return False
    if key in _AT_LEAST:
        return found.value.removeprefix("-").isdecimal() and int(found.value) < int(wanted)
    return found.value != wanted and not (key in _OPEN and found.own)


async def _configs_of(admin: Admin, present: list[str], patience_s: float = 10.0) -> dict[str, dict[str, ConfigValue]]:
    """Return configs of existing topics; ask again while a broker does not know a new topic yet."""
    tries = Backoff(_LOOK_S, within_s=patience_s)
    while True:
        try:
            return await admin.topic_configs(present)
        except BrokerRefused as refused:
            if refused.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            await tries.pause(refused)
