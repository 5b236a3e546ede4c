"""The choice between two metadata answers about a topic's leaders."""

from __future__ import annotations

from uuid import UUID

from kmigrate.cluster.metadata import PartitionInfo, TopicInfo, _newest

ID, OTHER = UUID(int=1), UUID(int=2)


def topic(leader: int, epoch: int, topic_id: UUID = ID) -> TopicInfo:
    return TopicInfo("t", topic_id, {0: PartitionInfo(leader, epoch, (1, 2, 3))})


def test_a_broker_that_tells_of_an_older_leader_epoch_is_not_believed() -> None:
    assert _newest(topic(2, 8), topic(1, 7)) == topic(2, 8)


def test_the_same_or_a_later_leader_epoch_and_a_first_answer_are_believed() -> None:
    assert _newest(None, topic(1, 7)) == topic(1, 7)
    assert _newest(topic(1, 7), topic(2, 8)) == topic(2, 8)
    assert _newest(topic(2, 7), topic(-1, 7)) == topic(-1, 7)


def test_an_answer_without_epochs_and_a_topic_made_anew_are_believed() -> None:
    assert _newest(topic(2, 8), topic(1, -1)) == topic(1, -1)
    assert _newest(topic(2, 8), topic(1, 0, OTHER)) == topic(1, 0, OTHER)


def test_partitions_that_were_added_are_seen_beside_one_that_is_known_better() -> None:
    told = TopicInfo("t", ID, {0: PartitionInfo(1, 7, (1,)), 1: PartitionInfo(3, 0, (3,))})
    assert _newest(topic(2, 8), told).partitions == {0: topic(2, 8).partitions[0], 1: told.partitions[1]}


def test_an_error_in_place_of_partitions_is_told_at_every_look() -> None:
    denied = TopicInfo("t", None, {}, 29)
    assert _newest(None, denied) == denied
    assert _newest(denied, denied) == denied
