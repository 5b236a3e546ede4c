"""Renders a run of a playbook as JUnit XML: a test case per step, with the error as the case's failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from kmigrate.model.words import one_line
from kmigrate.report.check import printable

__all__ = ["StepOutcome", "playbook_junit"]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of a step: done, nothing to do, skipped, failed, or not run."""

    name: str
    what: str
    outcome: str
    seconds: float = 0.0
    ref: str = ""
    error: str = ""


def playbook_junit(name: str, at: str, outcomes: Sequence[StepOutcome]) -> str:
    """Return the document; `at` is the time of the run's start in ISO 8601."""
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(sum(each.outcome == "failed" for each in outcomes)),
        "errors": "0",
        "skipped": str(sum(each.outcome in _SKIPPED for each in outcomes)),
        "time": f"{sum(each.seconds for each in outcomes):.3f}",
    }
    title = _text(name)
    root = ET.Element("testsuites", {"name": title, **counts})
    suite = ET.SubElement(root, "testsuite", {"name": title, "timestamp": at, **counts})
    for each in outcomes:
        case = ET.SubElement(
            suite, "testcase", classname=title, name=_text(f"{each.name}: {each.what}"), time=f"{each.seconds:.3f}"
        )
        if each.outcome == "failed":
            first = each.error.partition("\n")[0]
            failure = ET.SubElement(case, "failure", type=each.ref, message=_text(first))
            failure.text = printable(each.error)
        elif each.outcome in _SKIPPED:
            ET.SubElement(case, "skipped", message=each.outcome)
        else:
            ET.SubElement(case, "system-out").text = each.outcome
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


_SKIPPED = ("skipped", "not run")


def _text(given: str) -> str:
    return printable(one_line(given))
