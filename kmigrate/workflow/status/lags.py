"""Measures how far the copies are behind: in records by the two logs' ends, in bytes and seconds by the best report.

The mirror's last report is best, even after the mirror has died: `fresh_ms` is a moment, so the seconds go on growing.
A report counts only where the target holds the records that the report is about. Without a report in the last minute,
or from a new mirror before its first batch, kmigrate reads the next batch on the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.log_probes import look_ahead
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
    """Return the lag of every partition of one link's topics; `source` is None where the source does not answer."""
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
    """Describe records that are gone at the beginning of a copy and still on the source; '' for none.

    Only a copy with identical offsets is judged. While a topic is mirrored, the target loses only what the source has
    lost: somebody has deleted all else.
    """
    start, there, here = record.starts.get(key[1], 0), on_target[key].offset, on_source[key].offset
    first = max(start, here)
    if record.mapped or record.phase not in COPIED or here < 0 or there <= first:
        return ""
    return f"copy-cut: offsets {first} to {there - 1} are gone on the target, where somebody deletes records"


def _place(record: TopicRecord, partition: int, target_end: int, words: Iterable[MirrorPresence]) -> int:
    """Return the source offset up to which the target holds everything.

    With identical offsets that is the target's log end; with mapped offsets it is the position that the mirror reports.
    """
    if not record.mapped:
        return target_end
    told = (word.topics.get(record.topic, {}).get(partition) for word in words if word.link == record.link)
    return max((progress.position for progress in told if progress is not None), default=-1)


def _behind(record: TopicRecord, source_end: int, target_end: int) -> int:
    if record.phase is TopicPhase.PROMOTED:
        return 0
    # unknown, too, if the copy holds records that the source does not hold
    unknown = source_end < 0 or target_end < 0 or target_end > source_end
    return -1 if unknown else source_end - target_end


def _last_word(record: TopicRecord, partition: int, target_end: int, words: Iterable[MirrorPresence]) -> Pace:
    """Return the freshest pace that the link's mirrors have reported, dead mirrors included."""
    said = [
        progress.pace
        for word in words
        if word.link == record.link
        and (progress := word.topics.get(record.topic, {}).get(partition)) is not None
        and progress.position <= target_end
    ]
    return max(said, key=lambda pace: pace.fresh_ms, default=UNPACED)
