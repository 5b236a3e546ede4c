"""Where a migration stands: the facts of the configuration and of one snapshot that decide about the next step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from kmigrate.model.lifecycle import GROUP_AT_TARGET, GroupMode, GroupPhase, TopicPhase
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.workflow.status.snapshot import GroupStatus, LinkStatus, Snapshot, TopicStatus

__all__ = ["GroupStanding", "Standing", "TopicStanding", "standing_of"]

_RECENT_MS = 60_000
"""Age up to which a write past the routers shows a producer that is still there."""


@dataclass(frozen=True, slots=True)
class TopicStanding:
    """One mirrored topic."""

    topic: str
    phase: TopicPhase
    lag: int
    """Records that the target lacks; −1: unknown."""
    stopped: bool = False
    """True if a person paused the topic, or has to act before a partition goes on."""
    direct_writers: int = 0
    """Producers that wrote to the source without a router within the last minute."""


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """One mirrored group."""

    group: str
    phase: GroupPhase
    direct: int = 0
    """Members on the source that came without a router; −1: unknown."""


@dataclass(frozen=True, slots=True)
class Standing:
    """All facts that decide about the next step of one link."""

    place: str
    """The configuration file, or where the configuration comes from."""
    clusters: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    link: str = ""
    """The link that the facts below are about; '' while there is none, or while nobody chose one of several."""
    source: str = ""
    target: str = ""
    trouble: str = ""
    """The reason why a cluster of the link could not be asked."""
    missing: tuple[str, ...] = ()
    """Processes that are not heard of: mirror, router, controller."""
    topics: tuple[TopicStanding, ...] = ()
    groups: tuple[GroupStanding, ...] = ()
    finished: bool = False
    clients: int = 0
    """Connections of clients to routers."""
    routers: tuple[str, ...] = ()
    """Addresses of the routers that are heard of, as clients take them for bootstrap.servers."""

    @property
    def all_promoted(self) -> bool:
        topics = all(each.phase is TopicPhase.PROMOTED for each in self.topics)
        return bool(self.topics) and topics and all(each.phase is GroupPhase.PROMOTED for each in self.groups)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def standing_of(place: str, clusters: Collection[str], shot: Snapshot | None, link: str | None) -> Standing:
    """Return where the named link stands, or the only link; without a snapshot there is no state log yet."""
    known = shot.links if shot is not None else ()
    links = {each.name: each for each in known if not is_rehearsal(each.name)}
    bare = Standing(place, tuple(sorted(clusters)), tuple(sorted(links)))
    chosen = links.get(link) if link else next(iter(links.values())) if len(links) == 1 else None
    return bare if shot is None or chosen is None else _of_link(bare, shot, chosen)


def _of_link(bare: Standing, shot: Snapshot, link: LinkStatus) -> Standing:
    running = {
        "mirror": any(each.active and each.link == link.name for each in shot.mirrors),
        "router": bool(shot.routers_alive),
        "controller": any(each.active for each in shot.controllers),
    }
    return Standing(
        bare.place,
        bare.clusters,
        bare.links,
        link.name,
        link.source,
        link.target,
        link.trouble,
        tuple(name for name, runs in running.items() if not runs),
        tuple(_topic(each, shot.at_ms) for each in shot.topics if each.link == link.name),
        tuple(_group(each) for each in shot.groups if each.link == link.name),
        bool(link.finished_ms),
        sum(max(0, router.on_brokers) for router in shot.connected.values()),
        tuple(router.bootstrap for router in shot.routers if router.instance in shot.routers_alive),
    )


def _topic(status: TopicStatus, at_ms: int) -> TopicStanding:
    recent = {
        (writer.producer_id, writer.epoch) for writer in status.direct_writers if at_ms - writer.last_ms <= _RECENT_MS
    }
    stopped = status.paused or any(part.stop is not None for part in status.partitions)
    return TopicStanding(status.topic, status.phase, status.lag, stopped, len(recent))


def _group(status: GroupStatus) -> GroupStanding:
    members = -1 if status.source_members is None else len(status.source_members)
    direct = status.direct_members if status.mode is GroupMode.FOLLOW else members
    return GroupStanding(status.group, status.phase, 0 if status.phase in GROUP_AT_TARGET else direct)
