"""Example programs of a library: a writer and a reader in a group, which work on through both promotes.

A scene starts the reader before the writer. In the middle of the writing the group is promoted, then the topic. The
scene is judged by what both programs print: each written record is read once and in order, and no error is printed.
"""

from __future__ import annotations

import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from tests.conformance.suite import Hidden, Outcome, Place, Results, built

__all__ = ["MODES", "Program", "ProgramSuite", "Programs", "SceneFailed", "judge_reading", "run_scenes"]

MODES = ("follow", "hold")
_LIMIT_S = 180.0
_PARTITIONS = 3
_HELD_S = 50.0
"""Time for which a group holds: the router answers more than two joins of a member (`kmigrate.router.groups.hold`)."""
_RATE = 200

Read = tuple[int, int]
"""Partition and offset of a record that the reader has printed."""


class SceneFailed(Exception):
    """A scene did not end as it must."""


class Programs(Protocol):
    """The commands of a library's programs, and how to read what the programs print."""

    record: str
    """Regular expression of the line that the reader prints for a record, with the groups `partition` and `offset`."""
    error: str
    """Regular expression of a line that tells of an error."""

    def writer(self, place: Place, topic: str, count: int, rate: int) -> Sequence[str]: ...

    def reader(self, place: Place, topic: str, group: str) -> Sequence[str]: ...


class ProgramSuite(ABC):
    """A suite of a library's programs: each test is the scene of a mode."""

    name: str
    package: str
    version: str
    settings: Mapping[str, str]
    record: str
    error: str
    floor = len(MODES)
    broker: Mapping[str, str] = {}
    hidden: Mapping[str, Hidden] = {}

    def __init__(self) -> None:
        self._count = 0

    def prepare(self) -> None:
        self.folder()

    def folder(self) -> Path:
        return built(self, self.build)

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        self._count += 1
        return run_scenes(self, place, [mode for mode in MODES if not only or mode in only], self._count)

    @abstractmethod
    def build(self, folder: Path) -> None:
        """Fetch and build the programs into a folder."""

    @abstractmethod
    def writer(self, place: Place, topic: str, count: int, rate: int) -> Sequence[str]: ...

    @abstractmethod
    def reader(self, place: Place, topic: str, group: str) -> Sequence[str]: ...


@dataclass
class Program:
    """A running program, with its output in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def lines(self) -> list[str]:
        return self.output.read_text("utf-8", errors="replace").splitlines()

    def wait_for(self, true: Callable[[], bool], what: str) -> None:
        """Wait until something is true; a program that ends meanwhile has failed."""
        deadline = time.monotonic() + _LIMIT_S
        while not true():
            if self.process.poll() is not None:
                raise SceneFailed(f"a program ended with {self.process.returncode} before {what}: {self.lines()[-5:]}")
            if time.monotonic() > deadline:
                raise SceneFailed(f"not within {_LIMIT_S:.0f} s: {what}")
            time.sleep(0.2)


@contextmanager
def _running(command: Sequence[str], output: Path) -> Iterator[Program]:
    with (
        output.open("wb") as sink,
        subprocess.Popen(command, cwd=output.parent, stdout=sink, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield Program(process, output)
        finally:
            process.kill()


def run_scenes(programs: Programs, place: Place, names: Sequence[str], number: int) -> Results:
    """Run the scene of each mode in `names`; `number` keeps the topics of a repeated scene apart."""
    found: Results = {}
    for mode in names:
        try:
            _through_both_promotes(programs, place, mode, f"{mode}-{number}")
            found[mode] = Outcome.PASSED
        except SceneFailed as failed:
            found[mode] = Outcome.FAILED
            with place.log.open("a", encoding="utf-8") as log:
                log.write(f"{mode}: {failed}\n")
    return found


def _through_both_promotes(programs: Programs, place: Place, mode: str, name: str) -> None:
    place.promotion.mirror(name, _PARTITIONS)
    place.promotion.mirror_group(name, mode)
    seconds = 20.0 + (_HELD_S if mode == "hold" else 0.0)
    count = round(seconds * _RATE)
    writing, reading = (place.folder / f"{name}.{who}.log" for who in ("writer", "reader"))
    with _running(programs.reader(place, name, name), reading) as reader:
        begun = time.monotonic()
        with _running(programs.writer(place, name, count, _RATE), writing) as writer:
            if mode == "hold":
                reader.wait_for(lambda: time.monotonic() - begun > _HELD_S, "the group has held")
            else:
                reader.wait_for(lambda: len(_read(programs, reader)) > count // 10, "the first records")
            place.promotion.promote_group(name)
            place.promotion.promote(name)
            if writer.process.wait(_LIMIT_S) != 0:
                raise SceneFailed(f"the writer ended with {writer.process.returncode}: {writer.lines()[-5:]}")
        reader.wait_for(lambda: len(_read(programs, reader)) >= count, f"{count} records")
        time.sleep(2.0)  # a record that is read twice would come now
        told = [*reader.lines(), *writer.lines()]
        if errors := [line for line in told if re.search(programs.error, line)]:
            raise SceneFailed(f"the application saw {len(errors)} errors: {errors[:5]}")
        judge_reading(_read(programs, reader), count)


def _read(programs: Programs, reader: Program) -> list[Read]:
    found = (re.search(programs.record, line) for line in reader.lines())
    return [(int(each["partition"]), int(each["offset"])) for each in found if each is not None]


def judge_reading(read: Sequence[Read], count: int) -> None:
    """Raise SceneFailed unless the records are all that were written, once each, and in order in each partition."""
    by_partition: dict[int, list[int]] = {}
    for partition, offset in read:
        by_partition.setdefault(partition, []).append(offset)
    doubled = len(read) - len(set(read))
    lost = sum(max(offsets) + 1 - len(set(offsets)) for offsets in by_partition.values())
    disordered = sum(before >= after for each in by_partition.values() for before, after in pairwise(each))
    if doubled or lost or disordered or len(read) != count:
        told = f"{lost} lost, {doubled} doubled, {disordered} disordered"
        raise SceneFailed(f"{len(read)} records were read of {count} written: {told}")
