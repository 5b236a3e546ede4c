"""Whole live migrations between other Kafka versions than the demo's: old to new, new to old, and equal versions.

    python -m tests.soak.versions [--pair 2.8.2:3.9.1 ...] [--records 20000]

Each pair of source and target is a `kmigrate sandbox demo` in a process of its own: clients that live through the
migration, the playbook, and librdkafka as judge. Brokers before 3.3 run beside a ZooKeeper. The soak says for each pair
what was acknowledged, whether offsets stayed and how long producers stood at promotes. The soak writes
build/soak/versions.json; exit code 1 if a migration failed, or was not clean.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.figures import save

_PAIRS = ("2.8.2:3.9.1", "3.0.2:4.3.1", "3.3.2:3.8.1", "3.6.2:4.0.0", "4.1.1:4.3.1", "4.3.1:4.3.1", "4.3.1:3.9.1")
"""Pairs over each border where brokers change what they say.

The borders are KRaft (3.3), KIP-890 (3.6 and 4.0) and the end of old requests (4.0). A pair has equal versions, and a
pair goes back to an older version.
"""
_LIMIT_S = 600.0

say = Console(stderr=True, highlight=False).print


@dataclass(frozen=True)
class Row:
    """A migration: the figures of the demo's report, or the reason why there is no report."""

    source: str
    target: str
    clean: bool
    acked: int = 0
    offsets_identical: bool = False
    producer_pause_ms: float | None = None
    """The longest pause of a producer at a promote."""
    seconds: float = 0.0
    error: str = ""


def migrate(source: str, target: str, records: int, folder: Path) -> Row:
    """Run the demo between these two versions. Never raise for a migration that fails."""
    report = folder / f"{source}-{target}.json"
    words = [
        *(sys.executable, "-m", "kmigrate", "sandbox", "demo", "--json", "--records", str(records)),
        *("--source-version", source, "--target-version", target),
        *("--folder", str(folder / f"{source}-{target}"), "--report", str(report)),
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Row(source, target, clean=False, error=f"not done after {_LIMIT_S:.0f} s")
    if not report.is_file():
        return Row(source, target, clean=False, error=f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return row_of(source, target, json.loads(report.read_text(encoding="utf-8")))


def row_of(source: str, target: str, found: dict[str, Any]) -> Row:
    """Return the figures of a demo's report. The brokers must have had the versions that were asked for."""
    real = (found["source_version"], found["target_version"])
    error = "" if real == (source, target) else f"the brokers were {real[0]} and {real[1]}"
    return Row(
        source,
        target,
        clean=found["clean"] and not error,
        acked=found["acked"],
        offsets_identical=found["offsets_identical"],
        producer_pause_ms=found["producer_pause_ms"]["max"] if found["producer_pause_ms"] else None,
        seconds=found["seconds"],
        error=error or "; ".join(found["missed"]),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Migrate over each pair in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="append", metavar="SOURCE:TARGET", help="once or more; else all seven")
    parser.add_argument("--records", type=int, default=20_000, help="records in orders before each start")
    asked = parser.parse_args(words)
    rows = []
    with tempfile.TemporaryDirectory(prefix="kmigrate-versions-") as folder:
        for pair in asked.pair or _PAIRS:
            source, _, target = pair.partition(":")
            row = migrate(source, target, asked.records, Path(folder))
            rows.append(row)
            outcome = "clean" if row.clean else f"NOT CLEAN: {row.error}"
            offsets = "identical" if row.offsets_identical else "not identical"
            say(f"{source} -> {target}: {outcome}; {row.acked:,} acknowledged, offsets {offsets}, {row.seconds:.0f} s")
    where = save("soak/versions", {"clean": all(row.clean for row in rows), "pairs": [asdict(row) for row in rows]})
    say(f"{where}: {sum(row.clean for row in rows)} of {len(rows)} clean")
    return 0 if all(row.clean for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
