"""Remembers the references of all errors and findings that the product makes during a run of tests.

After a run of all tests each reference of the registry was provoked, or a test names the reference: errors of other
processes and reports of the mirror are no objects of this process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kmigrate.cli.base.references import references
from kmigrate.errors import KmigrateError
from kmigrate.workflow.base.plan import Finding
from tests.references import named_in

__all__ = ["PROVOKED", "faults_of_all_tests", "record"]

PROVOKED: set[str] = set()
"""References that the product has raised or found in this process."""
_MAKERS = frozenset({"kmigrate.errors", "kmigrate.workflow.base.plan"})
"""Modules that only make what another module asks for."""


def _by_product() -> bool:
    """Return whether the product makes an error or finding now; a test makes many of its own."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (*_MAKERS, __name__):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("kmigrate.")


def record() -> None:
    """From now on record the references of errors and findings."""
    for kind in (KmigrateError, Finding):
        kind.__init__ = _recording(kind.__init__)  # type: ignore[method-assign]


def _recording(make: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        if _by_product():
            PROVOKED.add(self.ref)

    return made


def faults_of_all_tests(provoked: set[str]) -> list[str]:
    """Return what is wrong after a run of all tests: references without an explanation, or never provoked."""
    known = references().keys()
    named = named_in(Path(__file__).parent)
    unknown = sorted(provoked - known - named)  # what a test makes and the product passes on is named by that test
    never = sorted(known - provoked - named)
    return [
        *(f"{ref} has no explanation in kmigrate/cli/base/references.toml" for ref in unknown),
        *(f"{ref} is provoked by no test" for ref in never),
    ]
