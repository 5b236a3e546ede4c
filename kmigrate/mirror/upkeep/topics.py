"""The target topic of a mirror: created with the source's shape and with relaxed configs (`configs`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import EARLIEST, LATEST
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import BrokerRefused, Refused, Unreachable
from kmigrate.mirror.link import Clusters
from kmigrate.mirror.upkeep.configs import (
    Configs,
    as_found,
    broker_defaults,
    carried_configs,
    changes,
    own_configs,
    target_configs,
)
from kmigrate.mirror.upkeep.forecast import offsets_of, why_mapped
from kmigrate.model.link_settings import DefaultsFrom, LinkSettings
from kmigrate.model.records import Seal, TopicRecord
from kmigrate.model.words import delete_unneeded
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import row
from kmigrate.state.topics import STATE_TOPIC, ensure_map_topic

__all__ = ["Prepared", "TopicMaker", "is_compacted"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A target topic that exists, and where its mirror begins on both sides."""

    partitions: int
    source_topic_id: str
    target_topic_id: str
    starts: Mapping[int, int]
    configs: Configs
    compacted: bool
    target_starts: Mapping[int, int] | None
    """Offsets where the records begin on the target, if the target has its own offsets; None for identical offsets."""
    began: Mapping[int, int] = field(default_factory=dict)
    """Log ends of the source now."""


