"""Verbs on groups, with a state log in memory.

A group belongs to a single link, its mode says whether members follow, and guards may refuse its promote.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupState
from kmigrate.cluster.client import EARLIEST, LogOffset
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import GroupReport, RouterPresence, Withheld
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord, TransactionRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import answer_type, blank, element_type
from kmigrate.workflow import verbs
from kmigrate.workflow.groups import readers
from kmigrate.workflow.verbs import groups
from tests.fakes.finishing import LINK, run
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog

GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})
_Positions = dict[str, int]


class _Admin:
    """An admin client of a source with a single group without members."""

    async def groups(self) -> dict[str, str]:
        return {"g": "classic"}


class _Cluster:
    """A cluster whose logs begin at 0 and end at `end`; the group has the given committed offsets."""

    settings = ClusterSettings("cluster", ())

    def __init__(self, end: int, positions: _Positions) -> None:
        self._end = end
        self._positions = positions

    async def refresh(self, topics: Any) -> None: ...

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return {key: LogOffset(0, 0 if what == EARLIEST else self._end, 0) for key, what in wanted.items()}

    async def describe_groups(self, groups: list[str]) -> dict[str, GroupState]:
        return {group: GroupState(group, "empty", "classic", ()) for group in groups}

    async def find_coordinator(self, group: str) -> int:
        return 1

    async def call(self, request: Any, node: int) -> Any:
        """Answer OffsetFetch."""
        kind = answer_type(type(request))
        topic_type = element_type(kind, "topics")
        part_type = element_type(topic_type, "partitions")
        topics = (
            blank(topic_type, name=topic, partitions=(blank(part_type, partition_index=0, committed_offset=offset),))
            for topic, offset in self._positions.items()
        )
        return blank(kind, topics=tuple(topics))


class _Estate:
    def __init__(self, *records: Record) -> None:
        self.log = MemoryLog(*records)
        self.positions: _Positions = {"t": 900}
        """Committed offsets of the group in partition 0, by topic."""
        self.target = _Cluster(2_000, {})

    async def source(self, _: LinkRecord) -> tuple[_Cluster, _Admin]:
        return _Cluster(1_000, self.positions), _Admin()


def mirror(connections: _Estate, link: str, mode: str = "hold", auto: bool | None = None) -> Any:
    return run_verb(verbs.mirror_groups(connections, link, ["g"], mode=mode, auto=auto))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "phase", [TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED, TopicPhase.PROMOTED]
)
def test_a_group_holds_whose_topic_the_source_gets_nothing_of_in_a_moment(phase: TopicPhase) -> None:
    connections = _Estate(LINK, replace(TOPIC, phase=phase))
    with pytest.raises(Refused) as caught:
        run(mirror(connections, "l", "follow"))
    assert caught.value.ref == "cannot-follow"
    assert f"t is {phase}" in caught.value.what
    assert run(mirror(connections, "l", "auto")).applied
    group = connections.log.state.group("l", "g")
    assert group is not None
    assert group.mode is GroupMode.HOLD


def test_a_group_follows_whose_topic_is_mirrored_at_the_same_offsets() -> None:
    connections = _Estate(LINK, TOPIC)
    run(mirror(connections, "l", "auto"))
    assert [group.mode for group in connections.log.state.groups()] == [GroupMode.FOLLOW]


def test_of_two_links_that_take_a_group_at_once_the_later_is_told_whose_it_is() -> None:
    connections = _Estate(LINK, replace(LINK, name="k", uuid="v"))

    async def both() -> Any:
        return await asyncio.gather(mirror(connections, "l"), mirror(connections, "k"), return_exceptions=True)

    made, refused = run(both())
    assert (made.applied, isinstance(refused, Refused)) == (True, True)
    assert (refused.ref, refused.what) == ("group-owned", "group g belongs to link l")
    assert [group.link for group in connections.log.state.groups()] == ["l"]


def mode_of(connections: _Estate) -> GroupMode:
    (group,) = connections.log.state.groups()
    return group.mode


@pytest.mark.parametrize("asked", ["auto", "follow"])
def test_a_group_that_is_mirrored_stays_as_it_is_where_nobody_asks_for_another_mode(asked: str) -> None:
    connections = _Estate(LINK, TOPIC, GROUP)
    connections.positions["alien"] = 5
    made = run(mirror(connections, "l", asked))
    assert (made.changes, [finding.ref for finding in made.findings]) == ((), ["already-mirrored"])
    assert mode_of(connections) is GroupMode.FOLLOW


def test_a_group_that_is_mirrored_gets_another_mode_where_it_is_asked_for() -> None:
    connections = _Estate(LINK, TOPIC, GROUP)
    assert run(mirror(connections, "l", "hold")).changes == ("group g: follow becomes hold",)
    assert mode_of(connections) is GroupMode.HOLD
    run(mirror(connections, "l", "auto"))
    assert mode_of(connections) is GroupMode.HOLD
    run(mirror(connections, "l", "follow"))
    assert mode_of(connections) is GroupMode.FOLLOW


AUTOMATIC = "group g: the controller promotes it once no member is left on the source"


def is_auto(connections: _Estate) -> bool:
    (group,) = connections.log.state.groups()
    return group.auto


def test_an_automatic_promote_is_turned_on_and_off_and_else_left_as_it_is() -> None:
    connections = _Estate(LINK, TOPIC)
    made = run(mirror(connections, "l", "auto", auto=True))
    assert made.changes == ("register group g (follow)", AUTOMATIC)
    assert (is_auto(connections), mode_of(connections)) == (True, GroupMode.FOLLOW)
    assert run(mirror(connections, "l", "auto", auto=True)).changes == ()
    assert run(mirror(connections, "l", "hold")).changes == ("group g: follow becomes hold",)
    assert (is_auto(connections), mode_of(connections)) == (True, GroupMode.HOLD)
    assert run(mirror(connections, "l", "auto", auto=False)).changes == ("group g: no automatic promote",)
    assert (is_auto(connections), mode_of(connections)) == (False, GroupMode.HOLD)
    assert run(mirror(connections, "l", "follow", auto=True)).changes == ("group g: hold becomes follow", AUTOMATIC)
    assert (is_auto(connections), mode_of(connections)) == (True, GroupMode.FOLLOW)


def test_a_group_that_is_promoted_meanwhile_gets_no_automatic_promote() -> None:
    connections = _Estate(LINK, TOPIC, GROUP)
    connections.log.meanwhile(lambda _: replace(GROUP, phase=GroupPhase.PROMOTED))
    run(mirror(connections, "l", "auto", auto=True))
    assert not is_auto(connections)


def test_a_group_of_transactions_is_warned_of_that_no_controller_promotes_it() -> None:
    coupled = TransactionRecord("l", "tx", 1, 0, 2, 0, topics=("t",), groups=("g",))
    connections = _Estate(LINK, TOPIC, coupled)
    made = run(mirror(connections, "l", "auto", auto=True))
    [found] = [each for each in made.findings if each.level == "warn"]
    assert (found.ref, "kmigrate promote --link l t" in found.next_step) == ("auto-promote-off", True)
    assert found.what == ("group g is not promoted automatically: transactions that commit its positions write t")
    assert not [each for each in run(mirror(connections, "l", "auto")).findings if each.level == "warn"]


@pytest.mark.parametrize("records", [(), (replace(GROUP, mode=GroupMode.HOLD),)], ids=["new", "holds"])
@pytest.mark.parametrize("asked", ["auto", "follow"])
def test_a_topic_whose_promote_is_asked_for_while_a_group_is_looked_at_keeps_it_from_following(
    records: tuple[GroupRecord, ...], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group does not follow when the promote of its topic is requested during the look at the group.

    The controller has then already looked for readers of the topic.
    """
    connections = _Estate(LINK, TOPIC, *records)

    async def overtaken(*given: Any) -> dict[str, readers.GroupReads]:
        found = await readers.group_reads(*given)
        await connections.log.append(lambda _: replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING))
        return found

    monkeypatch.setattr(groups, "group_reads", overtaken)
    if asked == "follow":
        with pytest.raises(Refused, match="t is promote-pending"):
            run(mirror(connections, "l", asked))
    else:
        run(mirror(connections, "l", asked))
    assert all(group.mode is GroupMode.HOLD for group in connections.log.state.groups())


