"""The readings of a benchmark from a process and a log: CPU seconds, resident memory, the progress of a copy."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

__all__ = ["CopyRun", "EndReader", "TreePeak", "cpu_seconds", "measure_copy", "peak_rss_mb", "spread"]

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} tells no VmHWM")


class TreePeak:
    """The peak memory of a process and of all that the process starts, looked at while the block runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peaks: dict[int, float] = {}
        self._over = threading.Event()
        self._looker = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> TreePeak:
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looker.join()

    @property
    def mb(self) -> float:
        return sum(self._peaks.values())

    def _look(self) -> None:
        while not self._over.wait(0.1):
            waiting = [self._pid]
            while waiting:
                pid = waiting.pop()
                # A process may be gone between two looks; its last peak counts.
                with contextlib.suppress(OSError, ValueError):
                    self._peaks[pid] = peak_rss_mb(pid)
                    waiting += [child for child in _children(pid) if _first_mapping(child) != _first_mapping(pid)]


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text(encoding="utf-8").split()]


def _first_mapping(pid: int) -> str:
    """Return the first line of a process's memory map; a child that has not called exec yet has its parent's memory.

    The kernel shows the parent's memory for such a child, too: counted twice, it doubled a peak now and then.
    """
    with Path(f"/proc/{pid}/maps").open(encoding="utf-8") as maps:
        return maps.readline()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, minimum and maximum of several runs."""
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


class EndReader:
    """The sum of a topic's log ends, as librdkafka reads them; 0 while the topic is not there."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-ends", "log_level": 0})

    def read(self) -> int:
        try:
            return sum(
                self._consumer.get_watermark_offsets(TopicPartition(self._topic, p), timeout=5)[1]
                for p in range(self._partitions)
            )
        except KafkaException:
            return 0

    def close(self) -> None:
        self._consumer.close()


@dataclass(frozen=True)
class CopyRun:
    """A copy of the whole topic, from its first record on the target to its last."""

    seconds: float
    records: int
    cpu_s: float
    rss_mb: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


def measure_copy(ends: EndReader, records: int, pid: int, alive: Callable[[], bool], *, patience_s: float) -> CopyRun:
    """Wait until `records` are on the target. The clock runs from the first sight of any record."""
    deadline = time.monotonic() + patience_s
    first: tuple[float, float, int] | None = None
    while True:
        seen, now = ends.read(), time.monotonic()
        if first is None and seen:
            first = now, cpu_seconds(pid), seen
        if first is not None and seen >= records:
            return CopyRun(now - first[0], records - first[2], cpu_seconds(pid) - first[1], peak_rss_mb(pid))
        if not alive():
            raise RuntimeError(f"the copier ended at {seen} of {records} records")
        if now > deadline:
            raise RuntimeError(f"{seen} of {records} records after {patience_s:.0f} s")
        time.sleep(0.02)
