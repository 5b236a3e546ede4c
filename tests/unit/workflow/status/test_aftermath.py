"""The aftermath of a report: what is true of its topic or group by now, and the next step that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    Action,
    Asked,
    ClusterRef,
    ClusterSide,
    GroupRecord,
    LateRecord,
    LateWrites,
    LinkRecord,
    MisplacedMember,
    MisplacedRecord,
    PartitionBarrier,
    TopicRecord,
)
from kmigrate.model.reports import Outcome, ReportedKind, ReportRecord
from kmigrate.model.state import State
from kmigrate.model.verified import Looked, grown
from kmigrate.workflow.status.aftermath import aftermath_of

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
ASKED = Asked(Action.PROMOTE, 1_000)
PROMOTED = TopicRecord(
    "l", "t", TopicPhase.PROMOTED, 1, partitions=1, asked=ASKED, barrier={0: PartitionBarrier(100, 1)}
)
DONE = ReportRecord("l", ReportedKind.TOPIC, "t", ASKED, Outcome.DONE, 2_000)
GIVEN_UP = replace(DONE, outcome=Outcome.GIVEN_UP, reason="not-ready: it lags", way_on="wait for the mirror")
OF_GROUP = replace(DONE, what=ReportedKind.GROUP, name="g")
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTED, 1, asked=ASKED)
CHECKED = grown(None, LINK, PROMOTED, {0: Looked(0, 100, True)}, 1)
PARTLY = grown(None, LINK, PROMOTED, {0: Looked(0, 99, True)}, 1)
LATE = LateRecord("l", "t", {0: LateWrites(100, 107, 7, 107, 1, 1, handled=3)})
LATER = replace(PROMOTED, asked=Asked(Action.PROMOTE, 5_000))


def state_of(*records: Record) -> State:
    state = State()
    for at, record in enumerate(records):
        state = state.with_record(record.key, record, at)
    return state


@pytest.mark.parametrize(
    ("report", "records", "next_step"),
    [
        (DONE, [PROMOTED], "kmigrate verify --link l t"),
        (DONE, [PROMOTED, PARTLY], "kmigrate verify --link l t"),
        (DONE, [PROMOTED, CHECKED], "when all topics and groups are promoted: kmigrate link finish l"),
        (DONE, [PROMOTED, LATE], "the target lacks 4 late records: kmigrate promote --on-late copy --link l t"),
        (DONE, [LATER], "a later request was made: kmigrate report show --link l t"),
        (DONE, [], "link l does not mirror topic t any more: kmigrate status"),
        (GIVEN_UP, [replace(PROMOTED, phase=TopicPhase.MIRRORING)], "wait for the mirror"),
        (replace(GIVEN_UP, way_on=""), [replace(PROMOTED, phase=TopicPhase.MIRRORING)], "kmigrate promote --link l t"),
        (OF_GROUP, [GROUP], "kmigrate group show g"),
        (
            replace(OF_GROUP, outcome=Outcome.GIVEN_UP),
            [replace(GROUP, phase=GroupPhase.MIRRORED)],
            "kmigrate group promote --link l g",
        ),
        (
            replace(DONE, asked=Asked(Action.ROLLBACK, 9)),
            [replace(PROMOTED, asked=Asked(Action.ROLLBACK, 9), phase=TopicPhase.MIRRORING)],
            "when the time has come: kmigrate promote --link l t",
        ),
    ],
)
def test_the_next_step_follows_from_the_present_state(
    report: ReportRecord, records: list[Record], next_step: str
) -> None:
    assert aftermath_of(report, state_of(LINK, *records)).next_step == next_step


def test_late_records_and_checks_since_the_report_are_counted() -> None:
    now = aftermath_of(DONE, state_of(LINK, PROMOTED, LATE, CHECKED))
    assert (now.phase, now.newest, now.late_records, now.late_missing, now.verified) == ("promoted", True, 7, 4, 1)


def test_members_at_the_wrong_cluster_are_counted() -> None:
    member = MisplacedMember(ClusterSide.SOURCE, "m-1", "app", "host", 1, 2)
    seen = MisplacedRecord("l", "g", (member,), more_members=2)
    assert aftermath_of(OF_GROUP, state_of(LINK, GROUP, seen)).misplaced == 3
    assert aftermath_of(replace(DONE, name="g"), state_of(LINK, PROMOTED, seen)).misplaced == 0
