"""The present start and end of each log, asked before anything is read.

Spark treats every offset that Spark cannot get as data loss. A target that ends early is a finding and no failure, so
the target's range is cut to the existing offsets. So is a mirrored target's range that begins late, if the target
deletes nothing by itself. Any other range off a log, or beyond the source's last stable offset, is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kmigrate.errors import Failed
from kmigrate.parity.plan import PartitionKey, Stretch, TopicRange

__all__ = ["Bounds", "refuse_what_is_gone", "within"]


class Bounds(NamedTuple):
    """The first offset and the last stable offset of a log."""

    start: int
    end: int


def within(ranges: Iterable[TopicRange], bounds: Mapping[PartitionKey, Bounds]) -> list[Stretch]:
    """Return the stretches of the ranges that the target holds now."""
    cut = (each.at_target for each in ranges)
    both = ((each, bounds[each.key]) for each in cut)
    held = (each._replace(start=max(each.start, log.start), end=min(each.end, log.end)) for each, log in both)
    return [each for each in held if each.start < each.end]


def refuse_what_is_gone(
    ranges: Sequence[TopicRange],
    source: Mapping[PartitionKey, Bounds],
    target: Mapping[PartitionKey, Bounds],
) -> None:
    """Raise an error if a range begins before a log does, or ends beyond the source's last stable offset."""
    for each in ranges:
        for side, start, log in (
            ("source", each.start, source[each.key]),
            ("target", each.at_target.start, target[each.key]),
        ):
            if each.offsets and start < log.start and not (each.kept and side == "target"):
                raise Failed(
                    "parity-range-gone",
                    f"{each.topic}-{each.partition} is to be compared from {side} offset {start}, "
                    f"but that log now begins at {log.start}",
                    still_true="both clusters were only read",
                    next_step="compare from the present log start; retention may have deleted records",
                )
        if each.end > source[each.key].end:
            raise Failed(
                "parity-range-not-stable",
                f"{each.topic}-{each.partition} is to be compared up to source offset {each.end}, "
                f"but its last stable offset is {source[each.key].end}",
                still_true="both clusters were only read",
                next_step="wait for the open transaction to end, or compare up to the last stable offset",
            )
