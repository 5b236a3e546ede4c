"""Clusters that live as long as a with block, started side by side and always stopped.

Clusters that no test needs any more can be paused, or stopped before their block ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from tests.emptied import KEPT

__all__ = ["pause_all", "running", "running_clusters", "shared", "source_and_target", "start_once", "stop_shared"]

_RUNNING: list[KafkaCluster] = []
_SHARED: list[KafkaCluster] = []


@contextmanager
def running_clusters(root: Path, *specs: ClusterSpec) -> Iterator[list[KafkaCluster]]:
    """Yield a ready and empty cluster for each spec, in that order."""
    with ThreadPoolExecutor() as threads:
        clusters = list(threads.map(lambda spec: KEPT.take(spec, root), specs))
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(start_once, clusters))
            list(threads.map(KafkaCluster.wait_ready, clusters))
        with running(clusters):
            yield clusters
    finally:
        with ThreadPoolExecutor() as threads:
            list(threads.map(KEPT.give_back, clusters))


def running(clusters: Sequence[KafkaCluster]) -> AbstractContextManager[None]:
    """Let `pause_all` know these clusters while the block lasts."""
    return _known(clusters, _RUNNING)


def shared(clusters: Sequence[KafkaCluster]) -> AbstractContextManager[None]:
    """Let `stop_shared` know these clusters while the block lasts."""
    return _known(clusters, _SHARED)


@contextmanager
def _known(clusters: Sequence[KafkaCluster], known: list[KafkaCluster]) -> Iterator[None]:
    known.extend(clusters)
    try:
        yield
    finally:
        for cluster in clusters:
            known.remove(cluster)


def stop_shared() -> None:
    """Stop the clusters of fixtures that live to the end of the session; no later test needs these clusters."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(KafkaCluster.stop, _SHARED))


def pause_all() -> None:
    """Pause all brokers of this process for ever: idle brokers take CPU from other test processes."""
    for cluster in (*_RUNNING, *KEPT.idle):
        for node in cluster.brokers:
            cluster.pause(node)


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
