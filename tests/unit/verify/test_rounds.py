"""`verify --follow`: the ranges of a round, the partitions left alone, and the final output."""

from __future__ import annotations

import json

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.commands.verify import ended
from kmigrate.errors import UsageError
from kmigrate.model.records import VerifiedRange
from kmigrate.parity.plan import BucketDigest, BucketKey, TopicRange
from kmigrate.parity.report import ParityReport, report_of
from kmigrate.parity.verdict import Anomaly, AnomalyKind, Place
from kmigrate.verify.compare import spark_choice
from kmigrate.verify.ranges import _anything_new
from kmigrate.verify.rounds import Totals

RANGES = [TopicRange("t", 0, 0, 10), TopicRange("t", 1, 5, 5), TopicRange("u", 0, 0, 7)]


def report(*anomalies: Anomaly) -> ParityReport:
    held = {BucketKey("t", 0, 0): BucketDigest(10, 0, 9, 1, 2, 3), BucketKey("u", 0, 0): BucketDigest(7, 0, 6, 1, 2, 3)}
    differing = [BucketKey(each.topic, 0, 0) for each in anomalies]
    return report_of(
        RANGES, held, held, anomalies, differing=differing, unexamined=[], size=1_000, seconds={"total": 1.0}
    )


def test_equal_rounds_end_with_exit_code_0() -> None:
    totals = Totals()
    totals.add(report())
    totals.add(report())
    answer = ended("blue", totals)
    assert answer.exit == Exit.OK
    assert (answer.json["equal"], answer.json["rounds"], answer.json["records"]) == (True, 2, 34)


def test_a_partition_that_differs_is_told_once_and_left_alone() -> None:
    totals = Totals()
    assert [each.key for each in totals.still_followed(RANGES)] == [("t", 0), ("u", 0)]
    totals.add(report(Anomaly(AnomalyKind.LOST, "t", Place(0, 3))))
    assert [each.key for each in totals.still_followed(RANGES)] == [("u", 0)]
    totals.add(report())
    answer = ended("blue", totals)
    assert answer.exit == Exit.PARITY_MISMATCH
    assert (answer.json["mismatches"], answer.json["differing"]) == (1, [{"topic": "t", "partition": 0}])


@pytest.mark.parametrize(
    ("now", "end", "verified_to", "new"),
    [
        (10, 10, None, True),
        (0, 10, None, False),  # the target has nothing yet
        (10, 12, 4, True),
        (10, 12, 10, False),
        (9, 12, 10, False),  # the map has forgotten the holes at its end
        (8, 8, 10, True),  # the source was cut, so the whole range is read again
    ],
)
def test_a_round_takes_what_both_sides_have_and_nobody_verified(
    now: int, end: int, verified_to: int | None, new: bool
) -> None:
    before = None if verified_to is None else VerifiedRange(0, verified_to, 1, 0, 0)
    assert _anything_new(0, now, end, before) is new


@pytest.mark.parametrize("flag", [["--full"], ["--html", "page.html"], ["--parquet", "findings"]])
def test_a_check_without_an_end_writes_no_report(flag: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--follow", "--json", *flag]) == Exit.USAGE
    assert json.loads(capsys.readouterr().out)["error"] == "follow-goes-on"


def test_settings_of_spark_are_pairs() -> None:
    assert spark_choice("yarn", ["spark.a=1", "spark.b=x=y"]).conf == {"spark.a": "1", "spark.b": "x=y"}
    for wrong in ("spark.a", "driver.memory=4g"):
        with pytest.raises(UsageError, match="bad-spark-conf"):
            spark_choice("yarn", [wrong])
