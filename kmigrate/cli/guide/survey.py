"""A look at the source before anything is mirrored: topics with sizes and producers, groups with members and lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kmigrate.cluster.admin import Admin, GroupState
from kmigrate.cluster.brokers import read_log_dirs, refuse_unreachable_brokers, topic_bytes
from kmigrate.cluster.client import LATEST, ClusterClient, api_versions
from kmigrate.cluster.committed_offsets import CommittedOffset, read_all_positions
from kmigrate.cluster.coordinators import all_answered
from kmigrate.cluster.groups import describe_groups
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import KmigrateError
from kmigrate.model.ids import is_internal
from kmigrate.model.patterns import NamePattern, chosen_groups
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import now_ms
from kmigrate.protocol.api import ApiKey

__all__ = ["GroupFound", "Survey", "TopicFound", "survey_source"]

_RECENT_MS = 3_600_000
"""Age of the last record up to which a producer is recent."""
_MOST_PARTITIONS = 5_000
"""Partitions up to which producers are asked for: brokers answer with every producer that they remember."""

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TopicFound:
    """A topic of the source."""

    topic: str
    partitions: int
    bytes: int = -1
    """Bytes with all replicas; −1: the brokers do not say."""
    producers: int = -1
    """Producers with an id whose last record is an hour old at most; −1: the brokers do not say."""


@dataclass(frozen=True, slots=True)
class GroupFound:
    """A consumer group of the source."""

    group: str
    state: str
    members: int
    lag: int
    """Records between committed offsets and log ends; −1: no partition's lag is known."""
    topics: tuple[str, ...]
    """Topics with a committed offset, or assigned to a member."""


@dataclass(frozen=True, slots=True)
class Survey:
    """All topics and groups of the source that can be mirrored."""

    cluster: str
    topics: tuple[TopicFound, ...]
    groups: tuple[GroupFound, ...]
    notes: tuple[str, ...] = ()
    """Figures that a broker or an ACL withholds."""

    def readers(self, topics: Sequence[str]) -> list[str]:
        """Return the groups that read at least one of the topics."""
        wanted = set(topics)
        return [group.group for group in self.groups if not wanted.isdisjoint(group.topics)]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def survey_source(settings: ClusterSettings) -> Survey:
    """Ask a cluster for its topics and groups; raise if the cluster does not answer."""
    async with ClusterClient(settings) as client:
        known = (await client.refresh()).topics
        await refuse_unreachable_brokers(client)
        infos = {name: known[name] for name in sorted(known) if not is_internal(name) and not known[name].error}
        with Admin(settings) as admin:
            notes: list[str] = []
            sizes = await _sizes(client, infos, notes)
            producers = await _producers(client, infos, notes)
            groups = await _groups(client, admin, notes)
    found = tuple(
        TopicFound(name, len(info.partitions), sizes.get(name, -1), producers.get(name, -1))
        for name, info in infos.items()
    )
    return Survey(settings.name, found, groups, tuple(notes))


async def _sizes(client: ClusterClient, infos: Mapping[str, TopicInfo], notes: list[str]) -> Mapping[str, int]:
    reported = await read_log_dirs(client, {name: info.partitions for name, info in infos.items()})
    found = topic_bytes(reported, infos)
    if found is None:
        notes.append("sizes are unknown: a broker does not show its log directories (DESCRIBE on the cluster)")
    return found or {}


async def _producers(client: ClusterClient, infos: Mapping[str, TopicInfo], notes: list[str]) -> Mapping[str, int]:
    """Count the recent producers of each topic, where the brokers answer DescribeProducers (Kafka 2.8)."""
    keys = [(name, partition) for name, info in infos.items() for partition in info.partitions]
    if len(keys) > _MOST_PARTITIONS:
        notes.append(f"producers are not counted: more than {_MOST_PARTITIONS:,} partitions")
        return {}
    if ApiKey.DESCRIBE_PRODUCERS not in await api_versions(client):
        notes.append("producers are unknown: the brokers do not know DescribeProducers")
        return {}
    since = now_ms() - _RECENT_MS
    found: dict[str, set[int]] = {}
    hidden: set[str] = set()
    for (topic, _), (error, producers) in (await client.describe_producers(keys)).items():
        if error:
            hidden.add(topic)
        recent = {each.producer_id for each in producers if each.last_timestamp >= since}
        found.setdefault(topic, set()).update(recent)
    if hidden:
        notes.append(f"producers are unknown at {len(hidden):,} topics: the brokers refuse to describe them")
    return {topic: len(ids) for topic, ids in found.items() if topic not in hidden}


async def _groups(client: ClusterClient, admin: Admin, notes: list[str]) -> tuple[GroupFound, ...]:
    try:
        names = chosen_groups([NamePattern(".*")], await admin.groups())
        described = all_answered(await describe_groups(client, names))
    except KmigrateError as error:
        notes.append(f"groups are unknown: {error.what}")
        return ()
    committed = all_answered(await read_all_positions(client, described))
    keys = {key for each in committed.values() for key in each if client.metadata.partition(*key) is not None}
    ends = {key: end.offset for key, end in (await client.list_offsets(dict.fromkeys(keys, LATEST))).items()}
    return tuple(_group(described[name], committed[name], ends) for name in sorted(described))


def _group(state: GroupState, committed: Mapping[Key, CommittedOffset], ends: Mapping[Key, int]) -> GroupFound:
    behind = [ends[key] - place.offset for key, place in committed.items() if ends.get(key, -1) >= place.offset]
    topics = state.assigned | {topic for topic, _ in committed}
    lag = sum(behind) if behind else -1
    return GroupFound(state.group, state.state, len(state.members), lag, tuple(sorted(topics)))
