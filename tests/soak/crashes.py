"""A process dies at each of its durable writes, in promotes and rollbacks in turn: a rerun ends in a right state.

    python -m tests.soak.crashes [--engines controller,mirror,router,cli] [--cycles topic,group] [--first 1] [--most 40]

`tests/integration/dying.py` says what a durable write is. The process dies by SIGKILL before its n-th write leaves, and
in the next step once the n-th write is stored. n counts from 1 until the process outlives all verbs of a cycle, so no
point is left out. A dead engine is started again, and a dead verb is repeated. All the while an idempotent producer
writes through a router.

The cycle `topic` promotes a topic and rolls the topic back, and the cycle `group` does so with a group. At the end both
clusters must hold each record once and in order, at the same offsets, and both must have the group's committed offsets.
With all engines and cycles, each kind of record that was written to the state log must also be a point at which a
process died. The soak writes build/soak/crashes.json; exit code 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from confluent_kafka import TopicPartition
from rich.console import Console

from kmigrate.cli.base.exits import Exit
from kmigrate.sandbox.final_read import FinalRecord, read_topic
from kmigrate.state.codec import read_envelope
from kmigrate.state.topics import STATE_TOPIC
from tests.bench.promote import differing
from tests.figures import save
from tests.integration.command_line import program
from tests.integration.dying import DIES_AT, WRITES_TO, name_of
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.positions import commit_positions, committed_positions
from tests.integration.router_world import Writer

__all__ = ["CYCLES", "ENGINES", "CrashPoints", "Deaths", "Point", "Step"]

ENGINES = ("controller", "mirror", "router", "cli")
CYCLES = ("topic", "group")
_TOPIC, _PARTITIONS, _GROUP = "orders", 2, "readers"
_POSITIONS = {0: 3, 1: 4}
"""The group's committed offsets."""
_DYING = "tests/integration/dying.py"
_SETTINGS = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 0.5\n"
_PATIENCE_S = 120.0

say = Console(stderr=True, highlight=False).print


class Step(NamedTuple):
    """A verb, and how a look at the state shows that the verb is done."""

    words: tuple[str, ...]
    is_done: Callable[[], bool]


class Point(NamedTuple):
    """A point at which a process died."""

    verb: str
    moment: str
    number: str
    write: str
    """The name of the durable write."""


@dataclass
class Deaths:
    """The deaths of a process in a cycle."""

    engine: str
    cycle: str
    points: list[Point] = field(default_factory=list)
    outlived: bool = False
    """True if the process has no more durable writes in the cycle."""


