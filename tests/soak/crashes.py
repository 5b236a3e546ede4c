"""A process dies at each of its durable writes, in promotes and rollbacks in turn: a rerun ends in a right state.

    python -m tests.soak.crashes [--engines controller,mirror,cli] [--most 30]

A durable write is a record of the state log, or a change of a topic, a config or an ACL. The process dies by SIGKILL
before its n-th write leaves, and in the next step once the n-th write is stored. n counts from 1 until the process
outlives a promote and a rollback, so no point is left out. A dead engine is started again, and a dead verb is repeated.
All the while an idempotent producer writes through a router. At the end both clusters must hold each of its records
once and in order, at the same offsets. The soak writes build/soak/crashes.json; exit code 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

from rich.console import Console

from kmigrate.sandbox.final_read import read_topic
from tests.bench.promote import differing
from tests.figures import save
from tests.integration.command_line import program
from tests.integration.dying import DIES_AT
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.router_world import Writer

__all__ = ["ENGINES", "CrashPoints", "Deaths"]

ENGINES = ("controller", "mirror", "cli")
_TOPIC, _PARTITIONS = "orders", 2
_DYING = "tests/integration/dying.py"
_SETTINGS = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 0.5\n"
_PATIENCE_S = 120.0

say = Console(stderr=True, highlight=False).print


def _words(verb: str) -> tuple[str, ...]:
    """Return the arguments of a promote that opens a way back, or of a rollback."""
    return (_TOPIC, "--way-back", "--yes") if verb == "promote" else (_TOPIC, "--yes")


@dataclass
class Deaths:
    """The deaths of a process, by the verb and by the write at which the process died."""

    engine: str
    points: list[str] = field(default_factory=list)


@dataclass
class CrashPoints:
    """A topic that is promoted and rolled back while processes die; `records` counts what the producer wrote."""

    run: Migration
    deaths: list[Deaths] = field(default_factory=list)
    flips: int = 0

    @contextmanager
    def traffic(self) -> Iterator[Writer]:
        """Mirror the topic, and let a producer write through the router."""
        run = self.run
        run.make_topic(_TOPIC, _PARTITIONS)
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "controller", "router")
        run.does("topic", "mirror", _TOPIC)
        with Writer(run.routers, _TOPIC, "writer", pause=0.01, partitions=_PARTITIONS) as writer:
            writer.until(20)
            yield writer

    def of(self, engine: str, first: int = 1, most: int = 30) -> None:
        """Let a process die at each of its writes from the `first` on, until the process outlives both verbs."""
        deaths = Deaths(engine)
        self.deaths.append(deaths)
        for number in range(first, first + most):
            outlived = True
            for moment in ("before", "after"):
                for verb in ("promote", "rollback"):
                    if self._dies(engine, verb, f"{moment}:{number}"):
                        deaths.points.append(f"{verb} {moment} {number}")
                        outlived = False
            if outlived:
                return

    def _dies(self, engine: str, verb: str, point: str) -> bool:
        """Carry out a verb while a process dies at a point; return whether the process died."""
        self._wait_for_copy()
        began = time.monotonic()
        died = self._verb_dies(verb, point) if engine == "cli" else self._engine_dies(engine, verb, point)
        self.flips += 1
        say(f"  {engine} {verb} {point}: {'died' if died else 'outlived'}, {time.monotonic() - began:.1f} s")
        return died

    def _verb_dies(self, verb: str, point: str) -> bool:
        command = program(_DYING, verb, *_words(verb), "--config", str(self.run.config), "--json")
        done = subprocess.run(
            command, env={**os.environ, DIES_AT: point}, capture_output=True, timeout=_PATIENCE_S, check=False
        )
        assert done.returncode <= 0, done.stdout
        self.run.does(verb, *_words(verb))
        return done.returncode < 0

    def _engine_dies(self, engine: str, verb: str, point: str) -> bool:
        run = self.run
        run.kill(engine)
        with mock.patch.dict(os.environ, {DIES_AT: point}):
            run.start(engine, by=(_DYING,))
        process = run.engines[engine]

        def dies() -> None:
            wait_until(lambda: process.poll() is not None or self._flipped(verb), _PATIENCE_S, f"the end of {verb}")
            if process.poll() is not None:
                run.start(engine)

        run.again(verb, *_words(verb), during=dies)
        if process.poll() is None:
            run.kill(engine)
            run.start(engine)
            return False
        if run.engines[engine] is process:
            run.start(engine)
        return True

    def _flipped(self, verb: str) -> bool:
        record = self.run.topic_record(_TOPIC)
        return record["phase"] == ("promoted" if verb == "promote" else "mirroring") and not record["unsettled"]

    def _wait_for_copy(self) -> None:
        """Wait until the mirror copies the topic in the present direction, in the new era."""

        def copies() -> bool:
            return not any(each["problem"] for each in self.run.topic_status(_TOPIC)["partitions"])

        wait_until(copies, 60, "the copy to go on")

    def judge(self, writer: Writer) -> int:
        """Check that both clusters hold each record once and in order, at equal offsets; return the number."""
        writer.finish()
        assert not writer.errors, writer.errors
        wait_until(self._ends_agree, 60, "both logs to end at the same offset")
        records = sorted(read_topic(self.run.target.bootstrap, _TOPIC), key=lambda each: (each.partition, each.offset))
        for partition, sent in writer.sent.items():
            assert [each.value for each in records if each.partition == partition] == sent
        assert differing(read_topic(self.run.source.bootstrap, _TOPIC), records) == 0
        return len(records)

    def _ends_agree(self) -> bool:
        partitions = self.run.topic_status(_TOPIC)["partitions"]
        return all(each["source_end"] == each["target_end"] for each in partitions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--most", type=int, default=30, help="greatest number of writes of a process")
    given = parser.parse_args()
    began = time.monotonic()
    found: dict[str, object] = {"clean": False}
    with tempfile.TemporaryDirectory(prefix="kmigrate-crashes-") as folder:
        for engine in given.engines.split(","):
            with fresh_migration(Path(folder, engine), _SETTINGS) as run:
                points = CrashPoints(run)
                with points.traffic() as writer:
                    points.of(engine, most=given.most)
                    records = points.judge(writer)
            found[engine] = {"flips": points.flips, "records": records, **asdict(points.deaths[0])}
    found |= {"clean": True, "seconds": round(time.monotonic() - began)}
    say(f"{save('soak/crashes', found)}: clean, {found['seconds']} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
