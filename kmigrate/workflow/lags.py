"""How far the copies are behind: records by the ends of the two logs, bytes and seconds by who knows most of them.

The mirror's last word is best, even after it has died: `fresh_ms` is a moment, so the seconds go on growing. A word
counts only where the target holds what it speaks of. Where nobody has said anything within the last minute, or a
new mirror has not come to its first batch, the next batch itself is looked at on the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kmigrate.cluster.ahead import look_ahead
from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.model.lag import UNPACED, Lag, Pace, lag_of
from kmigrate.model.lifecycle import COPIED, NOT_COPIED_YET, TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import TopicRecord
from kmigrate.net.clock import now_ms

__all__ = ["Offsets", "lags_of", "lost_beginning"]

Offsets = Mapping[tuple[str, int], LogOffset]


async def lags_of(
    records: Iterable[TopicRecord],
    source_ends: Offsets,
    target_ends: Offsets,
    words: Iterable[MirrorPresence],
    source: ClusterClient | None,
) -> dict[tuple[str, int], Lag]:
    """The lag of every partition of one link's topics; `source` is None where it does not answer."""
    words = list(words)
    behind: dict[tuple[str, int], int] = {}
    paces: dict[tuple[str, int], Pace] = {}
    unheard: dict[tuple[str, int], int] = {}
    for record in records:
        for partition in range(record.partitions):
            key = (record.topic, partition)
            at = _place(record, partition, target_ends[key].offset, words)
            behind[key] = _behind(record, source_ends[key].offset, at)
            paces[key] = _last_word(record, partition, at, words)
            if behind[key] > 0 and not paces[key].fresh_ms and record.phase not in NOT_COPIED_YET:
                unheard[key] = at
    if source is not None and unheard:
        paces |= await look_ahead(source, unheard)
    now = now_ms()
    return {key: lag_of(missing, paces[key], now) for key, missing in behind.items()}


def lost_beginning(record: TopicRecord, key: tuple[str, int], on_target: Offsets, on_source: Offsets) -> str:
    """What of a copy with identical offsets is gone at its beginning and still on the source, as a sentence, or ''.

    While a topic is mirrored the target loses only what the source has lost: anything else somebody has deleted.
    """
    start, there, here = record.starts.get(key[1], 0), on_target[key].offset, on_source[key].offset
    first = max(start, here)
    if record.mapped or record.phase not in COPIED or here < 0 or there <= first:
        return ""
    return f"copy-cut: offsets {first} to {there - 1} are gone on the target, where somebody deletes records"


def _place(record: TopicRecord, partition: int, target_end: int, words: Iterable[MirrorPresence]) -> int:
    """Up to which source offset the target holds everything: its own end; the mirror's word where it is mapped."""
    if not record.mapped:
        return target_end
    told = (word.topics.get(record.topic, {}).get(partition) for word in words if word.link == record.link)
    return max((progress.position for progress in told if progress is not None), default=-1)


def _behind(record: TopicRecord, source_end: int, target_end: int) -> int:
    if record.phase is TopicPhase.PROMOTED:
        return 0
    unknown = source_end < 0 or target_end < 0 or target_end > source_end  # the copy holds what the source does not
    return -1 if unknown else source_end - target_end


def _last_word(record: TopicRecord, partition: int, target_end: int, words: Iterable[MirrorPresence]) -> Pace:
    """The freshest of what the link's mirrors have said, dead ones included."""
    said = [
        progress.pace
        for word in words
        if word.link == record.link
        and (progress := word.topics.get(record.topic, {}).get(partition)) is not None
        and progress.position <= target_end
    ]
    return max(said, key=lambda pace: pace.fresh_ms, default=UNPACED)
