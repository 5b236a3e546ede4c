"""The copy of offset ranges as a Spark job: each task runs the mirror's own copier over the task's partitions.

A task's result says how the task's partitions ended. Every attempt reports progress in the link's presence log, as
mirror processes do, not to the driver. Retried and speculative tasks are further attempts, which change nothing (M1).
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException

import kmigrate
from kmigrate.errors import Failed
from kmigrate.mirror.bulk.ranges import Key
from kmigrate.mirror.bulk.task import BulkJob, Copied, copy_ranges
from kmigrate.spark.session import is_near

__all__ = ["executor_settings", "run_tasks"]

Ends = Mapping[Key, int]


@dataclass(frozen=True, slots=True)
class _Try:
    """The function that an executor runs; pickled by its name, so executors need kmigrate and its dependencies."""

    job: BulkJob
    run: str

    def __call__(self, number: int, tasks: Iterable[Ends]) -> Iterator[Copied]:
        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        for ends in tasks:
            instance = f"spark-{self.run}-{number}-{attempt}-{secrets.token_hex(3)}"
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                yield from runner.run(copy_ranges(self.job, ends, instance))


def run_tasks(context: SparkContext, job: BulkJob, tasks: Sequence[Ends], run: str) -> list[Copied]:
    """Run a job with a task for each of `tasks`, in the job group `run`, and block until all have ended."""
    context.setJobGroup(run, f"kmigrate: copy {sum(map(len, tasks))} partitions", interruptOnCancel=True)
    try:
        return context.parallelize(tasks, len(tasks)).mapPartitionsWithIndex(_Try(job, run)).collect()
    except (Py4JError, PySparkException) as error:
        raise Failed(
            "bulk-copy-failed",
            f"the Spark job ended: {_cause(str(error))}",
            still_true="every record that was copied stands at its own offset; the topic stays with Spark",
            next_step="repeat the command, it goes on from the target's own logs; or hand over with --engine daemon",
        ) from error


def executor_settings(master: str) -> dict[str, str]:
    """Return settings by which executors on this machine find this kmigrate; for other machines see docs/bulk.md."""
    here = str(Path(kmigrate.__file__).resolve().parents[1])
    return {"spark.executorEnv.PYTHONPATH": here} if is_near(master) else {}


def _cause(text: str) -> str:
    """Return kmigrate's own error inside Spark's text on a failed task, else the last line that names an error."""
    ours = re.findall(r"kmigrate\.errors\.\w+: (.+)", text)
    if ours:
        return str(ours[-1])
    named = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]+(Error|Exception)\b", line)]
    return named[-1] if named else text.strip().partition("\n")[0]
