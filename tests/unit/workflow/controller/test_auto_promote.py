"""The controller promotes a group by itself: no direct member is left for long enough, and no guard objects."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.errors import Failed, Refused, Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.members import member_mark
from kmigrate.model.presences import GroupReport, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord, TransactionRecord
from kmigrate.net.retry import until
from kmigrate.workflow.base.plan import Finding, warn
from kmigrate.workflow.controller import auto_promote
from kmigrate.workflow.controller.auto_promote import AutoPromote, AutoSettings
from kmigrate.workflow.groups.uncopied import Uncopied
from kmigrate.workflow.status.timeline import Happened, Timeline
from kmigrate.workflow.verbs.proposal import propose
from tests.fakes import finishing
from tests.fakes.state_log import MemoryLog

LINK = replace(finishing.LINK, settings=LinkSettings(lag_threshold=100))
GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW, auto=True)
HOLDS = replace(GROUP, mode=GroupMode.HOLD)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
SETTLE_S = 10.0
DIRECT = GroupMember("m-direct", "c-left", "/10.0.0.7")
CARRIED = GroupMember("m-carried", "c-moved", "/10.0.0.8")


@dataclass
class Estate:
    """Connections to a source with these members of each group; `asked` has the groups of each question."""

    log: MemoryLog
    members: dict[str, tuple[GroupMember, ...]] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    failure: Exception | None = None
    """Failure of the connection to the source."""
    refusal: Failed | None = None
    """Failure of each group's coordinator."""
    written: list[Record] = field(default_factory=list)
    """Records that somebody else writes before the next look."""
    target: Any = None

    async def source(self, _: LinkRecord) -> Any:
        if self.failure is not None:
            raise self.failure
        return self, None

    async def describe(self, groups: list[str]) -> dict[str, GroupState | Failed]:
        self.asked.append(groups)
        if self.refusal is not None:
            return dict.fromkeys(groups, self.refusal)
        return {group: GroupState(group, "stable", "classic", self.members.get(group, ())) for group in groups}

    def at_router(self, *groups: str, joined: bool = True, waits: bool = False) -> None:
        """Have a router report a member of each group: a member that follows, or a member that waits."""
        report = GroupReport(members=(member_mark(CARRIED.member_id),))
        follow = dict.fromkeys(groups, report) if joined else {}
        self.log.say(RouterPresence("i", "r", 1, 500, groups=follow, waiting=groups if waits else ()))

    def group(self, name: str = "g") -> GroupRecord:
        found = self.log.state.group("l", name)
        assert found is not None
        return found


@dataclass
class Guards:
    """The findings of the verb's guards, and the records that the copy lacks; a test fills them in."""

    findings: list[Finding] = field(default_factory=list)
    behind: list[Uncopied] = field(default_factory=list)
    calls: int = 0


@dataclass
class Clock:
    now: float = 100.0


CLOCK = Clock()


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Guards:
    made = Guards()

    async def look(connections: Estate, *_: Any) -> Any:
        made.calls += 1
        return propose(connections.log, "group promote", made.findings)  # type: ignore[arg-type]

    async def lacks(*_: Any) -> list[Uncopied]:
        return made.behind

    monkeypatch.setattr(auto_promote, "promote_groups", look)
    monkeypatch.setattr(auto_promote, "describe_groups", Estate.describe)
    monkeypatch.setattr(auto_promote, "uncopied", lacks)
    monkeypatch.setattr(auto_promote, "Positions", lambda *_: None)
    monkeypatch.setattr(auto_promote, "monotonic", lambda: CLOCK.now)
    return made


def auto_of(estate: Estate) -> AutoPromote:
    connections: Any = estate
    return AutoPromote(connections, AutoSettings(settle_s=SETTLE_S))


def after(estate: Estate, seconds: float, meanwhile: Callable[[float], None] = lambda _: None) -> AutoPromote:
    """Look once a second for so long; `meanwhile` gets the seconds before each look."""
    auto = auto_of(estate)

    async def scene() -> None:
        for second in range(int(seconds) + 1):
            meanwhile(second)
            while estate.written:
                await estate.log.append(lambda _: estate.written.pop())
            await auto.look()
            CLOCK.now += 1

    asyncio.run(scene())
    return auto


