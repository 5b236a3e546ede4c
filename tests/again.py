"""Runs a whole run's failed tests once more, alone: `make test` asks for it after a failure.

Tests on real brokers share two cores with other tests, and a busy machine stalls for seconds. A test that fails only
then says nothing about the product. So one or two failed tests run again with nothing beside them, on new clusters.
Their second verdict counts, and the first failure stays in build/test/summary.json under `failures`.

No second run follows more than two failures, a unit test, or a failure that tells of records: a record that is lost,
duplicated or reordered once is a fault, however busy the machine is.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["AGAIN", "PROVOKED_BEFORE", "SUMMARY", "why_not"]

AGAIN = "KMIGRATE_TEST_AGAIN"
"""Environment variable of the second run."""
SUMMARY = Path("build/test/summary.json")
PROVOKED_BEFORE = Path("build/test/provoked.json")
"""The references that the first run has provoked."""
_MOST = 2
_RECORDS = re.compile(r"lost|doubl|duplic|reorder|misplac|anomal|mismatch|missing|differ", re.IGNORECASE)


def why_not(summary: dict[str, Any]) -> str:
    """Return why the failed tests of a run do not run again; '' if they do."""
    failures = summary["failures"]
    if not summary["whole"]:
        return "this was no run of all tests"
    if not failures:
        return "no test has failed"
    if len(failures) > _MOST:
        return f"{len(failures)} tests have failed, more than {_MOST}"
    for test, message in failures.items():
        if not test.startswith("tests/integration/"):
            return f"{test} does not depend on how busy the machine is"
        if _RECORDS.search(message):
            return f"{test} may tell of records: {message.splitlines()[0]}"
    return ""


def main() -> int:
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    if why := why_not(summary):
        print(f"The failed tests do not run again: {why}.")
        return 1
    tests = list(summary["failures"])
    print(f"Once more, with nothing beside: {', '.join(tests)}", flush=True)
    words = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:xdist", *tests]
    return subprocess.run(words, env=os.environ | {AGAIN: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
