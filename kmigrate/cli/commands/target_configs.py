"""The configs of target topics: what the mirror would create, and what a topic keeps of the source's brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.mirror.upkeep.configs import broker_defaults, carried_configs, replicated
from kmigrate.model.link_settings import DefaultsFrom
from kmigrate.model.records import LinkRecord
from kmigrate.state.topics import STATE_TOPIC
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, warn

__all__ = ["creation_configs", "default_findings"]


def creation_configs(connections: Connections, link: str) -> verbs.ConfigsOf:
    """Return a function that returns the configs with which the mirror would create topics."""

    async def configs_of(topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        # Imported here, because the mirror loads modules that no other part of the command needs.
        from kmigrate.mirror.link import Clusters
        from kmigrate.mirror.upkeep.topics import TopicMaker

        record = verbs.resolve_link(connections.log.state, link)
        source, source_admin = await connections.source(record)
        clusters = Clusters(source, connections.target, source_admin, connections.target_admin)
        maker = TopicMaker(clusters, lambda: record.settings)
        return await maker.creation_configs(topics)

    return configs_of


async def default_findings(connections: Connections, link: LinkRecord, topics: Sequence[str]) -> list[Finding]:
    """Return a finding on each source topic that would behave otherwise on the target without the inherited values."""
    if link.settings.use_defaults_from is DefaultsFrom.TARGET:
        return []
    try:
        _, source_admin = await connections.source(link)
        configs_by_topic = await source_admin.topic_config_outcomes(topics)
        defaults = await broker_defaults(connections.target, connections.target_admin)
        known = (await connections.target_admin.topic_configs([STATE_TOPIC]))[STATE_TOPIC]
        filled = await _filled(connections.target, topics)
    except KmigrateError as error:
        return [warn(error.ref, error.what, error.next_step)]
    mirrored = {record.topic: any(record.target_starts.values()) for record in connections.log.state.topics(link.name)}
    keys = replicated(link.settings.config_exclude, known)
    found: list[Finding] = []
    for topic, configs in configs_by_topic.items():
        if isinstance(configs, KmigrateError) or mirrored.get(topic, topic in filled):
            continue  # the guards name the topic already, or the target topic keeps its own configs
        values = [each for key, each in _sentences(configs, defaults).items() if key in keys]
        if values:
            what = f"topic {topic} keeps what the source's brokers give it: {', '.join(values)}"
            found.append(ok("source-defaults", what))
    return found


def _sentences(configs: Mapping[str, ConfigValue], defaults: Mapping[str, str]) -> dict[str, str]:
    return {
        key: f"{key}={value} (the target's: {defaults.get(key, 'unknown')})"
        for key, value in carried_configs(configs, defaults).items()
    }


async def _filled(target: ClusterClient, topics: Sequence[str]) -> set[str]:
    """Return topics of the target that have held data; a topic that held other data keeps its own configs."""
    existing = (await target.refresh(topics)).topics.values()
    keys = [(info.name, partition) for info in existing for partition in info.partitions]
    ends = await target.list_offsets(dict.fromkeys(keys, LATEST))
    return {topic for (topic, _), end in ends.items() if end.offset > 0}
