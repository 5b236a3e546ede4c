"""A Spark session that keeps quiet: the JVM writes to a log file, never to our stdout or stderr.

The command line prints a single JSON document on stdout, where neither spark-submit, Ivy nor log4j may print. PySpark's
own gateway starts the JVM with redirected output, and reads our end of a pipe, so the JVM ends with this process.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from kmigrate.errors import Failed
from kmigrate.kafka_jars.jars import SPARK_CONNECTOR

__all__ = ["CONNECTOR", "Progress", "brings_connector", "is_near", "session_settings", "spark_session", "watched"]

CONNECTOR = ":".join(SPARK_CONNECTOR)

Progress = Callable[[str, int, int], None]  # stage, tasks done, all tasks

POLL_SECONDS = 0.25
STOP_SECONDS = 20

DEFAULTS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",  # a few thousand rows are shuffled: nothing to adapt
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_HEAP_MB, _HEAP_MB_OF_TASK = 768, 128
"""Heap of a driver that runs the tasks itself, MB: a base, and more for each task.

A task holds a fetch of each partition and the fetch read ahead. Each record is garbage once read, so a check fills any
heap: a higher limit makes the process larger and the check no faster. With 512 MB for two tasks and Java's default
collector, checks of 200,000 records ran out of memory.
"""

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# Only for executors on this machine: executors elsewhere could not reach the driver at this address.
ON_THIS_MACHINE: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

# A caller that gives one of these settings has brought the Kafka connector.
CONNECTOR_SETTINGS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


def brings_connector(conf: Mapping[str, str]) -> bool:
    """Return whether the settings name jars. Then none of our jars are wanted and nothing is downloaded."""
    return any(name in conf for name in CONNECTOR_SETTINGS)


@contextmanager
def spark_session(
    *,
    master: str = "local[*]",
    jars: Sequence[Path] = (),
    java_home: Path | None = None,
    conf: Mapping[str, str] | None = None,
    connector: bool = True,
) -> Iterator[SparkSession]:
    """Open a session for the time of a with block. Ivy resolves a connector that is needed and not named."""
    settings = session_settings(master, jars, conf or {}, connector=connector)
    config = SparkConf(loadDefaults=False).setMaster(master).setAppName("kmigrate")
    config.setAll(list(settings.items()))
    with tempfile.TemporaryDirectory(prefix="kmigrate-spark-") as folder:
        log = Path(folder) / "spark.log"
        config.setIfMissing("spark.local.dir", folder)
        config.setIfMissing("spark.sql.warehouse.dir", str(Path(folder) / "warehouse"))
        context = _start(config, log, java_home)
        try:
            yield SparkSession(context)
        finally:
            _stop(context)


def is_near(master: str) -> bool:
    """Return whether the executors of a master run on this machine."""
    return re.match(r"local|spark://(127\.|localhost)", master) is not None


def session_settings(
    master: str, jars: Sequence[Path], conf: Mapping[str, str], *, connector: bool = True
) -> dict[str, str]:
    """Return the session's settings: the caller's, and ours where the caller says nothing."""
    here = dict(ON_THIS_MACHINE) if is_near(master) else {}
    if (tasks := _local_tasks(master)) is not None:
        here["spark.driver.memory"] = f"{_HEAP_MB + _HEAP_MB_OF_TASK * tasks}m"
    ours = _connector(jars, master) if connector and not brings_connector(conf) else {}
    return {**DEFAULTS, **here, **ours, **conf}


def _local_tasks(master: str) -> int | None:
    """Return how many tasks run in the driver's own JVM at once; None if tasks run in other processes."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,.*)?\])?", master)
    if found is None:
        return None
    return _cores() if found[1] == "*" else int(found[1] or 1)


def _cores() -> int:
    """Return how many processors a JVM finds: those of this process, at most the quota of its container."""
    usable = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA.read_text(encoding="ascii").split()
    except OSError:  # no container, or an older kernel
        return usable
    return usable if quota == "max" else min(usable, max(1, math.ceil(int(quota) / int(period))))


@contextmanager
def watched(spark: SparkSession, stage: str, on_progress: Progress | None) -> Iterator[None]:
    """Report to `on_progress` how many tasks of the jobs inside the block are done, from a separate thread."""
    if on_progress is None:
        yield
        return
    on_progress(stage, 0, 0)
    over = threading.Event()
    poller = threading.Thread(target=_poll, args=(spark, stage, on_progress, over), daemon=True)
    poller.start()
    try:
        yield
    finally:
        over.set()
        poller.join()
    on_progress(stage, 1, 1)


def _poll(spark: SparkSession, stage: str, on_progress: Progress, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(POLL_SECONDS):
        infos = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        running = [info for info in infos if info is not None]
        if running:
            done = sum(info.numCompletedTasks for info in running)
            on_progress(stage, done, sum(info.numTasks for info in running))


def _connector(jars: Sequence[Path], master: str) -> dict[str, str]:
    if not jars:
        return {"spark.jars.packages": CONNECTOR}
    paths = [str(jar) for jar in jars]
    if master.startswith("local"):
        # Driver and executor are a single JVM: the class path saves copying the jars at every start.
        return {"spark.driver.extraClassPath": os.pathsep.join(paths)}
    return {"spark.jars": ",".join(paths)}


def _start(config: SparkConf, log: Path, java_home: Path | None) -> SparkContext:
    with log.open("wb") as out, _environment(java_home):
        try:
            gateway = launch_gateway(config, {"stdout": out, "stderr": out})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise Failed(
                "spark-start-failed",
                f"the Spark JVM ended before it was ready: {_last_words(log) or error}",
                still_true="nothing was read and nothing was changed",
                next_step="run kmigrate doctor: Spark needs Java 17 or 21, and its Kafka connector",
            ) from error
    try:
        context = SparkContext(conf=config, gateway=gateway)
    except BaseException:
        _end(gateway)
        raise
    # PySpark's own default is the `python3` that executors find, which need not have kmigrate.
    context.pythonExec = config.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    return context


def _stop(context: SparkContext) -> None:
    gateway = context._gateway
    context.stop()
    _end(gateway)


def _end(gateway: Any) -> None:
    """End the JVM for certain, and forget PySpark's gateway.

    SparkContext.stop() leaves the JVM running, and PySpark would keep the gateway; a second session needs a new JVM.
    """
    gateway.shutdown()
    if gateway.proc is not None:
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


@contextmanager
def _environment(java_home: Path | None) -> Iterator[None]:
    """Set JAVA_HOME for the JVM's start only. spark-submit reads nothing else to find Java."""
    before = os.environ.get("JAVA_HOME")
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    try:
        yield
    finally:
        os.environ.pop("JAVA_HOME", None)
        if before is not None:
            os.environ["JAVA_HOME"] = before


def _last_words(log: Path, lines: int = 3) -> str:
    text = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in text[-lines:])
