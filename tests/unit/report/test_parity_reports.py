"""The page and the JUnit file of a parity check: well-formed, complete, and harmless with any names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kmigrate.errors import Failed
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.parity.plan import BucketDigest, BucketKey, TopicRange
from kmigrate.parity.report import ParityReport, report_of
from kmigrate.parity.verdict import Anomaly, AnomalyKind, Place
from kmigrate.report.check import Check
from kmigrate.report.parity_chart import drawn
from kmigrate.report.parity_junit import parity_junit
from kmigrate.report.parity_page import parity_page
from kmigrate.verify.report_files import ReportFiles

HOSTILE = "a<script>alert('x')</script>&\"\x00'"
CHECK = Check("blue", "old", "new", "2026-03-01T08:00:00Z")


def report(topics: dict[str, int], anomalies: list[Anomaly] | None = None) -> ParityReport:
    """Return a report on topics with so many partitions of ten records each; anomalous partitions differ."""
    anomalies = anomalies or []
    ranges = [TopicRange(topic, p, 0, 10) for topic, count in topics.items() for p in range(count)]
    held = {BucketKey(each.topic, each.partition, 0): BucketDigest(10, 0, 9, 1, 2, 1_234) for each in ranges}
    places = [(each.topic, place) for each in anomalies for place in (each.source, each.target) if place]
    differing = sorted({BucketKey(topic, place.partition, 0) for topic, place in places})
    seconds = {"total": 1.5}
    return report_of(ranges, held, held, anomalies, differing=differing, unexamined=[], size=1_000, seconds=seconds)


LOST = Anomaly(AnomalyKind.LOST, "orders", Place(1, 3))
ALTERED = Anomaly(AnomalyKind.ALTERED, "orders", Place(0, 1_005), Place(0, 7), ("key", "timestamp"))
MISPLACED = Anomaly(AnomalyKind.MISPLACED, "orders", Place(0, 2), Place(1, 4))


def cases(xml: str) -> dict[str, ET.Element]:
    root = ET.fromstring(xml.encode())
    return {str(case.get("name")): case for case in root.iter("testcase")}


@pytest.mark.parametrize(("found", "verdict"), [([], "both sides are equal"), ([LOST], "both sides differ: 1 mism")])
def test_a_report_that_cannot_be_written_at_the_end_does_not_take_the_verdict_with_it(
    found: list[Anomaly], verdict: str, tmp_path: Path
) -> None:
    """The disk is full, or somebody has created a folder of that name since the check began."""
    link = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
    for files in (ReportFiles(html=tmp_path), ReportFiles(junit=tmp_path)):
        with pytest.raises(Failed) as caught:
            files.write(link, report({"orders": 2}, found), 0)
        assert (caught.value.ref, verdict in caught.value.still_true) == ("report-not-written", True)


def test_junit_has_a_case_for_each_partition_and_names_the_findings_of_those_that_differ() -> None:
    found = cases(parity_junit(CHECK, report({"orders": 3, "audit": 1}, [LOST, ALTERED, MISPLACED])))
    assert sorted(found) == ["audit-0", "orders-0", "orders-1", "orders-2"]
    failures = {name: case.find("failure") for name, case in found.items()}
    first, second = failures["orders-0"], failures["orders-1"]
    assert failures["orders-2"] is None and failures["audit-0"] is None
    assert first is not None and second is not None
    assert (first.get("type"), first.get("message")) == ("parity-mismatch", "2 mismatches")
    assert "altered: source 0 @ 1,005, target 0 @ 7 (key, timestamp)" in str(first.text)
    assert "lost: source 1 @ 3, target –" in str(second.text)
    for text in (first.text, second.text):
        assert "misplaced: source 0 @ 2, target 1 @ 4" in str(text)


def test_junit_counts_agree_on_every_level() -> None:
    root = ET.fromstring(parity_junit(CHECK, report({"orders": 3, "audit": 1}, [LOST])).encode())
    assert root.tag == "testsuites"
    assert [suite.tag for suite in root] == ["testsuite", "testsuite"]
    for level in (root, *root):
        assert int(str(level.get("tests"))) == len(list(level.iter("testcase")))
        assert int(str(level.get("failures"))) == len(list(level.iter("failure")))
        assert level.get("errors") == "0"
    assert (root.get("tests"), root.get("failures"), root.get("time")) == ("4", "1", "1.500")
    assert {suite.get("timestamp") for suite in root} == {CHECK.at}


class Walked(tuple[Anomaly, ...]):
    """Findings that count how often they are iterated."""

    __slots__ = ()
    times = 0

    def __iter__(self) -> Iterator[Anomaly]:
        Walked.times += 1
        return super().__iter__()


@pytest.mark.parametrize("write", [parity_page, parity_junit])
def test_findings_are_gone_through_as_often_however_many_topics_there_are(
    write: Callable[[Check, ParityReport], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a million findings, and thousands of topics without findings."""
    times = []
    for topics in (1, 40):
        told = report({"orders": 2, **{f"topic-{number}": 1 for number in range(topics)}}, [LOST, ALTERED])
        monkeypatch.setattr(Walked, "times", 0)
        write(CHECK, replace(told, findings=Walked(told.findings)))
        times.append(Walked.times)
    assert times[0] == times[1]


