"""Partitions that no client may read yet, because the mirror still aligns them with filler records.

The mirror writes fillers only after every registered router has taken a routing table that names these partitions. An
answer asked for under an older table may still hold fillers when a newer table has released the partition. So a request
keeps its table's epoch, and the answer is judged by all tables since then.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kmigrate.model.routes import RoutingTable, Serve, TopicRoute

__all__ = ["AligningPartitions"]

_KEPT_S = 3600.0
"""Time for which a released partition is remembered; no client waits so long for an answer."""
_FORGET_S = 60.0
"""Time between two looks for released partitions that can be forgotten: a look takes all topics in turn."""


@dataclass(slots=True)
class _Span:
    """The tables in which some partitions of a topic were aligning."""

    partitions: frozenset[int] | None
    """None: all of the topic's partitions."""
    until: float = math.inf
    """Epoch of the first table that released the partitions."""
    released_at: float = math.inf


@dataclass(slots=True)
class AligningPartitions:
    """The aligning partitions of a router's tables, by topic.

    A table costs only the topics whose routes have changed: thousands of topics may have been aligned lately.
    """

    _spans: dict[str, tuple[_Span, ...]] = field(default_factory=dict)
    _names: dict[bytes, str] = field(default_factory=dict)
    """Topic names by the topic's id at the target."""
    _routes: Mapping[str, TopicRoute] = field(default_factory=dict)
    """Routes of the newest table."""
    _open: set[str] = field(default_factory=set)
    """Topics with aligning partitions in the newest table; the last span of each is open."""
    _until: int = -1
    """The epoch of the newest table that released partitions."""
    _forgot_at: float = -math.inf
    """Time when released partitions were last forgotten."""

    def follow(self, table: RoutingTable, now: float) -> None:
        """Take a newer table."""
        unready = table.routes.unready
        for name in table.changes_since(self._routes):
            if name in unready or name in self._spans:
                self._follow_topic(name, unready.get(name), table.epoch, now)
        self._routes = table.topics
        if self._spans and now - self._forgot_at > _FORGET_S:
            self._forgot_at = now
            self._forget(now)

    def _follow_topic(self, name: str, route: TopicRoute | None, epoch: int, now: float) -> None:
        """Take a topic's newer route; None for a topic without aligning partitions."""
        spans = self._spans.get(name, ())
        partitions = _aligning(route) if route is not None else None
        if name in self._open and (route is None or spans[-1].partitions != partitions):
            spans[-1].until, spans[-1].released_at = epoch, now
            self._open.discard(name)
            self._until = epoch
        if route is None:
            return
        if name not in self._open:
            self._spans[name] = (*spans, _Span(partitions))
            self._open.add(name)
        if route.target_id:
            self._names[uuid.UUID(route.target_id).bytes] = name

    def _forget(self, now: float) -> None:
        """Drop partitions that were released long ago."""
        kept = {
            name: tuple(span for span in spans if now - span.released_at <= _KEPT_S)
            for name, spans in self._spans.items()
        }
        self._spans = {name: spans for name, spans in kept.items() if spans}
        self._names = {known: name for known, name in self._names.items() if name in self._spans}

    def concerns(self, since: int) -> bool:
        """Return whether any partition was aligning at some time since the table of an epoch."""
        return bool(self._open) or (bool(self._spans) and since < self._until)

    def judge(self, since: int) -> Callable[[bytes, int], bool]:
        """Return a test of whether a partition, by topic name or target id, was aligning since an epoch."""

        def is_aligning(topic: bytes, partition: int) -> bool:
            name = self._names.get(topic) or topic.decode("utf-8", "replace")
            return any(
                since < span.until and (span.partitions is None or partition in span.partitions)
                for span in self._spans.get(name, ())
            )

        return is_aligning


def _aligning(route: TopicRoute) -> frozenset[int] | None:
    """Return the aligning partitions of a route; None: all of them."""
    return None if route.serve is Serve.HIDDEN else route.aligning
