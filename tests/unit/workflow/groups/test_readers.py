"""The topics that a group reads are the topics with committed offsets and the topics assigned to its members.

The tests also show to which cluster's log a committed offset belongs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import GroupState
from kmigrate.cluster.client import LATEST, LogOffset
from kmigrate.errors import Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, TopicRecord, TransactionRecord
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.groups import readers
from kmigrate.workflow.groups.readers import ReaderLooks, group_reads, read_logs, reading_groups
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.groups.test_following import Source
from tests.unit.workflow.promote.test_topic import LINK

GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",), ("g",))


def found(source: Source, *records: Record) -> list[Finding]:
    both = cast("Any", source)
    return asyncio.run(reading_groups(MemoryLog(LINK, *records).state, "l", ["read"], both))


@pytest.mark.parametrize(
    ("mode", "next_step"),
    [
        (
            GroupMode.FOLLOW,
            "first kmigrate promote --link l t, with which group g goes; then kmigrate promote --link l read",
        ),
        (GroupMode.HOLD, "kmigrate group promote --link l g"),
    ],
)
def test_what_only_the_group_reads_waits_for_it_and_says_how_the_group_is_promoted(
    mode: GroupMode, next_step: str
) -> None:
    written = TopicRecord("l", "t", TopicPhase.MIRRORING, 1)
    (finding,) = found(Source(positions=("read",)), TILL, written, replace(GROUP, mode=mode))
    assert (finding.ref, finding.next_step) == ("group-not-promoted", next_step)


@pytest.mark.parametrize("others", [(), (TopicRecord("l", "t", TopicPhase.PROMOTED, 1),)])
def test_a_group_that_goes_with_no_topic_any_more_is_promoted_by_itself(others: tuple[Record, ...]) -> None:
    (finding,) = found(Source(positions=("read",)), TILL, GROUP, *others)
    assert finding.next_step == "kmigrate group promote --link l g"


def test_a_topic_waits_for_a_group_whose_member_is_assigned_it_and_has_committed_nothing_there_yet() -> None:
    (finding,) = found(Source(positions=("t",), assigned=frozenset({"read"})), GROUP)
    assert (finding.ref, finding.what) == ("group-not-promoted", "group g reads read and is mirrored")


def test_a_topic_does_not_wait_for_a_group_that_is_promoted_or_reads_something_else() -> None:
    assert found(Source(positions=("read",)), replace(GROUP, phase=GroupPhase.PROMOTED)) == []
    assert found(Source(positions=("t",), assigned=frozenset({"u"})), GROUP) == []


@dataclass
class Rebalancing(Source):
    """A source whose group reports the assignment of its members at the third request."""

    asked: int = 0

    async def describe_groups(self, names: list[str]) -> dict[str, GroupState]:
        self.asked += 1
        if self.asked > 2:
            return await super().describe_groups(names)
        return {name: GroupState(name, "preparing_rebalancing", "classic", self.members) for name in names}


def test_a_group_that_rebalances_is_asked_again_what_its_members_are_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_PAUSE_S", 0.001)
    source = cast("Any", Rebalancing(positions=("t",), assigned=frozenset({"read"})))
    assert asyncio.run(group_reads(source, ["g"]))["g"].topics == {"t", "read"}


def test_a_group_that_goes_on_rebalancing_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_REBALANCE_S", 0.0)
    source = cast("Any", Rebalancing(positions=("t",), assigned=frozenset({"read"})))
    assert asyncio.run(group_reads(source, ["g"]))["g"].topics == {"t"}


@dataclass
class Slow(Source):
    """A source that describes groups when the test says so, and fails while `silent`."""

    looks: int = 0
    silent: bool = False
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def describe_groups(self, names: list[str]) -> dict[str, GroupState]:
        self.looks += 1
        answers = await super().describe_groups(names)
        await self.may_answer.wait()
        if self.silent:
            raise Unreachable("no-answer", "the source says nothing")
        return answers


async def _asked_meanwhile(source: Slow, topics: list[str]) -> list[BaseException | None]:
    """Ask about the first topic, then about the others while the first look is under way; return the refusals."""
    looks, state = ReaderLooks(), MemoryLog(LINK, GROUP).state
    first = asyncio.create_task(looks.refuse(state, "l", topics[0], cast("Any", source)))
    await asyncio.sleep(0)
    source.assigned = frozenset({"joined"})
    others = [asyncio.create_task(looks.refuse(state, "l", topic, cast("Any", source))) for topic in topics[1:]]
    await asyncio.sleep(0)
    source.may_answer.set()
    return await asyncio.gather(first, *others, return_exceptions=True)


def test_promotes_that_ask_at_the_same_time_share_a_look_that_begins_after_they_have_asked() -> None:
    source = Slow(assigned=frozenset({"read"}))
    refusals = asyncio.run(_asked_meanwhile(source, ["read", "joined", "free", "joined"]))
    assert [each and str(each).partition(":")[0] for each in refusals] == [
        "group-not-promoted", "group-not-promoted", None, "group-not-promoted",
    ]  # fmt: skip
    assert source.looks == 2, "the first promote's look may be older than what the others ask about"


def test_a_look_that_fails_fails_for_all_that_have_asked_before() -> None:
    source = Slow(silent=True)
    refusals = asyncio.run(_asked_meanwhile(source, ["a", "b", "c"]))
    assert [type(each) for each in refusals] == [Unreachable] * 3
    assert source.looks == 2


class Ends:
    """A cluster whose logs all end at `end`."""

    def __init__(self, end: int) -> None:
        self._end = LogOffset(0, end, 0)

    async def refresh(self, topics: Any) -> None: ...

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return dict.fromkeys(wanted, self._end)


def test_positions_are_of_the_source_until_the_topic_is_promoted_and_afterwards_where_offsets_differ() -> None:
    topics = [
        TopicRecord("l", "mirrored", TopicPhase.MIRRORING, 1),
        TopicRecord("l", "mapped", TopicPhase.PROMOTED, 1, mapped=True),
        TopicRecord("l", "promoted", TopicPhase.PROMOTED, 1),
    ]
    wanted = {(record.topic, 0): LATEST for record in topics} | {("alien", 0): LATEST}
    source, target = cast("Any", Ends(100)), cast("Any", Ends(200))
    ends = asyncio.run(read_logs(MemoryLog(LINK, *topics).state, "l", wanted, source, target))
    assert {topic: end.offset for (topic, _), end in ends.items()} == {
        "mirrored": 100, "mapped": 100, "alien": 100, "promoted": 200
    }  # fmt: skip
