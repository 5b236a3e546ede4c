"""A standalone Spark cluster on this machine: a master and workers as processes, from the jars that PySpark ships."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.ports import free_ports
from tests.integration.migration import wait_until

SPARK = Path(pyspark.__file__).parent


@dataclass
class SparkCluster:
    """A cluster of processes; a driver connects to `master`."""

    folder: Path
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, name: str, main: str, host: str, *words: str) -> None:
        log = self.folder / f"{name}.log"
        with log.open("ab") as sink:
            self.processes[name] = subprocess.Popen(
                [
                    str(find_java().executable),
                    "-Xmx256m",
                    "-XX:TieredStopAtLevel=1",
                    *("-cp", f"{SPARK}/jars/*", f"org.apache.spark.deploy.{main}"),
                    *("--host", host, "--webui-port", "0", *words),
                ],
                stdout=sink,
                stderr=sink,
                env={
                    **os.environ,
                    "JAVA_HOME": str(find_java().home),
                    "SPARK_HOME": str(SPARK),
                    "SPARK_SCALA_VERSION": "2.13",
                    "SPARK_LOCAL_IP": host,
                    "SPARK_LOCAL_DIRS": str(self.folder / "local"),
                    "PYSPARK_PYTHON": sys.executable,
                },
            )

    def start_worker(self, number: int, cores: int) -> None:
        """Start a worker on a loopback address of its own: Spark makes a speculative attempt on another host only."""
        name = f"worker{number}"
        size = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(self.folder / name))
        self.start(name, "worker.Worker", f"127.0.0.{number + 1}", *size, self.master)
        wait_until(lambda: self.says(name, "Successfully registered"), 40, name)

    def says(self, name: str, word: str) -> bool:
        return word in (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL; the executors end when they find the worker gone."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(10)


@contextmanager
def spark_cluster(folder: Path, workers: int, cores: int) -> Iterator[SparkCluster]:
    """Run a cluster while the block lasts."""
    folder.mkdir(parents=True)
    cluster = SparkCluster(folder, free_ports(1)[0])
    try:
        cluster.start("master", "master.Master", "127.0.0.1", "--port", str(cluster.port))
        wait_until(lambda: cluster.says("master", "New state: ALIVE"), 40, "the Spark master")
        for number in range(workers):
            cluster.start_worker(number, cores)
        yield cluster
    finally:
        for name in list(cluster.processes):
            cluster.kill(name)
