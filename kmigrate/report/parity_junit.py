"""Renders a parity report as JUnit XML: a suite per topic, a test case per partition, findings as its failure.

CI servers share this structure: testsuites > testsuite > testcase > failure, with counts on each level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from kmigrate.model.words import one_line
from kmigrate.parity.report import ParityReport, PartitionRow
from kmigrate.parity.verdict import Anomaly
from kmigrate.report.check import Check, by_topic, differs, place_text, printable

__all__ = ["parity_junit"]

_SHOWN = 50
"""Maximum number of findings spelled out for each partition; the message has the number of all findings."""


def parity_junit(check: Check, report: ParityReport) -> str:
    root = ET.Element(
        "testsuites",
        name=printable(one_line(f"kmigrate verify {check.link}")),
        tests=str(len(report.partitions)),
        failures=str(sum(not row.equal for row in report.partitions)),
        errors="0",
        time=f"{report.seconds.get('total', 0.0):.3f}",
    )
    rows = by_topic(report.partitions)
    found: dict[tuple[str, int], list[Anomaly]] = defaultdict(list)
    for each in report.findings:
        for partition in {place.partition for place in each.places}:
            found[each.topic, partition].append(each)
    for topic in report.topics:
        _suite(root, check, rows[topic.topic], found)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(
    root: ET.Element, check: Check, rows: Sequence[PartitionRow], found: Mapping[tuple[str, int], Sequence[Anomaly]]
) -> None:
    topic = rows[0].topic
    suite = ET.SubElement(
        root,
        "testsuite",
        name=printable(one_line(topic)),
        tests=str(len(rows)),
        failures=str(sum(not row.equal for row in rows)),
        errors="0",
        skipped="0",
        timestamp=check.at,
    )
    for row in rows:
        group, name = printable(one_line(f"{check.link}.{topic}")), printable(one_line(f"{topic}-{row.partition}"))
        case = ET.SubElement(suite, "testcase", classname=group, name=name, time="0")
        held = f"source {row.start:,} to {row.end:,}: {row.source_records:,} records; target: {row.target_records:,}"
        if not row.equal:
            message = f"{row.mismatches:,} mismatches"
            failure = ET.SubElement(case, "failure", type="parity-mismatch", message=message)
            failure.text = printable("\n".join([held, *map(_line, found.get((topic, row.partition), ())[:_SHOWN])]))
        else:
            ET.SubElement(case, "system-out").text = held


def _line(each: Anomaly) -> str:
    text = f"{each.kind}: source {place_text(each.source)}, target {place_text(each.target)}"
    return one_line(f"{text} ({differs(each)})" if differs(each) else text)
