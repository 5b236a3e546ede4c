"""The `server.properties` of the smallest real Kafka: 127.0.0.1 only, internal topics of a few partitions each.

Every broker is also a controller, or has a ZooKeeper where the version needs one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kmigrate.sandbox.zookeeper import SESSION_MS, ZooKeeper

__all__ = ["broker_properties"]


def broker_properties(
    node: int,
    ports: Mapping[int, tuple[int, int]],
    data: Path,
    config: Mapping[str, str],
    zookeeper: ZooKeeper | None = None,
) -> dict[str, str]:
    """Return the properties of a node; `ports`: all nodes' (client, controller) ports; `config` overrides the rest."""
    port, _ = ports[node]
    copies = min(3, len(ports))
    in_sync = max(1, copies - 1)
    return {
        **(_kraft(node, ports) if zookeeper is None else _with_zookeeper(node, port, zookeeper)),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": str(copies),
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "transaction.state.log.num.partitions": "5",
        "group.initial.rebalance.delay.ms": "0",
        # Small machine, small broker: fewer threads, and not 128 MB of the heap for the cleaner.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
        **config,
    }


def _kraft(node: int, ports: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    port, controller_port = ports[node]
    copies = min(3, len(ports))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(
            f"{each}@127.0.0.1:{controller}" for each, (_, controller) in ports.items()
        ),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(max(1, copies - 1)),
        "share.coordinator.state.topic.num.partitions": "5",
        # The controller notices a killed broker sooner than in production, and the broker may register again sooner.
        # With three brokers on a small machine the timeout is longer, so that a slow broker is not taken for dead.
        "broker.heartbeat.interval.ms": "1000",
        "broker.session.timeout.ms": "3000" if len(ports) == 1 else "6000",
        "controller.quorum.fetch.timeout.ms": "4000",
        # By default the controller writes an empty record twice a second: a third of an idle broker's CPU time.
        "metadata.max.idle.interval.ms": "0",
    }


def _with_zookeeper(node: int, port: int, zookeeper: ZooKeeper) -> dict[str, str]:
    return {
        "broker.id": str(node),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "zookeeper.connect": zookeeper.address,
        "zookeeper.session.timeout.ms": str(SESSION_MS),
        "zookeeper.connection.timeout.ms": "60000",  # ZooKeeper is launched beside its brokers
    }
