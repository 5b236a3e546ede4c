"""Waiting until the target's copy reaches positions that a group has on the source.

A member that is told a position beyond the copy's end would be told OFFSET_OUT_OF_RANGE when it fetches there, and
would begin anew at the log's start or end (C5). So it is told its position when the copy has come to it. The mirror is
milliseconds behind as a rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.net.clock import monotonic, sleep

__all__ = ["wait_copied"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.16
"""Between two looks: where the mirror is seconds behind, all members of a group wait for it at once, and again."""


async def wait_copied(
    target: ClusterClient, source: ClusterClient, positions: Mapping[tuple[str, int], int], seconds: float
) -> bool:
    """Whether the target's readers get everything below the positions within that time.

    What lies beyond the source's log itself is not waited for: no mirror would ever come to it.
    """
    deadline = monotonic() + seconds
    missing = dict(positions)
    bounded, pause = False, _FIRST_PAUSE_S
    while True:
        ends = await target.list_offsets(dict.fromkeys(missing, LATEST))
        missing = {key: at for key, at in missing.items() if ends[key].error or ends[key].offset < at}
        if missing and not bounded:
            of_source = await source.log_ends(missing)
            missing = {key: at for key, at in missing.items() if of_source[key].error or at <= of_source[key].offset}
            bounded = True
        if not missing:
            return True
        if monotonic() > deadline:
            return False
        if any(ends[key].error for key in missing):
            await target.refresh({topic for topic, _ in missing})
        await sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
