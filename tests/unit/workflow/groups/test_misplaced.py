"""Members at the wrong cluster are recorded and named, and verbs refuse or warn because of such members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.committed_offsets import Committed, CommittedOffset
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.records import (
    ClusterSide,
    GroupRecord,
    MisplacedMember,
    MisplacedRecord,
    TopicRecord,
    misplaced_key,
)
from kmigrate.workflow.groups.misplaced import (
    commits_sentence,
    member_sentence,
    misplaced_findings,
    not_former,
    seen_members,
    with_sightings,
)
from kmigrate.workflow.groups.watch import GroupFigures, GroupWatch, WatchSettings
from tests.fakes.finishing import LINK, Connections, run
from tests.fakes.state_log import MemoryLog

MIRRORED = GroupRecord("l", "g", GroupPhase.MIRRORED, 1)
PROMOTED = replace(MIRRORED, phase=GroupPhase.PROMOTED, written={"t": {0: 5}})
FORGOTTEN = GroupMember("app-1", "app", "/10.0.0.7")
EMPTY = MisplacedRecord("l", "g")


def seen_at(first_ms: int, last_ms: int, side: ClusterSide = ClusterSide.SOURCE) -> MisplacedRecord:
    return replace(EMPTY, members=(MisplacedMember(side, "app-1", "app", "/10.0.0.7", first_ms, last_ms),))


def test_a_sighting_is_written_once_and_again_after_a_minute() -> None:
    first = with_sightings(EMPTY, ClusterSide.SOURCE, [FORGOTTEN], 1_000)
    assert first == seen_at(1_000, 1_000)
    assert with_sightings(first, ClusterSide.SOURCE, [FORGOTTEN], 60_999) is first
    assert with_sightings(first, ClusterSide.SOURCE, [], 99_000) is first
    assert with_sightings(first, ClusterSide.SOURCE, [FORGOTTEN], 61_000) == seen_at(1_000, 61_000)


def test_a_client_that_starts_again_and_again_leaves_a_bounded_record() -> None:
    known = EMPTY
    for start in range(50):
        member = GroupMember(f"app-{start}", "app", "/10.0.0.7")
        known = with_sightings(known, ClusterSide.SOURCE, [member], 1_000 * start)
    assert (len(known.members), known.more_members) == (20, 30)
    assert known.members[0].member_id == "app-49"


def test_who_was_at_a_router_until_the_promote_is_not_named() -> None:
    record = replace(PROMOTED, former=(member_mark("routed-1"),))
    assert not_former([GroupMember("routed-1", "shop", "/h"), FORGOTTEN], record) == (FORGOTTEN,)


def test_who_was_at_a_router_until_the_rollback_is_not_named_on_the_target(
    described: dict[str, tuple[GroupMember, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = _Watched(replace(MIRRORED, former=(member_mark("routed-1"),)), monkeypatch=monkeypatch)
    described["g"] = (GroupMember("routed-1", "shop", "/h"),)
    run(watched.watch.look())
    assert watched.record.members == ()


def test_a_member_that_is_there_refuses_and_one_that_has_gone_warns() -> None:
    there = seen_members(EMPTY, PROMOTED, (FORGOTTEN,), 5_000)
    (finding,) = misplaced_findings(PROMOTED, there, 5_000, verb="kmigrate promote t")
    assert (finding.level, finding.ref) == ("refuse", "member-on-source")
    assert "member app at /10.0.0.7 (app-1) of group g is on the source" in finding.what
    assert "kmigrate promote t --accept-misplaced-members" in finding.next_step
    (accepted,) = misplaced_findings(PROMOTED, there, 5_000, accepted=True)
    assert accepted.level == "warn"
    gone = seen_members(seen_at(1_000, 2_000), PROMOTED, (), 5_000)
    (finding,) = misplaced_findings(PROMOTED, gone, 5_000)
    assert (finding.level, finding.ref) == ("warn", "member-on-source")
    assert "last seen 3 s ago" in finding.what


def test_what_was_seen_on_the_target_before_the_promote_is_not_held_against_the_promoted_group() -> None:
    seen = seen_members(seen_at(1_000, 2_000, ClusterSide.TARGET), PROMOTED, (), 5_000)
    assert misplaced_findings(PROMOTED, seen, 5_000) == []
    (finding,) = misplaced_findings(
        MIRRORED, seen_members(seen_at(1_000, 2_000, ClusterSide.TARGET), MIRRORED, (), 5_000), 5_000
    )
    assert finding.ref == "member-on-target"


def test_a_cluster_that_does_not_answer_leaves_the_newest_sighting_to_judge_by() -> None:
    known = seen_at(1_000, 100_000)
    assert seen_members(known, PROMOTED, None, 110_000).there == known.members
    assert seen_members(known, PROMOTED, None, 200_000).gone == known.members


def test_sentences_say_where_the_member_is_and_what_follows() -> None:
    (member,) = seen_at(1_000, 1_000, ClusterSide.TARGET).members
    assert "past every router" in member_sentence("g", member, 2_000, there=True)
    assert commits_sentence("g", {}) == ""
    assert "t-0 to 9, t-1 to 8" in commits_sentence("g", {"t": {1: 8, 0: 9}})


def test_a_finish_is_refused_while_a_member_of_a_promoted_group_is_on_the_source() -> None:
    connections = Connections()
    connections.on_source["g"] = (FORGOTTEN,)
    with pytest.raises(Refused) as refused:
        connections.finish()
    assert refused.value.ref == "member-on-source"
    assert connections.finished_ms == 0


def test_a_finish_names_commits_on_the_source_that_no_watch_has_recorded() -> None:
    connections = Connections()
    connections.positions["g"] = {("t", 0): CommittedOffset(9, "")}
    found = [each for each in connections.finish(plan=True).findings if each.ref == "commits-on-source"]
    assert [each.level for each in found] == ["warn"]
    assert "t-0 to 9" in found[0].what


class _Watched:
    """A watch with a state log in memory and the group's committed offsets on the source."""

    def __init__(
        self, *records: GroupRecord | TopicRecord, monkeypatch: pytest.MonkeyPatch, hold: bool = False
    ) -> None:
        self.log = MemoryLog(LINK, *records)
        self.figures = GroupFigures()
        self.commits: dict[str, dict[int, int]] = {}
        settings = WatchSettings(hold=hold)
        connections: Any = SimpleNamespace(log=self.log, target=object(), source=self._source)
        self.watch = GroupWatch(connections, settings, self.figures)
        monkeypatch.setattr("kmigrate.workflow.groups.watch.read_all_positions", self._positions)

    async def _source(self, _: object) -> tuple[object, object]:
        return object(), object()

    async def _positions(self, _: object, groups: Iterable[str]) -> dict[str, Committed]:
        made = {(topic, p): CommittedOffset(at, "") for topic, parts in self.commits.items() for p, at in parts.items()}
        return dict.fromkeys(groups, made)

    @property
    def record(self) -> MisplacedRecord:
        return self.log.state.misplaced("l", "g")


