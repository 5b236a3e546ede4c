"""A real Kafka cluster on this machine: brokers on loopback ports, data in a temporary folder.

    KafkaCluster.create(spec, root) → start() → wait_ready() → … kill/pause/resume/restart … → stop()

A folder per broker holds configuration, data and log file. Brokers end with this process (lifeline.py); `detached`
brokers run until a process that holds their identities ends them. Brokers of a version before KRaft get a ZooKeeper of
their own, which starts and ends with them.
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
from kmigrate.kafka_jars.cache import cached
from kmigrate.kafka_jars.jars import OnProgress
from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.containers import ContainerProcess, start_container
from kmigrate.sandbox.distribution import Distribution, Image, archive_options, archive_path, find_distribution
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.processes import BrokerProcess, ProcessIdentity, Server, end_all, spawn_detached, spawn_tied
from kmigrate.sandbox.properties import broker_properties
from kmigrate.sandbox.security import SandboxSecurity, permits, write_private
from kmigrate.sandbox.zookeeper import ZooKeeper, needs_zookeeper

__all__ = ["SOURCE_VERSION", "TARGET_VERSION", "Broker", "ClusterSpec", "KafkaCluster", "keep_classes"]

SOURCE_VERSION = "3.9.1"
TARGET_VERSION = "4.3.1"

_READY_SECONDS = 90.0
_LOOK_SECONDS = 0.05
_IDS, _FEATURES = "meta.properties", "bootstrap.checkpoint"
"""The files of a formatted folder."""
_REASON = re.compile(r" (ERROR|FATAL) |Exception|Error:")
# SerialGC: on the two cores of a small machine its short pauses cost less than the helper threads of G1.
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
    """The specification of a cluster. `config` overrides any broker property; `{node}` is the broker's number."""

    name: str
    version: str
    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    """SASL_SSL with users and an authorizer (`sandbox.security`), instead of plain listeners that are open to all."""


@dataclass
class Broker(Server):
    """A broker, which is a controller, too, unless the cluster has a ZooKeeper."""

    controller_port: int = field(kw_only=True)

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"


@dataclass(frozen=True)
class _Format:
    """The files of a formatted folder. Only the ids differ between the folders of a version."""

    ids: tuple[str, ...]
    features: bytes

    @classmethod
    def read(cls, folder: Path) -> _Format:
        ids = (folder / _IDS).read_text(encoding="utf-8").splitlines()
        return cls(tuple(ids), (folder / _FEATURES).read_bytes())

    def write(self, folder: Path, cluster_id: str, node: int) -> None:
        folder.mkdir()
        own = {"cluster.id": cluster_id, "node.id": str(node), "directory.id": _new_cluster_id()}
        lines = ((line, line.partition("=")[0]) for line in self.ids)
        text = "".join(f"{key}={own[key]}\n" if key in own else f"{line}\n" for line, key in lines)
        (folder / _IDS).write_text(text, encoding="utf-8")
        (folder / _FEATURES).write_bytes(self.features)


_FORMATS: dict[Path, _Format] = {}
"""What Kafka's tool has written in this process, by folder of jars."""
_SHAPING = frozenset({"log.dir", "log.dirs", "metadata.log.dir", "unstable.feature.versions.enable"})
"""Configuration on which the files or their places depend."""


