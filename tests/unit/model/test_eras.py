"""The direction, the producer id and the first offsets of a topic's copy follow from the topic's record alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.eras import Direction, Era, begun, era_of
from kmigrate.model.lifecycle import AT_TARGET, COPIED, NOT_COPIED_YET, TopicPhase
from kmigrate.model.records import CopyIdentity, TopicRecord, WayBack

LINK, OWN = CopyIdentity(1, 0), CopyIdentity(9, 0)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 0, 1: 5})
BACK = replace(TOPIC, phase=TopicPhase.PROMOTED, way_back=WayBack({0: 70, 1: 80}))
RESUMED = replace(TOPIC, generation=1, resumed={0: 90})


@pytest.mark.parametrize("phase", sorted(COPIED))
def test_the_first_era_has_the_links_producer_id_and_the_starts_of_the_mirror(phase: TopicPhase) -> None:
    assert era_of(replace(TOPIC, phase=phase), LINK) == Era(Direction.FORWARD, LINK, TOPIC.starts, is_first=True)


@pytest.mark.parametrize("phase", sorted(AT_TARGET))
def test_a_topic_with_an_open_way_back_is_copied_back_from_the_barrier_of_its_promote(phase: TopicPhase) -> None:
    assert era_of(replace(BACK, phase=phase), LINK) == Era(Direction.BACK, None, {0: 70, 1: 80})


def test_after_a_rollback_the_copy_goes_on_at_the_rollbacks_barrier_and_at_the_start_of_newer_partitions() -> None:
    assert era_of(RESUMED, LINK) == Era(Direction.FORWARD, None, {0: 90, 1: 5})


def test_nothing_is_copied_before_the_mirror_begins_and_after_a_promote_without_a_way_back() -> None:
    ended = replace(BACK, way_back=WayBack({0: 70}, ended="partition 0: foreign-writer: somebody else wrote"))
    for record in (ended, replace(BACK, way_back=None), *(replace(TOPIC, phase=phase) for phase in NOT_COPIED_YET)):
        assert era_of(record, LINK) is None


@pytest.mark.parametrize(("record", "direction"), [(BACK, Direction.BACK), (RESUMED, Direction.FORWARD)])
def test_an_era_gets_its_producer_id_one_time(record: TopicRecord, direction: Direction) -> None:
    made = begun(record, direction, OWN)
    assert made is not None
    era = era_of(made, LINK)
    assert era is not None
    assert (era.direction, era.identity) == (direction, OWN)
    assert begun(made, direction, CopyIdentity(10, 0)) is None


def test_a_producer_id_of_the_other_cluster_or_of_a_first_era_is_not_written() -> None:
    assert begun(BACK, Direction.FORWARD, OWN) is None
    assert begun(RESUMED, Direction.BACK, OWN) is None
    assert begun(TOPIC, Direction.FORWARD, OWN) is None
    assert begun(replace(BACK, way_back=None), Direction.BACK, OWN) is None