def test_names_that_are_markup_stay_text_in_both_files() -> None:
    told = report({HOSTILE: 1}, [Anomaly(AnomalyKind.LOST, HOSTILE, Place(0, 3))])
    hostile = Check(HOSTILE, HOSTILE, HOSTILE, CHECK.at)
    page = parity_page(hostile, told)
    assert "<script" not in page
    shown = HOSTILE.replace("\x00", "\\x00")
    texts = list(ET.fromstring(page.encode()).itertext())
    assert any(shown == text for text in texts)
    assert list(cases(parity_junit(hostile, told))) == [f"{shown}-0"]


@pytest.mark.parametrize("anomalies", [[], [LOST, ALTERED, MISPLACED]], ids=["equal", "different"])
def test_the_page_is_well_formed_and_loads_nothing(anomalies: list[Anomaly]) -> None:
    page = parity_page(CHECK, report({"orders": 2, "empty": 0, "audit": 1}, anomalies))
    root = ET.fromstring(page.encode())
    assert not [each for each in root.iter() if each.get("src") or each.get("href")]
    assert "url(" not in page and "@import" not in page


def test_the_page_shows_the_verdict_every_partition_and_every_finding() -> None:
    text = "\n".join(ET.fromstring(parity_page(CHECK, report({"orders": 2}, [LOST, ALTERED])).encode()).itertext())
    for said in ("✗ 2 mismatches", "old → new", "orders-0", "orders-1", "0 @ 1,005", "1 @ 3", "key, timestamp"):
        assert said in text
    assert "✓ equal" in parity_page(CHECK, report({"orders": 2}))


def test_the_page_shows_the_time_of_the_records_and_marks_where_they_differ() -> None:
    ranges = [TopicRange("orders", 0, 0, 30)]
    held = {BucketKey("orders", 0, n): BucketDigest(10, 0, 9, 1, 2, 500, 86_400_000 * (n + 1)) for n in range(3)}
    lost = Anomaly(AnomalyKind.LOST, "orders", Place(0, 13))
    differing = [BucketKey("orders", 0, 1)]
    told = report_of(ranges, held, held, [lost], differing=differing, unexamined=[], size=10, seconds={})
    texts = list(ET.fromstring(parity_page(CHECK, told).encode()).itertext())
    assert "Over time" in texts and "1970-01-02 00:00:00" in texts
    assert [text.partition(": ")[2] for text in texts if text.endswith(", 1 mismatches")] == [
        "source 10, target 10, 1 mismatches",
        "source 500, target 500, 1 mismatches",
    ]
    assert "Over time" not in parity_page(CHECK, report({"orders": 1}))


def test_of_many_partitions_those_with_mismatches_are_drawn_and_all_are_listed() -> None:
    told = report({"orders": 500}, [Anomaly(AnomalyKind.LOST, "orders", Place(499, 3))])
    assert len(drawn(told.partitions)) == 40
    assert drawn(told.partitions)[-1].partition == 499
    page = parity_page(CHECK, told)
    assert "The 40 of 500 partitions" in page
    assert page.count("<tr>") == 501 + 2 + 2  # the partitions, the name, the finding; each with a head
