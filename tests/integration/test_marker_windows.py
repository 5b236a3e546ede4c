"""Control markers stand where the source has them, whatever breaks a window: a small `make soak-markers`."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.records import CopyIdentity
from tests.conftest import Pair
from tests.integration.mirror_world import settings_of
from tests.soak.markers import Found, Round, judge, owner, play, until

Names = Callable[[str], str]
_BROKEN = 2
"""Number of partitions whose windows break: with fewer the faults prove nothing."""
_MOST_TURNS = 6


def test_no_marker_is_misplaced_by_a_late_window_a_refused_batch_or_a_moved_leader(
    clusters3: Pair, unique_name: Names
) -> None:
    """The logs are compared offset by offset, as Kafka's own DumpLogSegments reads them.

    A fault may come between two windows, so the faults are repeated until windows are broken.
    """
    faults, dice, broken = ["late", "size", "leaders"], random.Random(7), 0
    for turn in range(_MOST_TURNS):
        found = play(clusters3.source, clusters3.target, faults, dice, unique_name(f"windows{turn}"), 30)
        assert (found.rounds, found.misplaced, found.lost, found.duplicated) == (3, 0, 0, 0)
        assert found.windows > 3 * 4 * 30
        broken += found.lanes_broken
        if broken >= _BROKEN:
            break
    assert broken >= _BROKEN


def test_windows_are_long_only_where_the_topic_needs_a_single_in_sync_replica(
    clusters3: Pair, unique_name: Names
) -> None:
    rounds = {
        value: Round(clusters3.source, clusters3.target, unique_name(f"insync{value}"), "", random.Random(7), 30)
        for value in ("2", "1")
    }

    async def copy(it: Round, value: str) -> Counter[tuple[str, ...]]:
        """Copy a topic, and return its windows by length."""
        await asyncio.to_thread(it.set_config, "min.insync.replicas", value)
        async with ClusterClient(settings_of("target", clusters3.target.bootstrap)) as client:
            identity = CopyIdentity(*await client.init_producer_id())
        async with owner(clusters3.source, clusters3.target, identity, it.topic, 1, fetched=1_500) as one:
            await until(lambda: one.has_copied(1), "the copy")
            return sum((lane.tally.windows for lane in one.copier.lanes.values()), Counter())

    windows: dict[str, Counter[tuple[str, ...]]] = {}
    for value, it in rounds.items():
        it.load()
        windows[value] = asyncio.run(copy(it, value))
    assert windows["2"]["short",] > 40 and not windows["2"]["long",]
    assert windows["1"]["long",] > 0
    found = Found()
    judge(clusters3.source, clusters3.target, [*rounds.values()], found)
    assert found.is_right
