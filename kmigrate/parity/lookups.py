"""Look-ups by time on both clusters: the first offset that a reader gets when the reader starts at a given time.

The times are timestamps of the compared records, some of each partition. If the target names an earlier offset, the
reader reads records again: control markers of a copy bear the time of the copy, and a broker names the first of them.
If the target names a later offset, the reader skips records, which is a mismatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kmigrate.parity.plan import BucketDigest, BucketKey, PartitionKey, TopicRange

__all__ = ["MOST_LOOKUPS", "PartitionLookups", "judge_lookups", "rounds_of"]

MOST_LOOKUPS = 4_000
"""Maximum number of questions of a check to each cluster."""
_MOST_TIMES = 16
"""Maximum number of times of a partition."""
Answers = Sequence[tuple[Mapping[PartitionKey, int], Mapping[PartitionKey, int], Mapping[PartitionKey, int]]]
"""The times of each round, and the offsets that source and target named; −1: no such record."""


class PartitionLookups(NamedTuple):
    """The outcome of a partition's look-ups, with the worst answer as an example."""

    topic: str
    partition: int
    compared: int
    early: int
    """The number of answers in which the target's offset lies before the right offset."""
    late: int
    time: int
    source: int
    target: int


def rounds_of(source: Mapping[BucketKey, BucketDigest]) -> list[dict[PartitionKey, int]]:
    """Return the times to ask for. A round has at most a single time of each partition."""
    times: dict[PartitionKey, set[int]] = {}
    for key, digest in source.items():
        times.setdefault(key.of, set()).update(at for at in (digest.since, digest.until) if at >= 0)
    most = max(1, min(_MOST_TIMES, MOST_LOOKUPS // max(1, len(times))))
    chosen = {key: _some(sorted(found), most) for key, found in times.items()}
    chosen = dict(list(chosen.items())[:MOST_LOOKUPS])
    return [
        {key: found[number] for key, found in chosen.items() if number < len(found)}
        for number in range(max(map(len, chosen.values()), default=0))
    ]


def _some(times: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the times: the last, the first if there is room, and times in between."""
    if len(times) <= most:
        return list(times)
    if most == 1:
        return [times[-1]]
    return [times[number * (len(times) - 1) // (most - 1)] for number in range(most)]


def judge_lookups(
    ranges: Iterable[TopicRange], starts: Mapping[PartitionKey, int], answers: Answers
) -> tuple[PartitionLookups, ...]:
    """Return the outcome of each partition's look-ups. `starts`: the first offsets of the source's logs.

    Nothing is said of partitions that a log cleaner works on, and of answers outside the compared range. The source may
    have deleted records that the target still has, and the target may not yet have records that the source has.
    """
    whole = {each.key: each for each in ranges if each.cleaned is None}
    found: dict[PartitionKey, PartitionLookups] = {}
    for times, source, target in answers:
        for key, time in times.items():
            each = whole.get(key)
            if each is None or key not in source or key not in target:
                continue
            apart = _apart(each, starts.get(key, 0), source[key], target[key])
            if apart is None:
                continue
            known = found.get(key, PartitionLookups(*key, 0, 0, 0, time, source[key], target[key]))
            known = known._replace(
                compared=known.compared + 1, early=known.early + (apart < 0), late=known.late + (apart > 0)
            )
            worst = abs(apart) > abs(_apart(each, starts.get(key, 0), known.source, known.target) or 0)
            found[key] = known._replace(time=time, source=source[key], target=target[key]) if worst else known
    return tuple(found[key] for key in sorted(found))


def _apart(each: TopicRange, start: int, source: int, target: int) -> int | None:
    """Return how far the target's answer lies behind the right answer, less than 0 if before; None: nobody can tell."""
    end = each.to_target(each.end)
    right = end if source < 0 or source >= each.end else each.to_target(source)
    answer = end if target < 0 or target >= end else target
    origin = each.start if each.verified_from is None else each.verified_from
    return None if answer < each.to_target(max(start, origin)) else answer - right
