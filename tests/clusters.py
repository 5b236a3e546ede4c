"""Clusters that live as long as a with block, started side by side and always stopped."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster

__all__ = ["running_clusters", "source_and_target"]


@contextmanager
def running_clusters(root: Path, *specs: ClusterSpec) -> Iterator[list[KafkaCluster]]:
    """Yield a ready cluster for each spec, in that order."""
    with ThreadPoolExecutor() as threads:
        clusters = list(threads.map(lambda spec: KafkaCluster.create(spec, root), specs))
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(KafkaCluster.start, clusters))
            list(threads.map(KafkaCluster.wait_ready, clusters))
        yield clusters
    finally:
        for cluster in clusters:
            cluster.stop()


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