class TopicMaker:
    """Creates target topics of a link."""

    def __init__(self, clusters: Clusters, settings: Callable[[], LinkSettings]) -> None:
        """Create a maker; `settings` returns the link's settings of the moment."""
        self._clusters = clusters
        self._settings = settings

    async def prepare(self, record: TopicRecord, note: Callable[[Configs], Awaitable[bool]]) -> Prepared | None:
        """Create or adopt the target topic; raise Refused if a topic stands there that the mirror may not fill.

        `note` records new and own configs before any change. If another process was faster, return None with no change.
        """
        topic = record.topic
        info, cluster = await self._clusters.source.topic(topic), self._clusters.source.settings
        if info is None:
            raise Refused(
                "no-source-topic",
                f"cluster {cluster.name} has no topic {topic}",
                still_true="nothing was created on the target",
                next_step="check the name; the mirror goes on by itself once the topic exists",
            )
        if info.error:
            raise BrokerRefused(
                "source-denied",
                f"cluster {cluster.name} does not show topic {topic}: {row(info.error).name}",
                code=info.error,
                still_true="nothing was created on the target",
                next_step=f"allow {cluster.security.principal} READ, which includes DESCRIBE, on topic {topic} at "
                f"cluster {cluster.name}",
            )
        await self._clusters.target.refresh([topic])
        replicas = min(len(info.partitions[0].replicas) or 1, len(self._clusters.target.metadata.brokers) or 1)
        source_configs = (await self._clusters.source_admin.topic_configs([topic]))[topic]
        existing = self._clusters.target.metadata.topics.get(topic)
        compacted = is_compacted(source_configs)
        starts, began = await self._starts(record, info)
        ends = dict.fromkeys(starts, 0) if existing is None else await self._ends(existing, len(info.partitions))
        on_target = await self._known_configs(topic if existing is not None else STATE_TOPIC)
        own = {key: entry.value for key, entry in on_target.items() if entry.own} if existing is not None else {}
        kept = as_found(own, record.restore_configs, record.drop_configs)
        if any(ends.values()):
            self._refuse_data(record, ends)
            configs = self._relaxed(kept, replicas, on_target, kept)  # a topic with data keeps its own configs
        else:
            defaults = await broker_defaults(self._clusters.target, self._clusters.target_admin)
            configs = self.configs(source_configs, defaults, replicas, on_target, kept, record.seal)
        mapped = await self._is_mapped(record, starts, compacted)
        if mapped:
            await ensure_map_topic(self._clusters.target, self._clusters.target_admin)
        if not await note(configs):
            return None
        if existing is not None and record.recreate and not any(ends.values()):
            await self._delete(topic)
            existing, configs = None, replace(configs, now={**kept, **configs.now})
        if existing is not None:
            await self._clusters.target_admin.alter_topic_configs(topic, configs.now)
        else:
            await self._clusters.target_admin.create_topic(topic, len(info.partitions), replicas, configs.now)
        made = await self._leaders(topic, len(info.partitions))
        return Prepared(
            partitions=len(info.partitions),
            source_topic_id=_id(info),
            target_topic_id=_id(made),
            starts=starts,
            began=began,
            configs=configs,
            compacted=compacted,
            target_starts=ends if mapped else None,
        )

    async def creation_configs(self, topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Return the configs with which each topic of the source would be created on the target."""
        if not topics:
            return {}
        infos = (await self._clusters.source.refresh(topics)).topics
        source_configs = await self._clusters.source_admin.topic_configs([topic for topic in topics if topic in infos])
        on_target = await self._known_configs(STATE_TOPIC)
        defaults = await broker_defaults(self._clusters.target, self._clusters.target_admin)
        brokers = len(self._clusters.target.metadata.brokers) or 1
        return {
            topic: self.configs(
                configs, defaults, min(len(infos[topic].partitions[0].replicas) or 1, brokers), on_target, {}, None
            ).now
            for topic, configs in source_configs.items()
        }

    def configs(
        self,
        source: Mapping[str, ConfigValue],
        defaults: Mapping[str, str],
        replicas: int,
        target: Mapping[str, ConfigValue],
        before: Mapping[str, str],
        seal: Seal | None,
    ) -> Configs:
        """Return the target topic's configs; `defaults` are its `broker_defaults`, `before` as in `target_configs`."""
        own = own_configs(source, seal, before)
        if self._settings().use_defaults_from is DefaultsFrom.SOURCE:
            own |= carried_configs(source, defaults)
        return self._relaxed(own, replicas, target, before)

    def _relaxed(
        self, own: Mapping[str, str], replicas: int, target: Mapping[str, ConfigValue], before: Mapping[str, str]
    ) -> Configs:
        exclude = self._settings().config_exclude
        return target_configs(own, replicas, exclude=exclude, known=target, before=before)

    def changes(self, configs: Configs, target: Mapping[str, ConfigValue]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the changes that bring an existing target topic to these configs."""
        exclude = self._settings().config_exclude
        return changes(configs.now, {key: entry.value for key, entry in target.items() if entry.own}, exclude)

    async def _known_configs(self, topic: str) -> dict[str, ConfigValue]:
        """Return the configs of a topic on the target, which also list all config keys that the target knows."""
        return (await self._clusters.target_admin.topic_configs([topic]))[topic]

    async def _is_mapped(self, record: TopicRecord, starts: Mapping[int, int], compacted: bool) -> bool:
        """Return whether the target gets its own offsets: by request, or because identical offsets are not possible."""
        if record.offsets != "auto":
            return record.offsets == "mapped"
        source, settings = self._clusters.source, self._settings()
        return bool(await why_mapped(source, settings, record.topic, starts, compacted=compacted))

    async def _delete(self, topic: str) -> None:
        """Delete a topic of the target, and wait until no asked broker shows the topic."""
        await self._clusters.target_admin.delete_topic(topic)
        deadline = monotonic() + 30
        while await self._clusters.target.topic(topic) is not None:
            if monotonic() > deadline:
                raise Unreachable("not-deleted", f"topic {topic} on the target was deleted and is still shown")
            await sleep(0.05)

    async def _leaders(self, topic: str, partitions: int) -> TopicInfo:
        deadline = monotonic() + 30
        while True:
            info = await self._clusters.target.topic(topic)
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
            f"topic {found.name} exists on {self._clusters.target.settings.name} with {len(found.partitions)} "
            f"partitions; the source has {partitions}",
            still_true="nothing was written to it",
            next_step=f"give both topics the same number of partitions; or {delete_unneeded(found.name)}",
        )

    async def _ends(self, found: TopicInfo, partitions: int) -> dict[int, int]:
        """Return the log ends of a target topic that existed before the mirror."""
        if len(found.partitions) != partitions:
            raise self._wrong_shape(found, partitions)
        ends = await self._clusters.target.log_ends([(found.name, partition) for partition in sorted(found.partitions)])
        for (topic, partition), end in ends.items():
            if end.error:
                raise Unreachable("no-log-end", f"{topic}-{partition}: {row(end.error).name}")
        return {partition: end.offset for (_, partition), end in ends.items()}

    def _refuse_data(self, record: TopicRecord, ends: Mapping[int, int]) -> None:
        """Refuse a target topic with data, unless a person asked to put the records behind that data."""
        if record.offsets != "mapped":
            partition, end = next((p, end) for p, end in ends.items() if end > 0)
            raise Refused(
                "target-topic-not-empty",
                f"topic {record.topic} on {self._clusters.target.settings.name} already holds data (partition "
                f"{partition} ends at {end})",
                still_true="nothing was written to it",
                next_step="put the records of the source behind that data: --offsets mapped; or "
                f"{delete_unneeded(record.topic)}, then mirror it again",
            )

    async def _starts(self, record: TopicRecord, info: TopicInfo) -> tuple[dict[int, int], dict[int, int]]:
        """Return the first mirrored offset of each partition, and the present log ends of the source."""
        source, partitions = self._clusters.source, sorted(info.partitions)
        wanted = {"earliest": EARLIEST, "latest": LATEST}.get(record.start)
        found = await offsets_of(source, info.name, partitions, int(record.start) if wanted is None else wanted)
        ends = await offsets_of(source, info.name, partitions, LATEST)
        return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}, ends


def is_compacted(configs: Mapping[str, ConfigValue]) -> bool:
    """Return whether a log cleaner works on a topic, by its own policy or by its cluster's policy."""
    return "compact" in configs["cleanup.policy"].value


def _id(info: TopicInfo) -> str:
    return str(info.topic_id) if info.topic_id is not None else ""
