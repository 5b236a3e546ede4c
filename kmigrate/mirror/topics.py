"""The target topic of a mirror: created with the source's shape and relaxed while it is being written.

While mirroring, history must get in whatever its age and size, and nothing may age out or be compacted under
the copier's feet (A6, A7, A8, A9); promote puts the topic's own configs back (`restore_configs`,
`drop_configs` of the topic record).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient, TopicInfo
from kmigrate.errors import BrokerRefused, Refused, Unreachable
from kmigrate.model.records import TopicRecord
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import row

__all__ = ["Prepared", "TopicMaker", "target_configs"]

_MIN_SEGMENT = 1 << 20
"""Kafka 4 refuses smaller segments (A15)."""
_ROOM = 96 << 20
"""Batches may be larger than the source's limits are today, and no batch is larger than its segment (A6)."""
_DIFFERENCE = "message.timestamp.difference.max.ms"
"""Both time limits in one, until Kafka 4.0."""

_COPIED = frozenset(
    {
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)

_FOR_EVER = str((1 << 63) - 1)

_WHILE_MIRRORING = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": str(_ROOM),
    "message.timestamp.after.max.ms": _FOR_EVER,
    "message.timestamp.before.max.ms": _FOR_EVER,
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


@dataclass(frozen=True, slots=True)
class Configs:
    """What the target topic gets now, and how promote brings it to its own."""

    now: Mapping[str, str]
    restore: Mapping[str, str]
    drop: tuple[str, ...]


def target_configs(own: Mapping[str, str], replicas: int) -> Configs:
    """Configs of the target topic, from those set on the source topic itself."""
    copied = {key: value for key, value in own.items() if key in _COPIED}
    if "segment.bytes" in copied:
        copied["segment.bytes"] = str(max(int(copied["segment.bytes"]), _MIN_SEGMENT))
    if _DIFFERENCE in own:
        for key in ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"):
            copied.setdefault(key, own[_DIFFERENCE])
    if "min.insync.replicas" in copied:
        copied["min.insync.replicas"] = str(min(int(copied["min.insync.replicas"]), replicas))
    relaxed = dict(_WHILE_MIRRORING)
    if int(copied.get("segment.bytes", _ROOM)) < _ROOM:
        relaxed["segment.bytes"] = str(_ROOM)
    return Configs(
        now={**copied, **relaxed},
        restore={key: copied[key] for key in sorted(relaxed) if key in copied},
        drop=tuple(key for key in sorted(relaxed) if key not in copied),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A target topic that exists and is empty, and where its mirror begins."""

    partitions: int
    source_topic_id: str
    target_topic_id: str
    starts: Mapping[int, int]
    configs: Configs


class TopicMaker:
    """Creates target topics of one link."""

    def __init__(
        self, source: ClusterClient, target: ClusterClient, source_admin: Admin, target_admin: Admin
    ) -> None:
        self._source = source
        self._target = target
        self._source_admin = source_admin
        self._target_admin = target_admin

    async def prepare(self, record: TopicRecord) -> Prepared:
        """The target topic, made or adopted; Refused where one is there that is not ours to fill."""
        topic = record.topic
        info = await self._source.topic(topic)
        if info is None:
            raise Refused(
                "no-source-topic",
                f"cluster {self._source.settings.name} has no topic {topic}",
                still_true="nothing was created on the target",
                next_step="check the name; the mirror goes on by itself once the topic exists",
            )
        if info.error:
            raise BrokerRefused(
                "source-denied",
                f"cluster {self._source.settings.name} does not show topic {topic}: {row(info.error).name}",
                code=info.error,
                still_true="nothing was created on the target",
                next_step="give the source's principal the rights to DESCRIBE and READ this topic",
            )
        await self._target.refresh([topic])
        replicas = min(len(info.partitions[0].replicas) or 1, len(self._target.metadata.brokers) or 1)
        told = (await self._source_admin.topic_configs([topic]))[topic]
        own = {key: entry.value for key, entry in told.items() if entry.own}
        own.update(await self._time_type(told))
        configs = target_configs(own, replicas)
        existing = self._target.metadata.topics.get(topic)
        if existing is not None:
            await self._check_empty(existing, len(info.partitions))
            await self._target_admin.alter_topic_configs(topic, configs.now)
        else:
            await self._target_admin.create_topic(topic, len(info.partitions), replicas, configs.now)
        made = await self._leaders(topic, len(info.partitions))
        return Prepared(
            partitions=len(info.partitions),
            source_topic_id=_id(info),
            target_topic_id=_id(made),
            starts=await self._starts(record, info),
            configs=configs,
        )

    async def _time_type(self, told: Mapping[str, ConfigValue]) -> dict[str, str]:
        """Whose times records carry, where the source's word for it is not the target's default."""
        theirs = told.get("message.timestamp.type")
        ours = await self._target_admin.broker_config(
            next(iter(self._target.metadata.brokers)), "log.message.timestamp.type"
        )
        if theirs is None or ours is None or theirs.value == ours.value:
            return {}
        return {"message.timestamp.type": theirs.value}

    async def _leaders(self, topic: str, partitions: int) -> TopicInfo:
        deadline = monotonic() + 30
        while True:
            info = await self._target.topic(topic)
            if info is not None and len(info.partitions) != partitions:
                raise self._wrong_shape(info, partitions)
            if info is not None and all(part.leader >= 0 for part in info.partitions.values()):
                return info
            if monotonic() > deadline:
                raise Unreachable("no-leader", f"the partitions of {topic} on the target get no leaders")
            await sleep(0.02)

    def _wrong_shape(self, found: TopicInfo, partitions: int) -> Refused:
        return Refused(
            "target-topic-differs",
            f"topic {found.name} exists on {self._target.settings.name} with {len(found.partitions)} partitions; "
            f"the source has {partitions}",
            still_true="nothing was written to it",
            next_step=f"delete {found.name} on the target, or give its partitions the same number",
        )

    async def _check_empty(self, found: TopicInfo, partitions: int) -> None:
        if len(found.partitions) != partitions:
            raise self._wrong_shape(found, partitions)
        keys = [(found.name, partition) for partition in found.partitions]
        ends = await self._target.log_ends(keys)
        for key in keys:
            if ends[key].error:
                raise Unreachable("no-log-end", f"{key[0]}-{key[1]}: {row(ends[key].error).name}")
            if ends[key].offset > 0:
                raise Refused(
                    "target-topic-not-empty",
                    f"topic {found.name} on {self._target.settings.name} already holds data (partition {key[1]} "
                    f"ends at {ends[key].offset})",
                    still_true="nothing was written to it",
                    next_step=f"delete {found.name} on the target if it is not needed, and mirror it again",
                )

    async def _starts(self, record: TopicRecord, info: TopicInfo) -> dict[int, int]:
        """First mirrored offset by partition (AL-20)."""
        keys = [(info.name, partition) for partition in sorted(info.partitions)]
        wanted = {"earliest": EARLIEST, "latest": LATEST}.get(record.start)
        told = await self._source.list_offsets(dict.fromkeys(keys, int(record.start) if wanted is None else wanted))
        ends = await self._source.list_offsets(dict.fromkeys(keys, LATEST))
        for key in keys:
            error = told[key].error or ends[key].error
            if error:
                await self._source.refresh([info.name])
                raise Unreachable("no-offsets", f"{key[0]}-{key[1]}: {row(error).name}")
        return {key[1]: told[key].offset if told[key].offset >= 0 else ends[key].offset for key in keys}


def _id(info: TopicInfo) -> str:
    return str(info.topic_id) if info.topic_id is not None else ""
