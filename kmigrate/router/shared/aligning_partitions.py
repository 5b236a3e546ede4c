"""Partitions that no client may read yet, because the mirror still aligns them with filler records.

The mirror writes fillers only after every registered router has taken a routing table that names these partitions. An
answer asked for under an older table may still hold fillers when a newer table has released the partition. So a request
keeps its table's epoch, and the answer is judged by all tables since then.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from kmigrate.model.routes import RoutingTable, Serve, TopicRoute

__all__ = ["AligningPartitions"]

_KEPT_S = 3600.0
"""Time for which a released partition is remembered; no client waits so long for an answer."""


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
    """The aligning partitions of a router's tables, by topic."""

    _spans: dict[str, tuple[_Span, ...]] = field(default_factory=dict)
    _names: dict[bytes, str] = field(default_factory=dict)
    """Topic names by the topic's id at the target."""
    _until: float = -math.inf
    """The epoch of the first table in which every partition was ready."""

    def follow(self, table: RoutingTable, now: float) -> None:
        """Take a newer table."""
        aligning = {name: _aligning(route) for name, route in table.routes.unready.items()}
        if not aligning and not self._spans:
            return
        for name in self._spans.keys() | aligning.keys():
            spans = [span for span in self._spans.get(name, ()) if now - span.released_at <= _KEPT_S]
            open_ = [span for span in spans if span.until == math.inf]
            if name not in aligning or any(span.partitions != aligning[name] for span in open_):
                for span in open_:
                    span.until, span.released_at = table.epoch, now
                open_ = []
            if name in aligning and not open_:
                spans.append(_Span(aligning[name]))
            self._spans[name] = tuple(spans)
        self._spans = {name: spans for name, spans in self._spans.items() if spans}
        self._names = {known: name for known, name in self._names.items() if name in self._spans}
        self._names |= {uuid.UUID(told).bytes: name for name in aligning if (told := table.topics[name].target_id)}
        self._until = max((span.until for spans in self._spans.values() for span in spans), default=-math.inf)

    def concerns(self, since: int) -> bool:
        """Return whether any partition was aligning at some time since the table of an epoch."""
        return since < self._until

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
