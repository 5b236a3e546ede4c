"""The promote of a group carries its committed offsets over.

No committed offset is dropped if the target has, or will have, a place for the offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.records import GroupRecord, LinkRecord, PartitionBarrier, TopicRecord
from kmigrate.workflow.base.offset_maps import Positions as Maps
from kmigrate.workflow.controller import controller
from kmigrate.workflow.groups import following, handover
from kmigrate.workflow.groups.handover import ByPartition, GroupHandover, HandedOver
from kmigrate.workflow.verbs import position_guards as carried_guards
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

SOURCE, TARGET = cast("Any", object()), cast("Any", object())
Positions = dict[tuple[str, int], CommittedOffset]


class Target:
    """A target whose logs all end at offset 100."""

    async def refresh(self, topics: Any) -> None: ...

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return dict.fromkeys(wanted, LogOffset(0, 100, 0))

    async def log_ends(self, keys: Any) -> dict[tuple[str, int], LogOffset]:
        return dict.fromkeys(keys, LogOffset(0, 100, 0))


class Source:
    """A source whose logs all begin at offset 20."""

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return dict.fromkeys(wanted, LogOffset(0, 20, 0))


def carried(
    monkeypatch: pytest.MonkeyPatch, on_source: Positions, starts: Collection[str], unready: Collection[str]
) -> tuple[ByPartition, Positions]:
    made, on_target = handed_over(monkeypatch, on_source, dict.fromkeys(starts, 0), unready)
    return made.written, on_target


def handed_over(
    monkeypatch: pytest.MonkeyPatch,
    on_source: Positions,
    starts: Mapping[str, int],
    unready: Collection[str] = (),
    before: Positions | None = None,
    still_ours: Callable[[Any], Awaitable[None]] | None = None,
) -> tuple[HandedOver, Positions]:
    """Hand a group over; `before` are the offsets that the group has already committed on the target."""
    target = Target()
    on_target: Positions = {} if before is None else before

    async def read(client: Any, *_: Any, **__: Any) -> Positions:
        return on_target if client is target else on_source

    async def write(client: Any, group: str, wanted: Positions, allowed: Any) -> dict[tuple[str, int], str]:
        await allowed()
        on_target.update(wanted)
        return {}

    async def no_members(*_: Any) -> Sequence[GroupMember]:
        return ()

    class Maps:
        def __init__(self, *_: Any) -> None: ...

        async def maps(self, _: TopicRecord) -> dict[int, OffsetMap]:
            return {0: OffsetMap([Run(0, 0, 1_000)])}

    monkeypatch.setattr(handover, "read_positions", read)
    monkeypatch.setattr(handover, "write_positions", write)
    monkeypatch.setattr(handover, "outsiders", no_members)
    monkeypatch.setattr(handover, "Positions", Maps)

    async def nobody_else(_: Any) -> None: ...

    monkeypatch.setattr(GroupHandover, "still_ours", still_ours or nobody_else)
    topic = TopicRecord("l", "", TopicPhase.MIRRORING, 1, partitions=1)
    copied = [replace(topic, topic=name, starts={0: first}) for name, first in starts.items()]
    early = [replace(topic, topic=name, phase=TopicPhase.ALIGNING) for name in unready]
    connections: Any = SimpleNamespace(
        log=MemoryLog(LINK, *copied, *early), target=target, source=opened(cast("Any", Source()))
    )
    made = GroupHandover(connections, LINK, GroupRecord("l", "g", GroupPhase.PROMOTING, 1), 1.0)
    return asyncio.run(made.carry()), on_target


def opened(source: Any) -> Callable[[LinkRecord], Awaitable[tuple[Any, Any]]]:
    async def of_link(_: LinkRecord) -> tuple[Any, Any]:
        return source, None

    return of_link


def test_positions_in_a_topic_whose_copy_has_not_begun_keep_the_group_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {("copied", 0): CommittedOffset(7, ""), ("padded", 0): CommittedOffset(9, "")}
    with pytest.raises(Refused) as caught:
        carried(monkeypatch, both, ["copied"], ["padded", "another"])
    assert caught.value.ref == "topic-not-ready"
    assert "padded" in caught.value.what
    assert "another" not in caught.value.what


def test_positions_in_a_topic_that_nobody_mirrors_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {("copied", 0): CommittedOffset(7, ""), ("foreign", 0): CommittedOffset(9, "")}
    written, on_target = carried(monkeypatch, both, ["copied"], ["padded"])
    assert written == {"copied": {0: 7}}
    assert on_target == {("copied", 0): CommittedOffset(7, "")}


def test_a_topic_mirrored_while_a_groups_members_join_anew_counts_among_those_whose_copy_has_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic whose mirror begins during the joins counts among the topics without a copy.

    The joins may take a minute. Otherwise committed offsets in the new topic would be dropped silently.
    """
    group = GroupRecord("l", "g", GroupPhase.PROMOTING, 1, mode=GroupMode.FOLLOW)
    new = TopicRecord("l", "new", TopicPhase.INITIALISING, 1, partitions=1)
    log = MemoryLog(LINK, group)

    class Joining:
        def __init__(self, handover: GroupHandover, *_: Any) -> None:
            self._handover = handover

        async def run(self) -> None:
            await log.append(lambda state: new)
            await self._handover.carry()

    async def read(*_: Any, **__: Any) -> Positions:
        return {("new", 0): CommittedOffset(7, "")}

    async def no_members(*_: Any) -> Sequence[GroupMember]:
        return ()

    monkeypatch.setattr(handover, "read_positions", read)
    monkeypatch.setattr(handover, "outsiders", no_members)
    monkeypatch.setattr(controller, "FollowHandover", Joining)
    connections = SimpleNamespace(log=log, target=TARGET, target_admin=None, source=opened(SOURCE))
    with pytest.raises(Refused, match="group g has positions in new, which the mirror does not copy yet"):
        asyncio.run(controller.Controller(cast("Any", connections), "c")._hand_over(group))


