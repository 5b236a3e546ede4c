"""What is demanded of a routed run, and what a reference list says of several direct ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from kmigrate.errors import Failed, Refused
from tests.conformance import __main__ as command
from tests.conformance import reference as lists
from tests.conformance.reference import Reference, kept_reference, reference_of
from tests.conformance.suite import Hidden, Outcome, Place, Results, need
from tests.conformance.verdict import RETRIES, did_not_run, judge

P, F, S = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED


class Asked:
    """A suite through the router that answers from a script: the whole run first, then each test by itself."""

    name, package, version, floor = "asked", "some registry", "1.0", 1
    settings: Mapping[str, str] = {"size": "small"}
    broker: Mapping[str, str] = {}
    hidden: Mapping[str, Hidden] = {}

    def __init__(self, whole: Results, *alone: Results) -> None:
        self.answers = [whole, *alone]
        self.asked: list[tuple[str, ...]] = []

    def prepare(self) -> None:
        raise Failed("suite-not-built", "make ended with 2")

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        return self(only)

    def __call__(self, names: Collection[str]) -> Results:
        self.asked.append(tuple(names))
        return self.answers.pop(0)


@pytest.fixture(autouse=True)
def _lists_in_a_folder(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(lists, "_path", lambda name: tmp_path / f"{name}.json")


def _reference(*passed: str, **hidden: Hidden) -> Reference:
    return Reference("s", "p", "1", {}, "4", {}, 3, list(passed), [], [], [], hidden)


def test_a_test_that_fails_three_times_is_missing() -> None:
    run = Asked({"a": P, "b": F}, {"b": F}, {"b": F})
    verdict = judge(_reference("a", "b"), 1, run)
    assert (verdict.direct_passed, verdict.routed_passed, verdict.missing) == (2, 1, ["b"])
    assert run.asked == [(), ("b",), ("b",)]
    assert verdict.faults == ["missing: b"]


@pytest.mark.parametrize("failures", range(1, RETRIES + 1))
def test_a_test_that_passes_by_itself_is_counted_as_retried(failures: int) -> None:
    again = [{"b": F}] * (failures - 1) + [{"b": P}]
    verdict = judge(_reference("a", "b"), 2, Asked({"a": P, "b": F}, *again))
    assert (verdict.routed_passed, verdict.retried, verdict.faults) == (2, {"b": failures}, [])


@pytest.mark.parametrize("whole", [{"a": P}, {"a": P, "b": S}])
def test_a_test_that_is_not_reported_or_skipped_through_the_router_is_missing(whole: Results) -> None:
    verdict = judge(_reference("a", "b"), 1, Asked(whole, {}, {"b": S}))
    assert verdict.missing == ["b"]


def test_what_fails_or_is_flaky_on_a_plain_broker_is_not_demanded() -> None:
    reference = replace(_reference("a"), failed=["b"], flaky=["c"], skipped=["d"])
    assert judge(reference, 1, Asked({"a": P, "b": F, "c": F, "d": F})).faults == []


def test_what_is_hidden_on_purpose_is_told_and_not_demanded() -> None:
    reference = _reference("a", "b", b=Hidden("GetTelemetrySubscriptions", "one cluster only"))
    verdict = judge(reference, 1, Asked({"a": P, "b": F}))
    assert verdict.faults == []
    assert verdict.as_json()["hidden_on_purpose"] == {"b": "GetTelemetrySubscriptions: one cluster only"}


def test_a_floor_that_is_not_met_is_a_fault_also_where_nothing_is_missing() -> None:
    verdict = judge(_reference("a"), 2, Asked({"a": P}))
    assert verdict.missing == []
    assert verdict.faults == ["1 tests passed, 2 must"]


def test_a_suite_that_reports_nothing_did_not_run() -> None:
    verdict = judge(_reference("a"), 0, Asked({}))
    assert verdict.faults == ["did not run: the suite reported no test"]


def test_a_suite_that_did_not_run_is_a_fault_and_says_why() -> None:
    told = did_not_run("toolchain-missing: no go", 30)
    assert told.faults
    assert told.as_json()["did_not_run"] == "toolchain-missing: no go"


def test_a_suite_that_cannot_be_built_did_not_run() -> None:
    suite = Asked({})
    reference_of(suite, [{"a": P}]).keep()
    assert "make ended with 2" in command.run_routed(suite).did_not_run


def test_a_suite_without_a_list_did_not_run() -> None:
    assert "no-reference" in command.run_routed(Asked({})).did_not_run


def test_only_what_every_run_tells_alike_is_steady() -> None:
    runs = [{"a": P, "b": P, "c": F, "d": S, "e": P}, {"a": P, "b": F, "c": F, "d": S}]
    made = reference_of(Asked({}), runs)
    assert (made.passed, made.flaky, made.failed, made.skipped) == (["a"], ["b", "e"], ["c"], ["d"])


def test_a_list_is_kept_and_read_again_with_what_is_hidden() -> None:
    suite = Asked({})
    suite.hidden = {"a": Hidden("ShareFetch", "why"), "gone": Hidden("ShareFetch", "why")}
    made = reference_of(suite, [{"a": P, "b": P}])
    made.keep()
    assert kept_reference(suite) == made
    assert set(made.hidden_on_purpose) == {"a"}, "only what passes can be hidden"


def test_a_list_of_another_version_or_of_other_settings_is_refused() -> None:
    suite = Asked({})
    reference_of(suite, [{"a": P}]).keep()
    suite.settings = {"size": "large"}
    with pytest.raises(Refused, match="reference-of-another-run"):
        kept_reference(suite)


def test_a_missing_tool_is_said_in_one_sentence() -> None:
    with pytest.raises(Refused, match="the suite needs no-such-tool, which is not on the PATH"):
        need("no-such-tool", "the suite")
