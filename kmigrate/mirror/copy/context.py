"""The context of a copy: the clusters, identity, limits and rights of a copier, shared by all its tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.lanes import Lanes, Signals
from kmigrate.mirror.metrics import LinkMeter
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.mirror.partition.steps import Append, Producer
from kmigrate.mirror.settings import OLD_MS, MirrorSettings
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.net.clock import now_ms
from kmigrate.state.offset_maps import OffsetMaps

__all__ = ["CopyContext", "MapStore"]


@dataclass(frozen=True, slots=True)
class MapStore:
    """The map topic, and the link for which this process writes to the topic."""

    maps: OffsetMaps
    link_uuid: str


@dataclass(frozen=True, slots=True)
class CopyContext:
    """What a copier is given, and the lanes and signals that its readers, writers and recovery share."""

    source: ClusterClient
    target: ClusterClient
    identity: CopyIdentity
    """Producer id of the topics that have no producer id of their own."""
    holes: HoleMaker
    settings: MirrorSettings
    link_settings: Callable[[], LinkSettings] = LinkSettings
    """Returns the settings that the link's record holds now."""
    maps: MapStore | None = None
    owner_term: Callable[[Key], int] = lambda _: 1
    """Returns the term for writes to a partition without compare-and-set; 0 if this process may not write so now."""
    may_write: Callable[[], bool] = lambda: True
    """Tells whether this process has acted on all decisions that others may have made about its partitions."""
    pipelining: bool = True
    old_ms: int = OLD_MS
    """Age from which records may outlive the producer state of the written cluster's brokers (W1)."""
    request_limit: int = 100 << 20
    late_writes: Collection[Key] = ()
    """The previous copier's `late_writes`."""
    is_free: Callable[[Key], bool] = lambda _: True
    """Tells whether no other copier of this process may still write to a partition."""
    is_routed: Callable[[Producer], bool] = lambda _: False
    """Tells whether a producer id and epoch belong to a routed transactional producer."""
    on_move: Callable[[Lane], None] = lambda _: None
    meter: LinkMeter = field(default_factory=LinkMeter)
    lanes: Lanes = field(default_factory=Lanes)
    signals: Signals = field(default_factory=Signals)

    def must_go_alone(self, batch: Append) -> bool:
        """Return whether the target may forget a batch's producer early, so that nothing else may be in flight (W1)."""
        return not self.pipelining or now_ms() - batch.max_timestamp > self.old_ms