class NoPlace:
    """A stand-in for the placeholder member of a group without other members."""

    def __init__(self, target: Any, group: str) -> None: ...

    async def leave(self) -> None: ...


@pytest.mark.parametrize(
    "meanwhile",
    [
        {"phase": GroupPhase.PROMOTED},
        {"phase": GroupPhase.MIRRORED},
        {"staged": True},
        {"asked_ms": 9},
    ],
)
@pytest.mark.parametrize("mode", [GroupMode.HOLD, GroupMode.FOLLOW])
def test_a_controller_that_stood_still_does_not_put_a_group_back_that_another_one_has_opened(
    mode: GroupMode, meanwhile: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that stood still notices the newer record, and writes no committed offsets.

    The members have read on by then. A group without present members would accept the outdated offsets.
    """
    asked = GroupRecord("l", "g", GroupPhase.PROMOTING, 1, mode=mode, frozen=mode is GroupMode.FOLLOW, asked_ms=5)
    log = MemoryLog(LINK, asked)
    checks: list[Callable[[], Awaitable[None]]] = []

    async def carry(made: GroupHandover) -> HandedOver:
        checks.append(made.still_ours)
        raise Refused("ended", "here")

    async def is_mixed(*_: Any) -> bool:
        return False

    monkeypatch.setattr(GroupHandover, "carry", carry)
    monkeypatch.setattr(controller, "PlaceholderMember", NoPlace)
    monkeypatch.setattr(following, "is_mixed", is_mixed)
    connections = SimpleNamespace(log=log, target=TARGET, target_admin=None, source=opened(SOURCE))

    async def scene() -> None:
        with suppress(Refused):
            await controller.Controller(cast("Any", connections), "c")._hand_over(asked)
        await log.append(lambda _: asked)
        [still_ours] = checks
        await still_ours()
        await log.append(lambda _: replace(asked, **meanwhile))
        await still_ours()

    with pytest.raises(Refused) as caught:
        asyncio.run(scene())
    assert caught.value.ref == "changed-meanwhile"


def test_nothing_is_written_for_a_group_that_is_not_ours_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def by_somebody(_: Any) -> None:
        raise Refused("changed-meanwhile", "by somebody else")

    theirs = {T: CommittedOffset(80, "")}
    with pytest.raises(Refused, match="by somebody else"):
        handed_over(monkeypatch, {T: CommittedOffset(7, "")}, {"t": 0}, before=theirs, still_ours=by_somebody)
    assert theirs == {T: CommittedOffset(80, "")}


T = ("t", 0)


@pytest.mark.parametrize(("position", "unread"), [(30, 20), (5, 30), (50, 0), (60, 0)])
def test_records_before_the_first_mirrored_offset_that_the_group_has_not_read_are_counted(
    monkeypatch: pytest.MonkeyPatch, position: int, unread: int
) -> None:
    """Records that the source has deleted do not count as unread."""
    made, on_target = handed_over(monkeypatch, {T: CommittedOffset(position, "")}, {"t": 50})
    assert made.unread == ({"t": {0: unread}} if unread else {})
    assert on_target[T].offset == max(position, 50)


@pytest.mark.parametrize(("on_target", "again"), [(90, 20), (70, 0), (60, 0)])
def test_what_the_group_had_read_on_the_target_beyond_its_positions_is_counted_and_read_again(
    monkeypatch: pytest.MonkeyPatch, on_target: int, again: int
) -> None:
    before = {T: CommittedOffset(on_target, "")}
    made, after = handed_over(monkeypatch, {T: CommittedOffset(70, "")}, {"t": 0}, before=before)
    assert made.read_again == ({"t": {0: again}} if again else {})
    assert after[T].offset == 70


def test_a_handover_that_is_taken_up_anew_carries_the_same_positions_over_and_counts_what_it_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repeated handover writes the same committed offsets.

    The controller died before the group's record had the number of moved records. The repetition counts anew.
    """
    on_source = {T: CommittedOffset(30, "")}
    first, left = handed_over(monkeypatch, on_source, {"t": 50}, before={T: CommittedOffset(90, "")})
    again, after = handed_over(monkeypatch, on_source, {"t": 50}, before=left)
    assert (again.written, again.unread, after) == (first.written, first.unread, left)
    assert (first.read_again, again.read_again) == ({"t": {0: 40}}, {})


def test_a_plan_names_what_carrying_positions_over_would_move(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = Target()
    copied = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})
    late = replace(copied, topic="late", starts={0: 50})
    connections: Any = SimpleNamespace(log=MemoryLog(LINK, copied, late), target=target)

    async def read(client: Any, *_: Any, **__: Any) -> Positions:
        if client is target:
            return {T: CommittedOffset(90, ""), ("t", 1): CommittedOffset(5, ""), ("own", 0): CommittedOffset(1, "")}
        added = ("t", 1)  # a partition that the mirror does not copy yet
        return {T: CommittedOffset(70, ""), ("late", 0): CommittedOffset(30, ""), added: CommittedOffset(1, "")}

    monkeypatch.setattr(carried_guards, "read_positions", read)
    source: Any = Source()
    found = asyncio.run(carried_guards.moved_positions_guards(connections, LINK, source, "g"))
    assert [(each.level, each.ref) for each in found] == [
        ("warn", "position-before-copy"),
        ("warn", "position-on-target"),
    ]
    assert "20 records (partition 0) of late" in found[0].what
    assert "20 records (partition 0) of t" in found[1].what


PROMOTED = TopicRecord(
    "l", "t", TopicPhase.PROMOTED, 1, partitions=2, starts={0: 10, 1: 10},
    barrier={0: PartitionBarrier(60, 1), 1: PartitionBarrier(10, 1)},
)  # fmt: skip


def test_beyond_the_barrier_of_a_promoted_topic_neither_log_has_what_the_other_has() -> None:
    made = asyncio.run(Maps(cast("Any", Target()), cast("Any", MemoryLog(LINK))).up_to_barrier(PROMOTED))
    for translate in (made[0].to_target, made[0].to_source):
        assert [place and place.offset for place in map(translate, (59, 60, 61, 100))] == [59, 60, None, None]
    for translate in (made[1].to_target, made[1].to_source):
        assert [place and place.offset for place in map(translate, (10, 11))] == [10, None]


def test_what_a_group_has_committed_beyond_the_barrier_of_a_promoted_topic_is_the_targets_position() -> None:
    """The group follows, so its members have read beyond the barrier on the target."""
    made = asyncio.run(Maps(cast("Any", Target()), cast("Any", MemoryLog(LINK))).maps(PROMOTED))
    assert [place and place.offset for place in map(made[0].to_target, (59, 61, 100, 101))] == [59, 61, 100, None]
