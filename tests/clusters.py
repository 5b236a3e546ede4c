"""Clusters that live as long as a with block, started side by side and always stopped."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from tests.emptied import KEPT

__all__ = ["running_clusters", "source_and_target", "start_once"]


@contextmanager
def running_clusters(root: Path, *specs: ClusterSpec) -> Iterator[list[KafkaCluster]]:
    """Yield a ready and empty cluster for each spec, in that order."""
    with ThreadPoolExecutor() as threads:
        clusters = list(threads.map(lambda spec: KEPT.take(spec, root), specs))
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(start_once, clusters))
            list(threads.map(KafkaCluster.wait_ready, clusters))
        yield clusters
    finally:
        with ThreadPoolExecutor() as threads:
            list(threads.map(KEPT.give_back, clusters))


def start_once(cluster: KafkaCluster) -> None:
    """Start a cluster that no test has used before."""
    if not any(broker.alive for broker in cluster.brokers.values()):
        cluster.start()


def source_and_target(
    brokers: int = 1,
    config: dict[str, str] | None = None,
    source_version: str = SOURCE_VERSION,
    target_version: str = TARGET_VERSION,
) -> tuple[ClusterSpec, ClusterSpec]:
    """Yield the source and the target cluster of a migration."""
    return (
        ClusterSpec("source", source_version, brokers, config or {}),
        ClusterSpec("target", target_version, brokers, config or {}),
    )
