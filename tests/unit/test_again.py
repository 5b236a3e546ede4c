"""Which failed tests run once more, alone, and what the second run's verdict does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import AGAIN, PROVOKED_BEFORE, SUMMARY, why_not

SLOW = {"tests/integration/test_rehearsal.py::test_live": "KeyError: 'real'"}
PASSES_ALONE = f"import os\n\ndef test_it():\n    assert {AGAIN!r} in os.environ, 'busy'\n"
FAILS_AGAIN = "def test_it():\n    assert False, 'busy'\n"


@pytest.mark.parametrize(
    ("failures", "whole", "expected"),
    [
        (SLOW, True, ""),
        (SLOW, False, "this was no run of all tests"),
        ({}, True, "no test has failed"),
        ({f"tests/integration/test_{n}.py::test": "x" for n in range(3)}, True, "3 tests have failed, more than 2"),
        ({"tests/unit/net/test_retry.py::test": "x"}, True, "does not depend on how busy the machine is"),
        (
            {"tests/integration/test_a.py::test": "AssertionError: lost 3 records\nassert 3 == 0"},
            True,
            "lost 3 records",
        ),
        ({"tests/integration/test_a.py::test": "assert {'duplicated': 1} == {}"}, True, "may tell of records"),
    ],
)
def test_a_second_run_follows_few_failures_that_do_not_tell_of_records(
    failures: dict[str, str], whole: bool, expected: str
) -> None:
    why = why_not({"failures": failures, "whole": whole})
    assert expected in why
    assert bool(why) == bool(expected)


@pytest.mark.parametrize(("source", "code"), [(PASSES_ALONE, 0), (FAILS_AGAIN, 1)])
def test_the_second_verdict_counts_and_the_first_failure_stays_in_the_summary(
    tmp_path: Path, source: str, code: int
) -> None:
    name = "tests/integration/test_busy.py"
    summary = json.dumps({"whole": True, "failures": {f"{name}::test_it": "AssertionError: busy"}})
    for path, text in ((name, source), (SUMMARY, summary), (PROVOKED_BEFORE, "[]")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "tests.again"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert f"Once more, with nothing beside: {name}::test_it" in done.stdout
    assert (tmp_path / SUMMARY).read_text(encoding="utf-8") == summary
