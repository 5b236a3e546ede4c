"""A refusal reports each kind of finding, also if a single kind has a hundred findings."""

from __future__ import annotations

import pytest

from kmigrate.errors import Refused
from kmigrate.workflow.base.plan import Finding, Plan


def _refusal(*findings: Finding) -> Refused:
    with pytest.raises(Refused) as caught:
        Plan.of("promote", [], findings).refuse()
    return caught.value


def _writers(count: int) -> list[Finding]:
    return [Finding("refuse", "direct-writers", f"writer {n}", "restart it") for n in range(count)]


def test_of_many_of_a_kind_the_first_are_told_and_how_many_there_are() -> None:
    """Only the first findings of a kind are reported, with the number of the others.

    Six partitions and four producers make 24 sentences, which would hide the finding about the group.
    """
    told = _refusal(*_writers(24), Finding("refuse", "group-not-promoted", "group g reads it", "promote it"))
    first = "writer 0; writer 1; writer 2; writer 3; writer 4"
    assert told.what == f"{first}; and 19 more of the kind; group g reads it"
    assert (told.ref, told.next_step) == ("direct-writers", "restart it; promote it")


def test_few_are_told_in_full() -> None:
    assert _refusal(*_writers(6)).what == "; ".join(f"writer {n}" for n in range(6))


def test_its_json_has_all_that_the_guards_said() -> None:
    told = _refusal(*_writers(24), Finding("warn", "copy-cut", "t-0 is cut", "forget it")).as_json()
    findings = told["findings"]
    assert isinstance(findings, list) and len(findings) == 25
    assert findings[23] == {"level": "refuse", "ref": "direct-writers", "what": "writer 23", "next": "restart it"}
    assert findings[24]["level"] == "warn"
    assert "findings" not in Refused("no-link", "there is no link yet").as_json()
