"""Determines which ranges of earlier checks still hold, and how a new check adds to them. Pure.

A range holds as long as the copy and the way of comparing stay the same. These facts must be unchanged:
- for the topic: the link, both topics' ids (a recreated topic has another id), and the digest
- for a partition: the mirror's first offset and the number of accepted losses, or it is read from its start again

A reader compares a range with the topic's current record, so nobody withdraws ranges. A cut by an unclean election
stays unnoticed if the log grows again before the next check. `verify --full` reads everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from kmigrate.model.records import LinkRecord, TopicRecord, VerifiedRange, VerifiedRecord

__all__ = ["DIGEST", "Looked", "grown", "standing"]

DIGEST = "xxhash64/2"
"""Name of the comparison of a record: a check that compares something else begins anew."""


class Looked(NamedTuple):
    """The result of a check of source offsets start to end (excluded) of a partition: whether both sides are equal."""

    start: int
    end: int
    equal: bool


def standing(kept: VerifiedRecord | None, link: LinkRecord, topic: TopicRecord) -> dict[int, VerifiedRange]:
    """Return the ranges that still hold for the topic, by partition."""
    if kept is None or replace(kept, ranges={}) != _nothing(link, topic):
        return {}
    return {
        partition: each
        for partition, each in kept.ranges.items()
        if (each.first, each.losses) == (topic.starts.get(partition, 0), len(topic.losses.get(partition, ())))
    }


def grown(
    kept: VerifiedRecord | None,
    link: LinkRecord,
    topic: TopicRecord,
    looked: Mapping[int, Looked],
    now_ms: int,
) -> VerifiedRecord:
    """Return the record after a check: an equal continuation extends a range, a difference inside a range ends it."""
    ranges = standing(kept, link, topic)
    for partition, (start, end, equal) in looked.items():
        before = ranges.get(partition)
        if not equal:
            if before is not None and start < before.end:
                del ranges[partition]
            continue
        if before is not None and start == end == before.end:
            continue  # there was nothing new to read
        if before is not None and before.start <= start <= before.end <= end:
            start = before.start
        losses = len(topic.losses.get(partition, ()))
        ranges[partition] = VerifiedRange(start, end, now_ms, topic.starts.get(partition, 0), losses)
    return replace(_nothing(link, topic), ranges=ranges)


def _nothing(link: LinkRecord, topic: TopicRecord) -> VerifiedRecord:
    """Return the record of a copy of which nothing is verified."""
    ids = topic.source_topic_id, topic.target_topic_id
    return VerifiedRecord(link.name, topic.topic, link.uuid, *ids, DIGEST, {})
