"""The requirements of a routed run: every steady pass of the reference, and no fewer tests than the floor.

The machine is noisy and tests have deadlines. So a test that does not pass is run again by itself, at most twice. A
test that fails three times in a row is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.reference import Reference
from tests.conformance.suite import Outcome, Results

__all__ = ["RETRIES", "Verdict", "did_not_run", "judge"]

RETRIES = 2

Run = Callable[[Collection[str]], Results]
"""A function that runs the tests with these names through the router, or all tests if there are no names."""


@dataclass
class Verdict:
    """The verdict on a suite through the router."""

    direct_passed: int = 0
    routed_passed: int = 0
    missing: list[str] = field(default_factory=list)
    retried: dict[str, int] = field(default_factory=dict)
    """How many times a test was run again."""
    hidden_on_purpose: dict[str, str] = field(default_factory=dict)
    floor: int = 0
    seconds: int = 0
    did_not_run: str = ""
    """The reason why there is no result at all."""

    @property
    def faults(self) -> list[str]:
        if self.did_not_run:
            return [f"did not run: {self.did_not_run}"]
        found = [f"missing: {name}" for name in self.missing]
        if self.routed_passed < self.floor:
            found.append(f"{self.routed_passed} tests passed, {self.floor} must")
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the figures. Details that are empty are left out."""
        told: dict[str, Any] = {
            "direct_passed": self.direct_passed,
            "routed_passed": self.routed_passed,
            "missing": self.missing,
            "floor": self.floor,
            "seconds": self.seconds,
        }
        rest = {name: getattr(self, name) for name in ("retried", "hidden_on_purpose", "did_not_run")}
        return {**told, **{name: value for name, value in rest.items() if value}}


def did_not_run(reason: str, floor: int) -> Verdict:
    return Verdict(floor=floor, did_not_run=reason)


def judge(reference: Reference, floor: int, run: Run) -> Verdict:
    """Run the suite, then the tests that are not passed once more and once more."""
    hidden = reference.hidden_on_purpose
    wanted = [name for name in reference.passed if name not in hidden]
    results = dict(run(()))
    if not results:
        return did_not_run("the suite reported no test", floor)
    retried: dict[str, int] = {}
    for attempt in range(1, RETRIES + 1):
        for name in [name for name in wanted if results.get(name) is not Outcome.PASSED]:
            retried[name] = attempt
            results |= run((name,))
    missing = [name for name in wanted if results.get(name) is not Outcome.PASSED]
    return Verdict(
        direct_passed=len(reference.passed),
        routed_passed=sum(outcome is Outcome.PASSED for outcome in results.values()),
        missing=missing,
        retried=retried,
        hidden_on_purpose={name: f"{why.api}: {why.reason}" for name, why in hidden.items()},
        floor=floor,
    )