def reason(auto: AutoPromote) -> str:
    return auto.reasons.get(GROUP.key, "")


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize("record", [GROUP, HOLDS], ids=["follow", "hold"])
def test_a_group_is_promoted_once_no_direct_member_has_been_there_for_a_while(record: GroupRecord) -> None:
    estate = Estate(MemoryLog(LINK, record), {"g": (CARRIED,) if record is GROUP else ()})
    estate.at_router("g", joined=record is GROUP, waits=record is HOLDS)
    auto = after(estate, SETTLE_S - 1)
    assert estate.group().phase is GroupPhase.MIRRORED
    assert "promoted in 1 s unless a member comes back" in reason(auto)
    before = estate.log.state
    after(estate, SETTLE_S)
    assert estate.group().phase is GroupPhase.PROMOTING
    assert estate.group().asked_automatically
    timeline = Timeline()
    timeline.follow(before)
    timeline.follow(estate.log.state)
    assert [(e.happened, e.reason) for e in timeline.events][-1] == (
        Happened.PROMOTE_ASKED,
        "no member was left on the source",
    )


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize("record", [GROUP, HOLDS], ids=["follow", "hold"])
def test_a_direct_member_is_named_and_its_return_starts_the_wait_anew(record: GroupRecord) -> None:
    carried = (CARRIED,) if record is GROUP else ()
    estate = Estate(MemoryLog(LINK, record))
    estate.at_router("g", joined=record is GROUP, waits=record is HOLDS)

    def comes_and_goes(second: float) -> None:
        estate.members["g"] = (*carried, *((DIRECT,) if second in (0, 8) else ()))

    auto = after(estate, 8, comes_and_goes)
    assert reason(auto) == "1 member(s) on the source: c-left at /10.0.0.7 (m-direct)"
    after(estate, 8 + SETTLE_S, comes_and_goes)
    assert estate.group().phase is GroupPhase.MIRRORED
    after(estate, 9 + SETTLE_S, comes_and_goes)
    assert estate.group().phase is GroupPhase.PROMOTING


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize(
    "records",
    [
        (LINK, replace(GROUP, auto=False)),
        (replace(LINK, finished_ms=5), GROUP),
        (replace(LINK, deleting_ms=5), GROUP),
        (LINK, replace(GROUP, phase=GroupPhase.PROMOTED)),
    ],
    ids=["by hand", "finished", "deleted", "promoted"],
)
def test_other_groups_are_left_alone_and_cost_no_request(records: tuple[Record, ...]) -> None:
    estate = Estate(MemoryLog(*records))
    estate.at_router("g")
    auto = after(estate, 2 * SETTLE_S)
    assert (estate.group(), estate.asked, auto.reasons) == (records[1], [], {})


@pytest.mark.usefixtures("guards")
def test_without_a_member_at_a_router_a_group_is_not_promoted_and_costs_no_request() -> None:
    estate = Estate(MemoryLog(LINK, GROUP, replace(HOLDS, group="h")))
    estate.at_router("h")
    after(estate, 2 * SETTLE_S)
    assert {each.phase for each in estate.log.state.groups()} == {GroupPhase.MIRRORED}
    assert estate.asked == []


@pytest.mark.usefixtures("guards")
def test_a_look_at_thousands_of_groups_asks_once_and_only_about_groups_at_routers() -> None:
    groups = [replace(GROUP, group=f"g{number}") for number in range(2_000)]
    estate = Estate(MemoryLog(LINK, *groups))
    estate.at_router(*(group.group for group in groups[:150]))
    after(estate, 0)
    assert [len(asked) for asked in estate.asked] == [150]


def test_a_group_of_transactions_is_left_to_the_promote_of_their_topics(guards: Guards) -> None:
    coupled = TransactionRecord("l", "tx", 1, 0, 2, 0, topics=("t",), groups=("g",))
    estate = Estate(MemoryLog(LINK, GROUP, TOPIC, coupled), {"g": (CARRIED,)})
    estate.at_router("g")
    auto = after(estate, 2 * SETTLE_S)
    assert (estate.asked, guards.calls) == ([], 0)
    assert reason(auto).startswith(
        "not promoted automatically: transactions that commit positions of the group write t"
    )
    assert "kmigrate promote --link l t" in reason(auto)