@pytest.mark.parametrize(
    ("record", "side"), [(MIRRORED, ClusterSide.TARGET), (PROMOTED, ClusterSide.SOURCE)], ids=["mirrored", "promoted"]
)
def test_the_watch_records_members_and_shows_them_as_figures(
    record: GroupRecord,
    side: ClusterSide,
    described: dict[str, tuple[GroupMember, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = _Watched(record, monkeypatch=monkeypatch)
    described["g"] = (FORGOTTEN,)
    run(watched.watch.look())
    assert [(each.cluster, each.member_id) for each in watched.record.members] == [(side, "app-1")]
    assert watched.figures._members() == [(("l", "g", side.value), 1)]
    described.clear()
    run(watched.watch.look())
    assert watched.figures._members() == [(("l", "g", side.value), 0)]
    assert len(watched.record.members) == 1


def test_the_watch_leaves_a_group_alone_while_its_promote_is_under_way(
    described: dict[str, tuple[GroupMember, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = _Watched(replace(MIRRORED, phase=GroupPhase.PROMOTING, mode=GroupMode.FOLLOW), monkeypatch=monkeypatch)
    described["g"] = (FORGOTTEN,)
    run(watched.watch.look())
    assert misplaced_key("l", "g") not in watched.log.state.records


@pytest.mark.parametrize("looks_between", [False, True])
def test_a_hold_ends_with_a_rollback_and_the_next_promote_begins_another(
    looks_between: bool, described: dict[str, tuple[GroupMember, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback may begin and end between two looks of the watch."""
    done: list[str] = []

    class Hold:
        session_s = 1800

        def __init__(self, *_: object) -> None: ...

        async def take(self) -> int:
            done.append("take")
            return 0

        async def release(self) -> None:
            done.append("release")

    monkeypatch.setattr("kmigrate.workflow.groups.watch.GroupHold", Hold)
    watched = _Watched(PROMOTED, monkeypatch=monkeypatch, hold=True)
    run(watched.watch.look())
    run(watched.watch.look())
    assert done == ["take"]
    if looks_between:
        watched.log._put(PROMOTED.key, replace(MIRRORED, phase=GroupPhase.ROLLING_BACK))
        run(watched.watch.look())
    watched.log._put(PROMOTED.key, replace(PROMOTED, since_ms=9))
    run(watched.watch.look())
    assert done == ["take", "release", "take"]


def test_commits_on_the_source_after_the_promote_are_recorded(
    described: dict[str, tuple[GroupMember, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TopicRecord("l", "t", TopicPhase.PROMOTED, 1)
    watched = _Watched(PROMOTED, topic, monkeypatch=monkeypatch)
    watched.commits = {"t": {0: 9}}
    run(watched.watch.look())
    assert watched.record.commits == {"t": {0: 9}}
    assert watched.figures._of_promoted(lambda each: each.commits) == [(("l", "g"), 1)]


def test_the_commit_of_a_member_that_leaves_is_recorded_at_the_next_look(
    described: dict[str, tuple[GroupMember, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = _Watched(PROMOTED, monkeypatch=monkeypatch)
    described["g"] = (FORGOTTEN,)
    run(watched.watch.look())
    described.clear()
    watched.commits = {"t": {0: 1}}
    run(watched.watch.look())
    assert watched.record.commits == {"t": {0: 1}}
