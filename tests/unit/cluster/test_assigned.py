"""Assignments of a group's members, as read from librdkafka's description."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import MemberAssignment, MemberDescription

from kmigrate.cluster.admin import _assigned


def given(*topics: str) -> MemberAssignment:
    return MemberAssignment([TopicPartition(topic, 0) for topic in topics])


@pytest.mark.parametrize(
    ("wanted", "found"), [(None, ["a"]), (given("b"), ["a", "b"]), (given(), ["a"])], ids=["classic", "more", "less"]
)
def test_a_member_reads_what_it_has_and_what_it_is_about_to_get(
    wanted: MemberAssignment | None, found: list[str]
) -> None:
    member = MemberDescription("m", "c", "h", given("a"), target_assignment=wanted)
    assert [part.topic for part in _assigned(member)] == found