def promote(connections: _Estate) -> Any:
    return run_verb(verbs.promote_groups(connections, "l", ["g"]), plan=True)  # type: ignore[arg-type]


@pytest.fixture
def all_at_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(groups, "outsiders", nobody)


@pytest.mark.usefixtures("all_at_routers")
@pytest.mark.parametrize(
    ("phase", "committed", "end"),
    [(TopicPhase.MIRRORING, 1_001, 1_000), (TopicPhase.PROMOTED, 1_500, None), (TopicPhase.PROMOTED, 2_001, 2_000)],
)
def test_a_position_is_beyond_the_log_of_the_cluster_that_the_topic_is_read_on(
    phase: TopicPhase, committed: int, end: int | None
) -> None:
    """A committed offset is compared with the log end of the cluster on which the topic is read.

    Members of a group that follows read a promoted topic on the target, and commit offsets of the target.
    """
    connections = _Estate(LINK, replace(TOPIC, phase=phase), GROUP)
    connections.positions["t"] = committed
    if end is None:
        assert run(promote(connections)).changes == ("promote group g",)
    else:
        with pytest.raises(Refused, match=f"committed {committed} on t-0, whose log ends at {end}"):
            run(promote(connections))


@pytest.mark.usefixtures("all_at_routers")
def test_a_promote_says_beforehand_which_topics_its_members_are_not_told_of() -> None:
    """The plan of a group's promote warns of topics that routers withhold from its members.

    After the promote no member reads these topics on the source. A person may want to mirror the topics first.
    """
    connections = _Estate(LINK, TOPIC, GROUP)
    assert run(promote(connections)).warnings == []
    word = GroupReport(withheld=(Withheld("id-1", 2, "audit"), Withheld("id-2", 1, "t")), more_withheld=3)
    connections.log.say(RouterPresence("i", "r", 1, 500, groups={"g": word}))
    plan = run(promote(connections))
    assert plan.changes == ("promote group g",)
    (audit, more) = (finding for finding in plan.findings if finding.level == "warn")
    assert (audit.ref, more.ref) == ("topic-not-mirrored", "topics-withheld")
    assert "nobody reads the partitions of topic audit that the source assigns to 2 members" in audit.what
    assert audit.next_step == "kmigrate topic mirror --link l audit"
    assert "at least 3 such topics more" in more.what


@pytest.mark.usefixtures("all_at_routers")
def test_the_plan_of_a_promote_that_waits_for_the_copy_says_so_and_no_promote_begins_without_the_copy() -> None:
    connections = _Estate(LINK, replace(TOPIC, phase=TopicPhase.ALIGNING), GROUP)
    look = verbs.promote_groups(connections, "l", ["g"], waits=True)  # type: ignore[arg-type]
    plan = run(run_verb(look, plan=True))
    assert plan.changes == ("promote group g",)
    [behind] = [finding for finding in plan.findings if finding.level == "warn"]
    assert behind.ref == "target-behind-group"
    assert "the copy of t has not begun: the topic is aligning" in behind.what
    assert behind.next_step.startswith("the promote waits for the copy")
    with pytest.raises(Refused) as caught:
        run(promote(connections))
    assert caught.value.ref == "topic-not-ready"
