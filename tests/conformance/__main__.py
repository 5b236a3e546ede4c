"""Foreign test suites on a plain broker, and through the router.

    python -m tests.conformance direct [--suite kgo] [--runs 3]
    python -m tests.conformance routed [--suite kgo]

`direct` writes the reference lists tests/conformance/<suite>.json. `routed` compares with the lists and writes
build/conformance.json. The exit code is not 0 if anything is missing, a floor is not met or a suite did not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from kmigrate.errors import KmigrateError
from tests.conformance.java_tools import JavaTools
from tests.conformance.kafka_python import KafkaPython
from tests.conformance.kafka_python_2 import KafkaPython2
from tests.conformance.kgo import Kgo
from tests.conformance.reference import kept_reference, reference_of
from tests.conformance.rust import Librdkafka, Rdkafka
from tests.conformance.sarama import Sarama
from tests.conformance.stage import direct, routed
from tests.conformance.suite import Results, Suite
from tests.conformance.verdict import Verdict, did_not_run, judge

_SUITES: tuple[Suite, ...] = (KafkaPython(), Librdkafka(), Kgo(), Rdkafka(), JavaTools(), Sarama(), KafkaPython2())
SUITES = {suite.name: suite for suite in _SUITES}
LOGS = Path("build/conformance")
"""The folder for the output of each run of a suite."""

say = Console(stderr=True, highlight=False).print


def run_direct(suite: Suite, runs: int) -> None:
    """Run a suite several times, each time on a broker of its own, and keep the list."""
    suite.prepare()
    told: list[Results] = []
    for number in range(1, runs + 1):
        began = time.monotonic()
        with direct(suite) as place:
            told.append(suite.run(place))
            _keep_log(place.log, f"{suite.name}-direct-{number}")
        say(f"  {suite.name}, direct run {number}: {len(told[-1])} tests, {time.monotonic() - began:.0f} s")
    made = reference_of(suite, told)
    path = made.keep()
    counts = {"passed": made.passed, "flaky": made.flaky, "failed": made.failed, "skipped": made.skipped}
    say(f"{path}: " + ", ".join(f"{len(names)} {kind}" for kind, names in counts.items()))


def run_routed(suite: Suite) -> Verdict:
    """Run a suite through a router. A suite that cannot be run is a verdict, too."""
    began = time.monotonic()
    try:
        reference = kept_reference(suite)
        suite.prepare()
        with routed(suite) as place:

            def run(names: Collection[str]) -> Results:
                if names:
                    say(f"  {suite.name}: once more {', '.join(names)}")
                return suite.run(place, names)

            try:
                verdict = judge(reference, suite.floor, run)
            finally:
                _keep_log(place.log, f"{suite.name}-routed")
    except KmigrateError as error:
        verdict = did_not_run(str(error), suite.floor)
    verdict.seconds = round(time.monotonic() - began)
    say(f"{suite.name}: {verdict.routed_passed} passed of {verdict.direct_passed} direct, {verdict.seconds} s")
    for fault in verdict.faults:
        say(f"  {fault}")
    return verdict


def _keep_log(log: Path, name: str) -> None:
    LOGS.mkdir(parents=True, exist_ok=True)
    if log.exists():
        (LOGS / f"{name}.log").write_bytes(log.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=["direct", "routed"])
    parser.add_argument("--suite", choices=list(SUITES), action="append", help="only this one; may be repeated")
    parser.add_argument("--runs", type=int, default=3, help="of a suite on a plain broker")
    chosen = parser.parse_args()
    suites = [SUITES[name] for name in chosen.suite or SUITES]
    if chosen.way == "direct":
        try:
            for suite in suites:
                run_direct(suite, chosen.runs)
        except KmigrateError as error:
            say(str(error))
            return error.exit_code
        return 0
    verdicts = {suite.name: run_routed(suite) for suite in suites}
    path = Path("build/conformance.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: each.as_json() for name, each in verdicts.items()}, indent=2) + "\n", "utf-8")
    broken = [name for name, verdict in verdicts.items() if verdict.faults]
    say(f"{path}: {'nothing missing' if not broken else 'faults in ' + ', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