@dataclass
class KafkaCluster:
    """The brokers of a cluster, by node id from 1."""

    spec: ClusterSpec
    distribution: Distribution | Image
    cluster_id: str
    """The cluster id, chosen by `create`. With a ZooKeeper the brokers choose the id, and `wait_ready` reads it."""
    brokers: dict[int, Broker]
    detached: bool = False
    zookeeper: ZooKeeper | None = None
    jvm: tuple[str, ...] = ()
    """More options for the brokers' Java."""

    @classmethod
    def create(
        cls, spec: ClusterSpec, root: Path, *, detached: bool = False, on_progress: OnProgress | None = None
    ) -> KafkaCluster:
        """Write the folders of a new cluster under `root`, and fetch the jars of the version if they are missing."""
        distribution = find_distribution(spec.version, on_progress)
        ports = free_ports(2 * spec.brokers + 1)
        brokers = {
            node: Broker(node, ports[2 * node - 2], root / f"{spec.name}-{node}", controller_port=ports[2 * node - 1])
            for node in range(1, spec.brokers + 1)
        }
        zookeeper = None
        if needs_zookeeper(distribution.version):
            zookeeper = ZooKeeper(0, ports[-1], root / f"{spec.name}-zookeeper")
            zookeeper.write()
        cluster_id = _new_cluster_id() if zookeeper is None else ""
        cluster = cls(spec, distribution, cluster_id, brokers, detached, zookeeper)
        security = SandboxSecurity.create(cluster.security.folder) if spec.secure else None
        pairs = {each.node: (each.port, each.controller_port) for each in brokers.values()}
        for broker in brokers.values():
            broker.folder.mkdir(parents=True, exist_ok=True)
            controller_port = broker.controller_port if zookeeper is None else None
            secured = security.broker_properties(broker.port, controller_port) if security else {}
            own = {key: value.replace("{node}", str(broker.node)) for key, value in spec.config.items()}
            config = {**secured, **own}
            properties = broker_properties(broker.node, pairs, broker.folder / "data", config, zookeeper)
            text = "".join(f"{key}={value}\n" for key, value in properties.items())
            write_private(broker.properties, text)
        return cluster

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> KafkaCluster:
        """Return the cluster that `as_json` described, as seen from another process."""
        root = Path(saved["root"])
        spec = ClusterSpec(
            saved["name"], saved["wished_version"], len(saved["brokers"]), saved["config"], saved.get("secure", False)
        )
        brokers = {
            each["node"]: Broker(
                *_server_from_json(each, root / f"{spec.name}-{each['node']}"), controller_port=each["controller_port"]
            )
            for each in saved["brokers"]
        }
        distribution: Distribution | Image = Distribution(Path(saved["jars"] or "."), saved["version"])
        if saved["image"]:
            distribution = Image(saved["image"], saved["version"])
        zookeeper = None
        if (kept := saved.get("zookeeper")) is not None:
            zookeeper = ZooKeeper(*_server_from_json(kept, root / f"{spec.name}-zookeeper"))
        return cls(spec, distribution, saved["cluster_id"], brokers, saved["detached"], zookeeper)

    def as_json(self) -> dict[str, Any]:
        """Return all facts that another process needs to use, restart and end these brokers."""
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
                {**_server_as_json(broker), "controller_port": broker.controller_port}
                for broker in self.brokers.values()
            ],
            "zookeeper": _server_as_json(self.zookeeper) if self.zookeeper else None,
        }

    @property
    def servers(self) -> list[Server]:
        """The brokers, and then the ZooKeeper if there is a ZooKeeper."""
        return [*self.brokers.values(), *([self.zookeeper] if self.zookeeper else [])]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def security(self) -> SandboxSecurity:
        """The authority and users of a secure cluster, in a broker's folder, and so removed with the broker."""
        return SandboxSecurity(next(iter(self.brokers.values())).folder / "security")

    def client(self, user: str = "admin", mechanism: str = "PLAIN") -> dict[str, str]:
        """Return librdkafka's settings for this cluster. If the cluster is open to all, `user` has no effect."""
        login = self.security.access(user, mechanism).librdkafka() if self.spec.secure else {}
        return {"bootstrap.servers": self.bootstrap, **login}

    def admit(self) -> None:
        """Create a secure cluster's users and their rights on this side. The cluster must already accept clients."""
        self.security.admit(self.bootstrap, permits(self.spec.name))

    @property
    def version(self) -> str:
        """The version that really runs. A distribution of the user's own may differ from the wished version."""
        return self.distribution.version

    def start(self) -> None:
        """Format every broker's folder, then launch all brokers, and return at once."""
        self.format()
        self.launch()

    def format(self) -> None:
        """Create empty logs that belong to this cluster.

        Kafka's tool formats the first folder of a version. The other folders get copies with ids of their own.
        """
        if isinstance(self.distribution, Image) or self.zookeeper is not None:
            return  # a container formats its own folder, and with a ZooKeeper nothing is formatted
        jars, usual = self.distribution.jars, not _SHAPING & self.spec.config.keys()
        for broker in self.brokers.values():
            data = broker.folder / "data"
            if usual and jars in _FORMATS:
                _FORMATS[jars].write(data, self.cluster_id, broker.node)
                continue
            self._format_by_tool(self.distribution, broker)
            if usual:
                _FORMATS[jars] = _Format.read(data)

    def _format_by_tool(self, distribution: Distribution, broker: Broker) -> None:
        command = [
            *_java(distribution, "-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", "format",
            "-t", self.cluster_id, "-c", str(broker.properties),
        ]  # fmt: skip
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=_READY_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Failed("broker-format-failed", f"{self.spec.name}: StorageTool said: {done.stdout.strip()}")

    def launch(self) -> None:
        if self.zookeeper is not None and isinstance(self.distribution, Distribution):
            self.zookeeper.start(_java(self.distribution, "-Xmx128m"), self._spawn)
        for node in self.brokers:
            self._launch(node)

    def wait_ready(self, timeout: float = _READY_SECONDS) -> None:
        """Return once each broker names all brokers in its metadata. Raise an error if a broker stays missing.

        Every broker is asked, because brokers learn of each other one by one. A client that gets all brokers from the
        first broker and fewer brokers from the second drops its connections to the others, with the requests on them.
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
            "log_level": 0,  # refused connections are expected here
        }
        missing = set(self.brokers)
        while missing:
            admin = AdminClient(client)  # a fresh client, which knows no other broker to ask
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
            except KafkaException:  # a broker that is not up yet is expected here
                missing = set(self.brokers)
            if missing:
                time.sleep(_LOOK_SECONDS)

    def kill(self, node: int) -> None:
        """Kill a broker with SIGKILL, as a power cut would. The data stays for `restart`."""
        end_all([self.brokers[node].started()])

    def terminate(self, node: int, timeout: float = 30.0) -> None:
        """Stop a broker cleanly, so that the broker hands over its leaderships. The data stays."""
        process = self.brokers[node].started()
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while process.alive():
            if time.monotonic() > deadline:
                raise WaitTimedOut("broker-still-running", f"{self.spec.name}: broker {node} ignores SIGTERM")
            time.sleep(_LOOK_SECONDS)

    def pause(self, node: int) -> None:
        """Stop a broker with SIGSTOP. The broker's connections stay open and silent."""
        self.brokers[node].started().signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self.brokers[node].started().signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Launch a broker again on its data and ports, killed or not; `wait_ready` returns when the broker serves."""
        self.kill(node)
        self._launch(node)

    def stop(self) -> None:
        """End all brokers and remove their folders. A sandbox holds nothing that is worth a clean shutdown."""
        end_all(server.process for server in self.servers if server.process is not None)
        for server in self.servers:
            shutil.rmtree(server.folder, ignore_errors=True)

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

    def _log_end(self, node: int, last: int = 15) -> str:
        log = self.brokers[node].log
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        # A failing broker still logs what it stops, so the reason is not among the last lines.
        why = [line for line in lines[:-last] if _REASON.search(line)]
        return "\n".join([f"the end of {log}:", *why[-5:], *lines[-last:]])


def keep_classes(version: str) -> None:
    """Keep the classes that a broker of this version loads, so that later brokers start in half the time.

    A broker's run of some seconds pays off where many start. Skip images: kmigrate does not choose their Java options.
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


def _server_as_json(server: Server) -> dict[str, Any]:
    process: dict[str, Any] | None = None
    match server.process:
        case ProcessIdentity(pid, started):
            process = {"pid": pid, "started": started}
        case ContainerProcess(container):
            process = {"pid": server.pid, "container": container}
    return {"node": server.node, "port": server.port, "process": process}


def _server_from_json(saved: dict[str, Any], folder: Path) -> tuple[int, int, Path, BrokerProcess | None]:
    process: BrokerProcess | None = None
    if (kept := saved["process"]) is not None:
        container = kept.get("container")
        process = ContainerProcess(container) if container else ProcessIdentity(kept["pid"], kept["started"])
    return saved["node"], saved["port"], folder, process


def _new_cluster_id() -> str:
    """Return a UUID in Kafka's form. StorageTool would take an id that begins with "-" for an option."""
    while (chosen := urlsafe_b64encode(uuid4().bytes).decode()[:22]).startswith("-"):
        pass
    return chosen