@dataclass
class CrashPoints:
    """A topic and a group that go to and fro while processes die."""

    run: Migration
    deaths: list[Deaths] = field(default_factory=list)
    steps: int = 0
    _notes: list[Path] = field(default_factory=list)
    """Files with the names of the durable writes, one for each engine or verb of the cycles."""
    _beside: list[Path] = field(default_factory=list)
    """The same of verbs that only prepare a step."""
    _begun_at: int = 0
    """The first offset of the state log that belongs to the cycles."""

    @contextmanager
    def traffic(self) -> Iterator[Writer]:
        """Mirror the topic, and let a producer write through the router."""
        run = self.run
        run.make_topic(_TOPIC, _PARTITIONS)
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        for engine in ("mirror", "controller", "router"):
            self._start(engine)
        run.does("topic", "mirror", _TOPIC)
        with Writer(run.routers, _TOPIC, "writer", {"log_level": 0}, pause=0.01, partitions=_PARTITIONS) as writer:
            writer.until(20)
            self._begun_at = self._state_log()[-1].offset + 1
            yield writer

    def of(self, engine: str, cycle: str, first: int = 1, most: int = 40) -> Deaths:
        """Let a process die at each of its writes from the `first` on, until the process outlives a cycle."""
        deaths = Deaths(engine, cycle)
        self.deaths.append(deaths)
        for number in range(first, first + most):
            before = len(deaths.points)
            for moment in ("before", "after"):
                for step in self.cycle(cycle):
                    if (point := self.at(engine, step, moment, str(number))) is not None:
                        deaths.points.append(point)
            if len(deaths.points) == before:
                deaths.outlived = True
                break
        return deaths

    def at(self, engine: str, step: Step, moment: str, chosen: str) -> Point | None:
        """Carry out a step while a process dies at a write, given by its number or name; None if the process lives."""
        self._wait_for_copy()
        began = time.monotonic()
        dying = self._verb_dies if engine == "cli" else partial(self._engine_dies, engine)
        written = dying(step, f"{moment}:{chosen}")
        self.steps += 1
        verb = " ".join(word for word in step.words if not word.startswith("--"))
        ended = f"died at {written[-1]}" if written else "outlived"
        say(f"  {engine}, {verb}, {moment} {chosen}: {ended}, {time.monotonic() - began:.1f} s")
        return Point(verb, moment, chosen, written[-1]) if written else None

    def cycle(self, name: str) -> Iterator[Step]:
        """Yield the steps of a cycle; each step must be carried out before the next."""
        if name == "topic":
            yield Step(("promote", _TOPIC, "--way-back", "--yes"), lambda: self._has_settled("promoted"))
            yield Step(("rollback", _TOPIC, "--yes"), lambda: self._has_settled("mirroring"))
            return
        self._mirror_group()
        yield Step(("group", "promote", _GROUP, "--yes"), lambda: self._phase_of_group() == "promoted")
        yield Step(("group", "rollback", _GROUP, "--yes"), lambda: self._phase_of_group() == "mirrored")

    def _mirror_group(self) -> None:
        """Mirror a group with committed offsets, if that is not done yet."""
        if not self.run.does("group", "list")["groups"]:
            positions = [TopicPartition(_TOPIC, partition, offset) for partition, offset in _POSITIONS.items()]
            commit_positions(self.run.source.client(), _GROUP, positions)
            with self._noting(self._beside):
                assert self._call("group", "mirror", _GROUP) == 0

    def _noting(self, notes: list[Path], dies_at: str = "") -> AbstractContextManager[object]:
        """Return the environment of a process whose durable writes are noted, and which dies at a write."""
        notes.append(self.run.folder / f"written-{len(self._notes)}-{len(self._beside)}")
        return mock.patch.dict(os.environ, {DIES_AT: dies_at, WRITES_TO: str(notes[-1])})

    def _start(self, engine: str, dies_at: str = "") -> None:
        with self._noting(self._notes, dies_at):
            self.run.start(engine, by=(_DYING,), awaited=not dies_at)

    def _call(self, *words: str) -> int:
        """Run a verb by `dying.py`, in the present environment; return the exit code, negative for a death."""
        command = program(_DYING, *words, "--config", str(self.run.config), "--json")
        return subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False).returncode

    def _verb_dies(self, step: Step, dies_at: str) -> list[str]:
        """Run a verb that dies, and repeat the verb; return its writes until its death, and none if the verb lives."""
        with self._noting(self._notes, dies_at):
            code = self._call(*step.words)
        assert code <= 0, f"{step.words} ended with exit code {code}"
        self.run.does(*step.words)
        return _noted(self._notes[-1]) if code < 0 else []

    def _engine_dies(self, engine: str, step: Step, dies_at: str) -> list[str]:
        """Run a verb while an engine dies and is started again; return the engine's writes as `_verb_dies` does."""
        run = self.run
        run.kill(engine)
        self._start(engine, dies_at)
        process, notes = run.engines[engine], self._notes[-1]

        def waited(reached: Callable[[], bool]) -> None:
            wait_until(lambda: process.poll() is not None or reached(), _PATIENCE_S, f"the end of {step.words}")
            if process.poll() is not None and run.engines[engine] is process:
                self._restart(engine)

        if engine == "router":
            waited(self._router_listens)
            self._forget_dead_router()
        run.again(*step.words, during=lambda: waited(step.is_done))
        died = process.poll() is not None
        if not died:
            run.kill(engine)
        if run.engines[engine] is process:
            self._restart(engine)
        return _noted(notes) if died else []

    def _restart(self, engine: str) -> None:
        """Start a dead engine again, as an operator does."""
        self._start(engine)
        if engine == "router":
            self._forget_dead_router()

    def _router_listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.run.ports["router"])) == 0

    def _forget_dead_router(self) -> None:
        """Say that earlier processes of the router have ended, if any: otherwise no promote has a way back."""
        with self._noting(self._beside):
            assert self._call("router", "forget", "router", "--dead", "--yes") in (Exit.OK, Exit.REFUSED)

    def _has_settled(self, phase: str) -> bool:
        record = self.run.topic_record(_TOPIC)
        return record["phase"] == phase and not record["unsettled"]

    def _phase_of_group(self) -> str:
        (found,) = self.run.does("group", "list")["groups"]
        return str(found["phase"])

    def _wait_for_copy(self) -> None:
        """Wait until the mirror copies the topic in the present direction, in the new era."""

        def copies() -> bool:
            return not any(each["problem"] for each in self.run.topic_status(_TOPIC)["partitions"])

        wait_until(copies, 60, "the copy to go on")

    def judge(self, writer: Writer) -> int:
        """Check the records of both clusters and the groups' committed offsets; return the number of records."""
        writer.finish()
        assert not writer.errors, writer.errors
        wait_until(self._ends_agree, 60, "both logs to end at the same offset")
        records = sorted(read_topic(self.run.target.bootstrap, _TOPIC), key=lambda each: (each.partition, each.offset))
        for partition, sent in writer.sent.items():
            assert [each.value for each in records if each.partition == partition] == sent
        assert differing(read_topic(self.run.source.bootstrap, _TOPIC), records) == 0
        if self.run.does("group", "list")["groups"]:
            assert self._phase_of_group() == "mirrored"
            for cluster in (self.run.source, self.run.target):
                assert committed_positions(cluster.client(), _GROUP, _TOPIC) == _POSITIONS
        return len(records)

    def _ends_agree(self) -> bool:
        partitions = self.run.topic_status(_TOPIC)["partitions"]
        return all(each["source_end"] == each["target_end"] for each in partitions)

    def _state_log(self) -> list[FinalRecord]:
        return list(read_topic(self.run.target.bootstrap, STATE_TOPIC))

    def written(self) -> set[str]:
        """Return the names of the records that engines and verbs wrote to the state log in the cycles."""
        found = {_name_in_log(each) for each in self._state_log() if each.offset >= self._begun_at}
        return found - (set(_noted(*self._beside)) - self.noted())

    def noted(self) -> set[str]:
        """Return the names of all durable writes that passed through the points of `tests/integration/dying.py`."""
        return set(_noted(*self._notes))


