"""Facts of a snapshot that decide about the next step."""

from __future__ import annotations

from kmigrate.cli.guide.standing import GroupStanding, TopicStanding, standing_of
from kmigrate.cluster.admin import GroupMember
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import DirectWriter, RouterRecord
from kmigrate.workflow.status.snapshot import GroupStatus, LinkStatus, PartitionStatus, Snapshot, TopicStatus

_AT = 1_000_000


def writer(producer: int, last_ms: int, partition: int = 0) -> DirectWriter:
    return DirectWriter(producer, 0, partition, 1, 0, last_ms, last_ms)


def topic(name: str, *writers: DirectWriter, paused: bool = False) -> TopicStatus:
    part = PartitionStatus(0, 0, 10, 0, 8, 2, "", -1.0)
    phase = TopicPhase.MIRRORING
    return TopicStatus("blue", name, phase, 0, "", "identical", (part,), paused, direct_writers=writers)


def group(mode: GroupMode, phase: GroupPhase, members: int, direct: int) -> GroupStatus:
    there = tuple(GroupMember(f"m{number}", "c", "h") for number in range(members))
    return GroupStatus("blue", "g", phase, "", there, 0, 0, mode, direct)


def shot(topics: tuple[TopicStatus, ...] = (), groups: tuple[GroupStatus, ...] = (), links: int = 1) -> Snapshot:
    named = tuple(LinkStatus(name, "old", "new", "") for name in ("blue", "red")[:links])
    router = RouterRecord("r", "r-1", "h", "h:9092", 0)
    return Snapshot(_AT, 1, named, topics, groups, (router,), frozenset({"r-1"}), (), ())


def test_only_recent_direct_writers_count_and_each_producer_counts_once() -> None:
    seen = topic("orders", writer(1, _AT - 10), writer(1, _AT - 20, 1), writer(2, _AT - 70_000))
    at = standing_of("f", ["old", "new"], shot((seen, topic("audit", paused=True))), None)
    assert at.topics == (
        TopicStanding("orders", TopicPhase.MIRRORING, 2, direct_writers=1),
        TopicStanding("audit", TopicPhase.MIRRORING, 2, stopped=True),
    )


def test_members_of_a_group_that_waits_all_count_and_members_at_routers_of_a_group_that_follows_do_not() -> None:
    found = [
        standing_of("f", [], shot(groups=(each,)), None).groups
        for each in (
            group(GroupMode.HOLD, GroupPhase.MIRRORED, 3, -1),
            group(GroupMode.FOLLOW, GroupPhase.MIRRORED, 3, 1),
            group(GroupMode.HOLD, GroupPhase.PROMOTED, 3, -1),
        )
    ]
    assert [each[0].direct for each in found] == [3, 1, 0]
    assert found[2] == (GroupStanding("g", GroupPhase.PROMOTED),)


def test_the_only_link_is_meant_and_of_several_links_the_named_link() -> None:
    assert standing_of("f", [], shot(), None).link == "blue"
    assert standing_of("f", [], shot(links=2), None).link == ""
    assert standing_of("f", [], shot(links=2), "red").link == "red"
    assert standing_of("f", [], None, None).links == ()


def test_processes_that_are_not_heard_of_are_missing() -> None:
    at = standing_of("f", [], shot(), None)
    assert (at.missing, at.routers) == (("mirror", "controller"), ("h:9092",))
