"""Control markers stand where the source has them, whatever breaks a window: a small `make soak-markers`."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.conftest import Pair
from tests.soak.markers import play

Names = Callable[[str], str]


def test_no_marker_is_misplaced_by_a_late_window_a_refused_batch_or_a_moved_leader(
    clusters3: Pair, unique_name: Names
) -> None:
    """The logs are compared offset by offset, as Kafka's own DumpLogSegments reads them."""
    faults = ["late", "size", "leaders"]
    found = play(clusters3.source, clusters3.target, faults, random.Random(7), unique_name("windows"), 30)
    assert (found.rounds, found.misplaced, found.lost, found.duplicated) == (3, 0, 0, 0)
    assert found.windows > 3 * 4 * 30
    assert found.lanes_broken >= 3