def _noted(*notes: Path) -> list[str]:
    return [name for each in notes if each.exists() for name in each.read_text(encoding="utf-8").splitlines()]


def _name_in_log(stored: FinalRecord) -> str:
    record = read_envelope(stored.value).decoded().record if stored.value is not None else None
    return name_of((stored.key or b"").decode(), record)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--cycles", default=",".join(CYCLES))
    parser.add_argument("--first", type=int, default=1, help="number of the first write at which a process dies")
    parser.add_argument("--most", type=int, default=40, help="greatest number of writes of a process")
    given = parser.parse_args()
    began = time.monotonic()
    deaths: list[Deaths] = []
    found: dict[str, object] = {"clean": False}
    written: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="kmigrate-crashes-") as folder:
        for engine in given.engines.split(","):
            for cycle in given.cycles.split(","):
                with fresh_migration(Path(folder, f"{engine}-{cycle}"), _SETTINGS) as run:
                    points = CrashPoints(run)
                    with points.traffic() as writer:
                        points.of(engine, cycle, given.first, given.most)
                        records = points.judge(writer)
                    written |= points.written()
                deaths += points.deaths
                found[f"{engine} {cycle}"] = {"steps": points.steps, "records": records, **asdict(points.deaths[0])}
    left = written - {point.write for each in deaths for point in each.points}
    is_whole = given.first == 1 and all(each.outlived for each in deaths)
    is_whole = is_whole and len(deaths) == len(ENGINES) * len(CYCLES)
    clean = not (is_whole and left)
    found |= {"whole": is_whole, "left_out": sorted(left), "clean": clean, "seconds": round(time.monotonic() - began)}
    say(f"{save('soak/crashes', found)}: {'clean' if clean else 'NOT CLEAN'}, {found['seconds']} s")
    return 0 if clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