def test_a_refusal_of_a_guard_is_told_and_the_guards_are_asked_again(guards: Guards) -> None:
    guards.findings = [Finding("refuse", "position-beyond-log", "it committed 7, the log ends at 5", "reset it")]
    estate = Estate(MemoryLog(LINK, GROUP), {"g": (CARRIED,)})
    estate.at_router("g")
    auto = after(estate, SETTLE_S)
    assert (reason(auto), guards.calls) == ("it committed 7, the log ends at 5", 1)

    def mended(second: float) -> None:
        guards.findings = [] if second > SETTLE_S else guards.findings

    after(estate, 2 * SETTLE_S + 1, mended)
    assert estate.group().phase is GroupPhase.PROMOTING


def test_a_warning_is_left_to_a_person_unless_it_was_shown_when_the_group_was_mirrored(guards: Guards) -> None:
    guards.findings = [warn("position-on-target", "the group reads 5 records again")]
    estate = Estate(MemoryLog(LINK, GROUP), {"g": (CARRIED,)})
    estate.at_router("g")
    told = reason(after(estate, SETTLE_S))
    assert told == ("a person has to decide (kmigrate group promote --link l g): the group reads 5 records again")
    guards.findings = [warn("broker-setting", "a limit is lower")]
    after(estate, SETTLE_S)
    assert estate.group().phase is GroupPhase.PROMOTING


@pytest.mark.parametrize(("copied_to", "phase"), [(None, "mirrored"), (800, "mirrored"), (950, "promoting")])
def test_a_copy_that_is_far_behind_is_waited_for(guards: Guards, copied_to: int | None, phase: str) -> None:
    guards.behind = [Uncopied("g", "t", 0, TopicPhase.MIRRORING, 1_000, copied_to)]
    estate = Estate(MemoryLog(LINK, GROUP), {"g": (CARRIED,)})
    estate.at_router("g")
    auto = after(estate, SETTLE_S)
    assert estate.group().phase == phase
    assert ("up to offset 1,000" in reason(auto)) is (phase == "mirrored")


@pytest.mark.usefixtures("guards")
def test_after_each_promote_that_was_given_up_the_next_try_is_later() -> None:
    estate = Estate(MemoryLog(LINK, GROUP), {"g": (CARRIED,)})
    estate.at_router("g")
    tries: list[float] = []

    def given_up(second: float) -> None:
        if estate.group().phase is GroupPhase.PROMOTING:
            tries.append(second)
            back = replace(
                estate.group(), phase=GroupPhase.MIRRORED, reason="a member did not answer", since_ms=len(tries)
            )
            estate.written.append(back)

    auto = after(estate, 120, given_up)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[0] >= SETTLE_S and pauses == sorted(pauses) and pauses[-1] >= 2 * pauses[0], tries
    assert "after: a member did not answer" in reason(auto)


@pytest.mark.usefixtures("guards")
def test_a_person_who_takes_auto_back_at_the_last_moment_wins() -> None:
    estate = Estate(MemoryLog(LINK, GROUP), {"g": (CARRIED,)})
    estate.at_router("g")
    estate.log.meanwhile(lambda _: replace(GROUP, auto=False))
    after(estate, SETTLE_S)
    assert estate.group() == replace(GROUP, auto=False)


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize(
    "failure", [Unreachable("no-broker", "no broker answers"), Refused("odd", "no broker answers")]
)
def test_a_source_that_does_not_answer_is_told_and_asked_again(failure: Exception) -> None:
    estate = Estate(MemoryLog(LINK, GROUP), {"g": (CARRIED,)}, failure=failure)
    estate.at_router("g")
    assert reason(after(estate, 2)) == "no broker answers"
    estate.failure, estate.refusal = None, Unreachable("no-coordinator", "its coordinator is away")
    assert reason(after(estate, SETTLE_S)) == "its coordinator is away"
    estate.refusal = None
    after(estate, SETTLE_S)
    assert estate.group().phase is GroupPhase.PROMOTING


@pytest.mark.usefixtures("guards")
def test_a_controller_that_does_not_lead_any_more_gives_no_reasons() -> None:
    estate = Estate(MemoryLog(LINK, GROUP), {"g": (DIRECT,)})
    estate.at_router("g")
    auto = auto_of(estate)
    auto.settings = AutoSettings(interval_s=0.001)

    async def scene() -> None:
        task = asyncio.ensure_future(auto.run())
        assert await until(lambda: bool(reason(auto)), every_s=0.001, within_s=10)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(asyncio.wait_for(scene(), 10))
    assert auto.reasons == {}
