"""The sandbox of `kmigrate sandbox up|status|down`: a source and a target cluster and their run folder.

    nothing ── up ──→ running ── down ──→ nothing
                         └─ brokers die ──→ ended ── up or down ──→ nothing or running

The run folder's `sandbox.json` holds versions, bootstraps and process identities. The file is written before the
brokers are ready, so that an interrupted `up` can be taken down. The brokers' data is in a temporary
folder of its own and is removed with the brokers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kmigrate.errors import Refused
from kmigrate.kafka_jars.cache import exclusive
from kmigrate.kafka_jars.jars import OnProgress
from kmigrate.model.words import as_words
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.processes import Server

__all__ = ["DEFAULT_FOLDER", "BrokerStatus", "ClusterStatus", "SandboxEstate", "SandboxStatus", "make_room"]

DEFAULT_FOLDER = Path("build/sandbox")

_FILE = "sandbox.json"


@dataclass(frozen=True)
class BrokerStatus:
    """A broker's process at a moment."""

    node: int
    port: int
    pid: int | None
    alive: bool


@dataclass(frozen=True)
class ClusterStatus:
    """The processes of a cluster at a moment."""

    name: str
    version: str
    bootstrap: str
    cluster_id: str
    brokers: tuple[BrokerStatus, ...]
    zookeeper: BrokerStatus | None = None
    """The ZooKeeper as node 0, where the version needs a ZooKeeper."""

    @property
    def servers(self) -> tuple[BrokerStatus, ...]:
        """All processes of the cluster."""
        return self.brokers if self.zookeeper is None else (*self.brokers, self.zookeeper)


@dataclass(frozen=True)
class SandboxStatus:
    """The state of the sandbox: all brokers run (`running`), some (`partly`) or none (`ended`)."""

    folder: Path
    data: Path
    clusters: tuple[ClusterStatus, ...]

    @property
    def state(self) -> str:
        alive = [server.alive for cluster in self.clusters for server in cluster.servers]
        if all(alive):
            return "running"
        return "partly" if any(alive) else "ended"


@dataclass
class SandboxEstate:
    """Two real clusters. They end with this process unless `up` was called with `detached`."""

    folder: Path
    data: Path
    source: KafkaCluster
    target: KafkaCluster

    @classmethod
    def up(
        cls,
        folder: Path = DEFAULT_FOLDER,
        *,
        brokers: int = 1,
        source_version: str = SOURCE_VERSION,
        target_version: str = TARGET_VERSION,
        detached: bool = False,
        secure: bool = False,
        on_progress: OnProgress | None = None,
    ) -> SandboxEstate:
        """Start both clusters side by side and wait until both accept clients; `secure` adds users and ACLs."""
        folder = folder.resolve()
        with exclusive(folder / "lock"):
            make_room(folder)
            data = Path(tempfile.mkdtemp(prefix="kmigrate-sandbox-"))
            specs = (
                ClusterSpec("source", source_version, brokers, secure=secure),
                ClusterSpec("target", target_version, brokers, secure=secure),
            )
            clusters: list[KafkaCluster] = []
            try:
                with ThreadPoolExecutor() as threads:
                    create = partial(KafkaCluster.create, root=data, detached=detached, on_progress=on_progress)
                    clusters += threads.map(create, specs)
                    sandbox = cls(folder, data, *clusters)
                    list(threads.map(KafkaCluster.format, clusters))
                    for cluster in clusters:
                        cluster.launch()
                    sandbox.save()
                    list(threads.map(KafkaCluster.wait_ready, clusters))
                    sandbox.save()  # with the cluster id that brokers with a ZooKeeper chose
                    if secure:
                        list(threads.map(KafkaCluster.admit, clusters))
            except BaseException:
                for cluster in clusters:
                    cluster.stop()
                shutil.rmtree(data, ignore_errors=True)
                (folder / _FILE).unlink(missing_ok=True)
                raise
            return sandbox

    @classmethod
    def load(cls, folder: Path = DEFAULT_FOLDER) -> SandboxEstate:
        """Return the sandbox that another process brought up in this folder."""
        folder = folder.resolve()
        found = _read(folder)
        if found is None:
            safe = "nothing was started or ended"
            raise Refused("no-sandbox", f"{folder} holds no sandbox", still_true=safe, next_step="kmigrate sandbox up")
        return found

    @property
    def file(self) -> Path:
        """The file that exists as long as the sandbox is not taken down."""
        return self.folder / _FILE

    @property
    def clusters(self) -> tuple[KafkaCluster, KafkaCluster]:
        return (self.source, self.target)

    def save(self) -> None:
        """Write sandbox.json. Call this again after a broker was restarted."""
        content = {"data": str(self.data), "source": self.source.as_json(), "target": self.target.as_json()}
        unfinished = self.folder / f"{_FILE}.{os.getpid()}"
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self.file)

    def status(self) -> SandboxStatus:
        return SandboxStatus(self.folder, self.data, tuple(_status(cluster) for cluster in self.clusters))

    def down(self) -> None:
        """End the sandbox's broker processes, never another process with a reused id; remove data and sandbox.json."""
        for cluster in self.clusters:
            cluster.stop()
        shutil.rmtree(self.data, ignore_errors=True)
        self.file.unlink(missing_ok=True)


def _status(cluster: KafkaCluster) -> ClusterStatus:
    def status(server: Server) -> BrokerStatus:
        return BrokerStatus(server.node, server.port, server.pid if server.process else None, server.alive)

    brokers = tuple(map(status, cluster.brokers.values()))
    zookeeper = status(cluster.zookeeper) if cluster.zookeeper else None
    return ClusterStatus(cluster.spec.name, cluster.version, cluster.bootstrap, cluster.cluster_id, brokers, zookeeper)


def _read(folder: Path) -> SandboxEstate | None:
    file = folder / _FILE
    if not file.is_file():
        return None
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        source, target = (KafkaCluster.from_json(saved[side]) for side in ("source", "target"))
        return SandboxEstate(folder, Path(saved["data"]), source, target)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            "sandbox-file-unreadable",
            f"{file} is not what `kmigrate sandbox up` writes: {error!r}",
            still_true="nothing was started or ended",
            next_step=f"end its brokers by hand if any run, then remove {file}",
        ) from error


def make_room(folder: Path) -> None:
    """Clear away a sandbox whose brokers are all gone. Refuse if a broker still lives."""
    earlier = _read(folder)
    if earlier is None:
        return
    if (state := earlier.status().state) != "ended":
        raise Refused(
            "sandbox-already-up",
            f"the sandbox in {folder} is {state}",
            still_true="it was left as it is",
            next_step=f"kmigrate sandbox down --folder {as_words(str(folder))}, or name another --folder",
        )
    earlier.down()
