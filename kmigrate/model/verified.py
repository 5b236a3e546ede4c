"""How far a copy is verified: which ranges of earlier checks still hold, and how a new check adds to them. Pure.

A range holds as long as it is about the same copy, compared in the same way:

topic    the link, both topics by their ids (one that is deleted and made again has another), and the digest
part     the offset at which the mirror begins, and the accepted losses: a partition that was resumed with a loss, or
         copied anew, is read from its start again

Nobody has to withdraw a range: whoever reads it holds it against the topic's record of that moment. Not noticed is a
log that was cut by an unclean election and grew again before the next check; `verify --full` reads everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from kmigrate.model.records import LinkRecord, TopicRecord, VerifiedRange, VerifiedRecord

__all__ = ["DIGEST", "Looked", "grown", "standing"]

DIGEST = "xxhash64/2"
"""What is compared of a record, by name: a check that compares something else begins anew."""


class Looked(NamedTuple):
    """What a check read of one partition, source offsets start to end (excluded), and whether both sides are equal."""

    start: int
    end: int
    equal: bool


def standing(kept: VerifiedRecord | None, link: LinkRecord, topic: TopicRecord) -> dict[int, VerifiedRange]:
    """The ranges that still say something of the topic, by partition."""
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
    """The record after a check: what continues an equal range makes it longer, a difference inside of one ends it."""
    ranges = standing(kept, link, topic)
    for partition, (start, end, equal) in looked.items():
        before = ranges.get(partition)
        if not equal:
            if before is not None and start < before.end:
                del ranges[partition]
            continue
        if before is not None and start == end == before.end:
            continue  # nothing new was there to be read
        if before is not None and before.start <= start <= before.end <= end:
            start = before.start
        losses = len(topic.losses.get(partition, ()))
        ranges[partition] = VerifiedRange(start, end, now_ms, topic.starts.get(partition, 0), losses)
    return replace(_nothing(link, topic), ranges=ranges)


def _nothing(link: LinkRecord, topic: TopicRecord) -> VerifiedRecord:
    """The record of a copy of which nothing is verified."""
    ids = topic.source_topic_id, topic.target_topic_id
    return VerifiedRecord(link.name, topic.topic, link.uuid, *ids, DIGEST, {})
