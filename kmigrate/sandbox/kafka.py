"""A real Kafka cluster on this machine: brokers on loopback ports, data in one temporary folder.

    KafkaCluster.create(spec, root) → start() → wait_ready() → … kill/pause/resume/restart … → stop()

`create` writes one folder per broker (configuration, data, log file); `start` formats and launches all
brokers at once and returns; `wait_ready` returns when every broker takes clients. Brokers are tied to
this process (lifeline.py) unless `detached`, then whoever holds their identities ends them. Brokers of a
version before KRaft get a ZooKeeper of their own, which comes and goes with them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.sandbox.cache import cached
from kmigrate.sandbox.class_archives import archive_options, archive_path
from kmigrate.sandbox.containers import ContainerProcess, start_container
from kmigrate.sandbox.distribution import Distribution, Image, find_distribution
from kmigrate.sandbox.jars import OnProgress
from kmigrate.sandbox.java import find_java
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.processes import BrokerProcess, ProcessIdentity, end_all, spawn_detached, spawn_tied
from kmigrate.sandbox.properties import broker_properties
from kmigrate.sandbox.security import SandboxSecurity, permits
from kmigrate.sandbox.zookeeper import ZooKeeper, needs_zookeeper

__all__ = ["SOURCE_VERSION", "TARGET_VERSION", "Broker", "ClusterSpec", "KafkaCluster", "keep_classes"]

SOURCE_VERSION = "3.9.1"
TARGET_VERSION = "4.3.1"

_READY_SECONDS = 90.0
_LOOK_SECONDS = 0.05
_REASON = re.compile(r" (ERROR|FATAL) |Exception|Error:")
# SerialGC: on the two cores of a small machine its short pauses cost less than G1's helper threads.
_JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=warn",
)


@dataclass(frozen=True)
class ClusterSpec:
    """What a cluster shall be; `config` overrides any broker property."""

    name: str
    version: str
    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    """SASL_SSL with users and an authorizer (`sandbox.security`), instead of plain listeners open to all."""


@dataclass
class Broker:
    """One broker: its folder and ports for good, its process for as long as it runs."""

    node: int
    port: int
    controller_port: int
    folder: Path
    process: BrokerProcess | None = None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise Failed("broker-not-started", f"broker {self.node} was not started")
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive()

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"


@dataclass
class KafkaCluster:
    """The brokers of one cluster, by node id from 1."""

    spec: ClusterSpec
    distribution: Distribution | Image
    cluster_id: str
    """Chosen here; only with a ZooKeeper do the brokers choose it, and `wait_ready` learns it."""
    brokers: dict[int, Broker]
    detached: bool = False
    zookeeper: ZooKeeper | None = None
    jvm: tuple[str, ...] = ()
    """More options of the brokers' Java."""

    @classmethod
    def create(
        cls, spec: ClusterSpec, root: Path, *, detached: bool = False, on_progress: OnProgress | None = None
    ) -> KafkaCluster:
        """Write the folders of a new cluster under `root`, and fetch its jars if they are missing."""
        distribution = find_distribution(spec.version, on_progress)
        ports = free_ports(2 * spec.brokers + 1)
        brokers = {
            node: Broker(node, ports[2 * node - 2], ports[2 * node - 1], root / f"{spec.name}-{node}")
            for node in range(1, spec.brokers + 1)
        }
        zookeeper = None
        if needs_zookeeper(distribution.version):
            zookeeper = ZooKeeper(ports[-1], root / f"{spec.name}-zookeeper")
            zookeeper.write()
        cluster_id = _new_cluster_id() if zookeeper is None else ""
        cluster = cls(spec, distribution, cluster_id, brokers, detached, zookeeper)
        security = SandboxSecurity.create(cluster.security.folder) if spec.secure else None
        for broker in brokers.values():
            broker.folder.mkdir(parents=True, exist_ok=True)
            properties = broker_properties(
                broker.node,
                {each.node: (each.port, each.controller_port) for each in brokers.values()},
                broker.folder / "data",
                {
                    **(security.broker_properties(broker.port, broker.controller_port) if security else {}),
                    **spec.config,
                },
                zookeeper,
            )
            text = "".join(f"{key}={value}\n" for key, value in properties.items())
            broker.properties.touch(mode=0o600)
            broker.properties.write_text(text, encoding="utf-8")
        return cluster

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> KafkaCluster:
        """The cluster that `as_json` described, seen from another process."""
        root = Path(saved["root"])
        spec = ClusterSpec(
            saved["name"], saved["wished_version"], len(saved["brokers"]), saved["config"], saved.get("secure", False)
        )
        brokers = {
            each["node"]: Broker(
                each["node"],
                each["port"],
                each["controller_port"],
                root / f"{spec.name}-{each['node']}",
                _process_from_json(each["process"]),
            )
            for each in saved["brokers"]
        }
        distribution = (
            Image(saved["image"], saved["version"])
            if saved["image"]
            else Distribution(Path(saved["jars"]), saved["version"])
        )
        zookeeper = None
        if (kept := saved.get("zookeeper")) is not None:
            folder = root / f"{spec.name}-zookeeper"
            zookeeper = ZooKeeper(kept["port"], folder, _process_from_json(kept["process"]))
        return cls(spec, distribution, saved["cluster_id"], brokers, saved["detached"], zookeeper)

    def as_json(self) -> dict[str, Any]:
        """All that another process needs to use, restart and end these brokers."""
        return {
            "name": self.spec.name,
            "version": self.version,
            "wished_version": self.spec.version,
            "bootstrap": self.bootstrap,
            "cluster_id": self.cluster_id,
            "detached": self.detached,
            "jars": str(self.distribution.jars) if isinstance(self.distribution, Distribution) else None,
            "image": self.distribution.name if isinstance(self.distribution, Image) else None,
            "root": str(next(iter(self.brokers.values())).folder.parent),
            "config": dict(self.spec.config),
            "secure": self.spec.secure,
            "brokers": [
                {
                    "node": broker.node,
                    "port": broker.port,
                    "controller_port": broker.controller_port,
                    "process": _process_as_json(broker.process),
                }
                for broker in self.brokers.values()
            ],
            "zookeeper": None
            if self.zookeeper is None
            else {"port": self.zookeeper.port, "process": _process_as_json(self.zookeeper.process)},
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def security(self) -> SandboxSecurity:
        """The authority and users of a secure cluster; they are in a broker's folder, to go with it."""
        return SandboxSecurity(next(iter(self.brokers.values())).folder / "security")

    def client(self, user: str = "admin", mechanism: str = "PLAIN") -> dict[str, str]:
        """What librdkafka needs to talk to this cluster; a user means nothing where the cluster is open to all."""
        login = self.security.access(user, mechanism).librdkafka() if self.spec.secure else {}
        return {"bootstrap.servers": self.bootstrap, **login}

    def admit(self) -> None:
        """Let a secure sandbox's users in, with what each may do on this side; the cluster takes clients already."""
        self.security.admit(self.bootstrap, permits(self.spec.name))

    @property
    def version(self) -> str:
        """The version that really runs: a distribution of the user's own may differ from the wish."""
        return self.distribution.version

    def start(self) -> None:
        """Format every broker's folder, then launch all of them; returns at once after that."""
        self.format()
        self.launch()

    def format(self) -> None:
        """Make empty logs that belong to this cluster."""
        # A container formats its own; with a ZooKeeper nothing is formatted.
        if isinstance(self.distribution, Distribution) and self.zookeeper is None:
            self._format(self.distribution)

    def launch(self) -> None:
        if self.zookeeper is not None and isinstance(self.distribution, Distribution):
            self.zookeeper.start(_java(self.distribution, "-Xmx128m"), self._spawn)
        for node in self.brokers:
            self._launch(node)

    def _format(self, distribution: Distribution) -> None:
        formats = [
            subprocess.Popen(
                [
                    *_java(distribution, "-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", "format",
                    "-t", self.cluster_id, "-c", str(broker.properties),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for broker in self.brokers.values()
        ]  # fmt: skip
        outputs = [process.communicate(timeout=_READY_SECONDS)[0] for process in formats]
        for process, output in zip(formats, outputs, strict=True):
            if process.returncode != 0:
                raise Failed("broker-format-failed", f"{self.spec.name}: StorageTool said: {output.strip()}")

    def wait_ready(self, timeout: float = _READY_SECONDS) -> None:
        """Return once each broker names all brokers in its metadata, or say which one is not named.

        Each one is asked: brokers learn of each other one by one, and a client that has all of them from the first
        and then hears of fewer from the second drops its connection to the rest, with the requests on it.
        """
        deadline = time.monotonic() + timeout
        for broker in self.brokers.values():
            self._wait_named(f"127.0.0.1:{broker.port}", deadline, timeout)

    def _wait_named(self, bootstrap: str, deadline: float, timeout: float) -> None:
        client: dict[str, str | int | float | bool] = {
            **self.client(),
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,  # refused connections are what we wait through
        }
        missing = set(self.brokers)
        while missing:
            admin = AdminClient(client)  # a fresh one, which has nobody else to ask
            self._refuse_dead()
            if time.monotonic() > deadline:
                raise WaitTimedOut(
                    "brokers-not-ready",
                    f"{self.spec.name}: brokers {sorted(missing)} of {len(self.brokers)} take no clients "
                    f"after {timeout:.0f} s; {self._log_end(min(missing))}",
                    next_step="look into the broker's log, or try again on a less busy machine",
                )
            try:
                seen = admin.list_topics(timeout=1)
                missing = set(self.brokers) - set(seen.brokers)
                self.cluster_id = self.cluster_id or seen.cluster_id or ""
            except KafkaException:  # not up yet, by design
                missing = set(self.brokers)
            if missing:
                time.sleep(_LOOK_SECONDS)

    def kill(self, node: int) -> None:
        """SIGKILL a broker, as a power cut would; its data stays for `restart`."""
        end_all([self._process(node)])

    def terminate(self, node: int, timeout: float = 30.0) -> None:
        """Stop a broker the clean way, with its leaderships handed over; its data stays."""
        process = self._process(node)
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while process.alive():
            if time.monotonic() > deadline:
                raise WaitTimedOut("broker-still-running", f"{self.spec.name}: broker {node} ignores SIGTERM")
            time.sleep(_LOOK_SECONDS)

    def pause(self, node: int) -> None:
        """SIGSTOP a broker: its connections stay open and say nothing."""
        self._process(node).signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self._process(node).signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Launch a broker again, killed or not, on its data and ports; `wait_ready` tells when it serves."""
        self.kill(node)
        self._launch(node)

    def stop(self) -> None:
        """End all brokers and remove their folders: nothing of a sandbox is worth a clean shutdown."""
        servers: list[Broker | ZooKeeper] = list(self.brokers.values())
        if self.zookeeper is not None:
            servers.append(self.zookeeper)
        end_all(server.process for server in servers if server.process is not None)
        for server in servers:
            shutil.rmtree(server.folder, ignore_errors=True)

    def _process(self, node: int) -> BrokerProcess:
        process = self.brokers[node].process
        if process is None:
            raise Failed("broker-not-started", f"{self.spec.name}: broker {node} was not started")
        return process

    def _launch(self, node: int) -> None:
        broker = self.brokers[node]
        if isinstance(self.distribution, Image):
            broker.process = start_container(
                self.distribution.name, broker.properties, self.cluster_id, detached=self.detached
            )
            return
        if self.zookeeper is not None:
            self.zookeeper.wait_forgotten(node)
        more = os.environ.get("KMIGRATE_SANDBOX_JVM", "").split()
        command = [*_java(self.distribution, *_JVM, *more, *self.jvm), "kafka.Kafka", str(broker.properties)]
        broker.process = self._spawn(command, broker.log, broker.folder)

    def _spawn(self, command: list[str], log: Path, folder: Path) -> BrokerProcess:
        environment = dict(os.environ)
        if self.detached:
            return spawn_detached(command, log=log, environment=environment)
        return spawn_tied(command, log=log, environment=environment, folder=folder)

    def _refuse_dead(self) -> None:
        for node, broker in self.brokers.items():
            if not broker.alive:
                raise Failed(
                    "broker-ended",
                    f"{self.spec.name}: broker {node} ended while starting; {self._log_end(node)}",
                    still_true="no other broker's data was touched",
                    next_step="read the lines above: most often a port was taken or memory is short",
                )

    def _log_end(self, node: int, lines: int = 15) -> str:
        log = self.brokers[node].log
        said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        # A broker goes on to say what it stops, so its reason is not among the last lines.
        why = [line for line in said[:-lines] if _REASON.search(line)]
        return "\n".join([f"the end of {log}:", *why[-5:], *said[-lines:]])


def keep_classes(version: str) -> None:
    """Let brokers of this version start in half the time from now on: one is run, and what it has loaded is kept.

    Worth its few seconds where many brokers are started; a container's Java is not ours to tell.
    """
    distribution = find_distribution(version)
    if isinstance(distribution, Image):
        return

    def run_one(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="kmigrate-classes-") as root:
            cluster = KafkaCluster.create(ClusterSpec("classes", version), Path(root))
            cluster.jvm = (f"-XX:ArchiveClassesAtExit={folder / path.name}",)
            try:
                cluster.start()
                cluster.wait_ready()
                cluster.terminate(1)
            finally:
                cluster.stop()

    path = archive_path(distribution.jars, find_java())
    cached(path.parent.name, run_one)


def _java(distribution: Distribution, *options: str) -> list[str]:
    java = find_java()
    archive = archive_options(distribution.jars, java)
    return [str(java.executable), *archive, *options, *_LOGGING, "-cp", f"{distribution.jars}/*"]


def _process_as_json(process: BrokerProcess | None) -> dict[str, Any] | None:
    match process:
        case ProcessIdentity(pid, started):
            return {"pid": pid, "started": started}
        case ContainerProcess(container):
            return {"pid": process.pid, "container": container}
        case _:
            return None


def _process_from_json(saved: dict[str, Any] | None) -> BrokerProcess | None:
    if saved is None:
        return None
    if "container" in saved:
        return ContainerProcess(saved["container"])
    return ProcessIdentity(saved["pid"], saved["started"])


def _new_cluster_id() -> str:
    """Kafka's form of a UUID; one that began with "-" would be taken for an option by StorageTool."""
    while (chosen := urlsafe_b64encode(uuid4().bytes).decode()[:22]).startswith("-"):
        pass
    return chosen
