"""Wait until the target's copy reaches offsets that a group, or a log's end, has on the source.

A reader beyond the copy's end repeats its fetch (`fetch.out_of_range`); a short wait spares most readers that, because
the mirror is milliseconds behind as a rule. OffsetFetch below version 7 waits for the copy (`groups.handler`, rule B).
"""

from __future__ import annotations

from collections.abc import Mapping

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.net.retry import Backoff

__all__ = ["wait_copied"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.16
"""Pauses between two looks; if the mirror is seconds behind, all members of a group wait at once, again and again."""


async def wait_copied(
    target: ClusterClient, source: ClusterClient, positions: Mapping[tuple[str, int], int], seconds: float
) -> bool:
    """Return whether readers of the target get everything below the positions within that time.

    Positions beyond the end of the source's log are not waited for, because no mirror would ever reach them.
    """
    missing = dict(positions)
    looks, bounded = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, within_s=seconds), False
    while True:
        ends = await target.list_offsets(dict.fromkeys(missing, LATEST))
        missing = {key: at for key, at in missing.items() if ends[key].error or ends[key].offset < at}
        if missing and not bounded:
            of_source = await source.log_ends(missing)
            missing = {key: at for key, at in missing.items() if of_source[key].error or at <= of_source[key].offset}
            bounded = True
        if not missing:
            return True
        if looks.over:
            return False
        if any(ends[key].error for key in missing):
            await target.refresh({topic for topic, _ in missing})
        await looks.pause()
