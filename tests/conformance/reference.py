"""The outcomes of a suite on a plain broker, kept beside this module as <suite>.json.

A test is steady if every run had the same outcome. Any other test is flaky, also a test that a run did not report. Only
steady passes are demanded of the router.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kmigrate.errors import Failed, Refused
from tests.conformance.stage import BROKER
from tests.conformance.suite import BROKER_VERSION, Hidden, Outcome, Results, Suite

__all__ = ["Reference", "kept_reference", "reference_of"]


@dataclass
class Reference:
    """The outcome of each test over some direct runs, and the versions and settings of these runs."""

    suite: str
    package: str
    version: str
    settings: dict[str, str]
    broker: str
    broker_settings: dict[str, str]
    runs: int
    passed: list[str]
    flaky: list[str]
    failed: list[str]
    skipped: list[str]
    hidden_on_purpose: dict[str, Hidden] = field(default_factory=dict)

    def keep(self) -> Path:
        path = _path(self.suite)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        return path

    def made_by(self, suite: Suite) -> bool:
        """Return whether the reference is of this version with these settings."""
        made: tuple[Any, ...] = (self.package, self.version, self.settings, self.broker, self.broker_settings)
        return made == _made(suite)


def reference_of(suite: Suite, runs: Sequence[Results]) -> Reference:
    """Return the reference that some runs make. A passing test that is hidden on purpose is named with its reason."""
    if not all(runs):
        raise Failed("suite-reported-nothing", f"a direct run of {suite.name} reported no test: see its log in build/")
    told: dict[Outcome | None, list[str]] = {Outcome.PASSED: [], Outcome.FAILED: [], Outcome.SKIPPED: [], None: []}
    for name in sorted(set().union(*runs)):
        outcomes = {run.get(name) for run in runs}
        told[outcomes.pop() if len(outcomes) == 1 else None].append(name)
    passed = told[Outcome.PASSED]
    hidden = {name: why for name, why in suite.hidden.items() if name in passed}
    return Reference(
        suite.name, *_made(suite), len(runs), passed, told[None], told[Outcome.FAILED], told[Outcome.SKIPPED], hidden
    )


def kept_reference(suite: Suite) -> Reference:
    """Return the kept reference of this version with these settings. Another reference says nothing about this run."""
    path = _path(suite.name)
    next_step = f"make it: make conformance-direct SUITE={suite.name}"
    if not path.exists():
        raise Refused("no-reference", f"{path.name} does not exist", next_step=next_step)
    kept = json.loads(path.read_text(encoding="utf-8"))
    hidden = {name: Hidden(**why) for name, why in kept.pop("hidden_on_purpose").items()}
    reference = Reference(**kept, hidden_on_purpose=hidden)
    if not reference.made_by(suite):
        raise Refused("reference-of-another-run", f"{path.name} was made with other settings", next_step=next_step)
    return reference


def _made(suite: Suite) -> tuple[str, str, dict[str, str], str, dict[str, str]]:
    return suite.package, suite.version, dict(suite.settings), BROKER_VERSION, {**BROKER, **suite.broker}


def _path(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.json")
