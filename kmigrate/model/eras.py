"""Determines the era of a topic's copy: its direction, its producer id, and the offsets where it begins. Pure.

The position of a copy is the newest batch of the copy's producer id. After a change of direction, batches of clients
stand behind the copy's last batch. So each change of direction begins an era with a producer id of its own, and with
the barrier's offsets, where the written log must end (docs/decisions/0017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from kmigrate.model.lifecycle import COPIED
from kmigrate.model.records import CopyIdentity, TopicRecord

__all__ = ["Direction", "Era", "begun", "era_of"]


class Direction(StrEnum):
    """The direction of a copy between the clusters of a link."""

    FORWARD = "forward"
    """From the source to the target."""
    BACK = "back"
    """From the target to the source."""


@dataclass(frozen=True, slots=True)
class Era:
    """The copy of a topic between two changes of direction."""

    direction: Direction
    identity: CopyIdentity | None
    """Producer id of the copy; None: the lease's holder has not got the id yet, and nothing is copied until then."""
    starts: Mapping[int, int]
    """Offsets where the copy begins, by partition."""
    is_first: bool = False
    """True before the first change of direction: the written log holds no batches of clients."""


def era_of(record: TopicRecord, link_identity: CopyIdentity | None) -> Era | None:
    """Return the present era of a topic, whose first era has the link's producer id; None if nothing is copied."""
    if record.copied_back and record.way_back is not None:
        return Era(Direction.BACK, record.way_back.copy, record.way_back.starts)
    if record.phase not in COPIED:
        return None
    if record.resumed:
        return Era(Direction.FORWARD, record.copy, {**record.starts, **record.resumed})
    return Era(Direction.FORWARD, link_identity, record.starts, is_first=True)


def begun(record: TopicRecord, direction: Direction, identity: CopyIdentity) -> TopicRecord | None:
    """Return the record with the producer id of its era; None if the era has an id, or another direction by now."""
    era = era_of(record, identity)
    if era is None or era.direction is not direction or era.identity is not None:
        return None
    if record.way_back is not None and direction is Direction.BACK:
        return replace(record, way_back=replace(record.way_back, copy=identity))
    return replace(record, copy=identity)
