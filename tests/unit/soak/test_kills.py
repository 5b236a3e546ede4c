"""The report of the soak of kills says clean only where every migration ended, and the judge found nothing."""

from __future__ import annotations

import pytest

from kmigrate.sandbox.checker import Finding
from tests.soak.kills import Report, Run

REREADS = {"group_rereads": Finding(4, ("billing read orders-0 at 7 again",))}
REWINDS = {"rewinds": Finding(1, ("billing-1.2 of billing read orders-0 at 7 first",))}


@pytest.mark.parametrize(
    ("run", "clean"),
    [
        (Run(1, kills=10, acked=5), True),
        (Run(1, anomalies=REREADS), True),
        (Run(1, anomalies=REREADS | REWINDS), False),
        (Run(1, failed="waited 60 s"), False),
    ],
    ids=["nothing found", "rereads", "a rewind", "not ended"],
)
def test_a_run_is_clean_when_it_ended_and_nothing_that_fails_was_found(run: Run, clean: bool) -> None:
    assert run.clean is clean
    assert Report([run, Run(2)]).as_json()["clean"] is clean


def test_the_report_adds_up_what_each_migration_found() -> None:
    runs = [Run(1, kills=3, acked=10, anomalies=REWINDS), Run(2, kills=4, acked=20, anomalies=REWINDS)]
    told = Report(runs).as_json()
    assert (told["seeds"], told["kills"], told["records"]) == (2, 7, 30)
    assert told["anomalies"] == {"rewinds": 2}
    assert [run["seed"] for run in told["runs"]] == [1, 2]
