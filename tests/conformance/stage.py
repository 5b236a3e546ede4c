"""The place where a suite is run: a plain broker of its own, or a router in front of such a broker.

Behind the router nothing is mirrored: everything passes to the target. Only a suite that asks for it gets a topic that
comes from a source and is promoted while the suite's clients work. The source is started for the first of these topics.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import NewTopic

from kmigrate.sandbox.kafka import SOURCE_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters
from tests.conformance.suite import BROKER_VERSION, Place, Suite
from tests.integration.migration import Migration

__all__ = ["BROKER", "direct", "routed"]

BROKER: Mapping[str, str] = {
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "group.coordinator.rebalance.protocols": "classic,consumer,share",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}
"""Settings that the suites expect of a broker, beside those of every sandbox broker. Some suites create ACLs."""


@contextmanager
def direct(suite: Suite) -> Iterator[Place]:
    """Let the suite's clients meet a broker and nothing else."""
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-conformance-") as folder,
        running_clusters(Path(folder), _broker(suite)) as (cluster,),
    ):
        yield Place(cluster.bootstrap, _work(folder), _Plain(cluster))


@contextmanager
def routed(suite: Suite) -> Iterator[Place]:
    """Let the suite's clients meet `kmigrate router`, with the same broker behind the router as in `direct`."""
    with tempfile.TemporaryDirectory(prefix="kmigrate-conformance-") as folder:
        target = KafkaCluster.create(_broker(suite), Path(folder))
        source = KafkaCluster.create(ClusterSpec("source", SOURCE_VERSION), Path(folder))
        run = Migration(source, target, Path(folder) / "run", "[promote]\nstraggler_window_s = 3.0\n")
        try:
            target.start()
            target.wait_ready()
            run.start("router")
            yield Place(run.routers, _work(folder), _Mirrored(run))
        finally:
            run.stop()
            for cluster in (target, source):
                cluster.stop()


def _broker(suite: Suite) -> ClusterSpec:
    return ClusterSpec("target", BROKER_VERSION, 1, {**BROKER, **suite.broker})


def _work(folder: str) -> Path:
    work = Path(folder) / "suite"
    work.mkdir()
    return work


@dataclass
class _Plain:
    """A topic of the broker, which nobody moves."""

    cluster: KafkaCluster

    def mirror(self, topic: str, partitions: int) -> None:
        create_topics(self.cluster.client(), [NewTopic(topic, partitions, 1)])

    def promote(self, topic: str) -> None:
        pass

    def mirror_group(self, group: str, mode: str) -> None:
        pass

    def promote_group(self, group: str) -> None:
        pass


@dataclass
class _Mirrored:
    """A topic of the source. The router's clients write to the source until the topic's promote."""

    run: Migration
    _linked: bool = field(default=False, init=False)

    def mirror(self, topic: str, partitions: int) -> None:
        if not self._linked:
            self._linked = True
            self.run.source.start()
            self.run.source.wait_ready()
            self.run.does("link", "create", "blue", "--source", "source", "--target", "target")
            self.run.start("mirror", "controller")
        self.run.make_topic(topic, partitions)
        self.run.does("topic", "mirror", topic)

    def promote(self, topic: str) -> None:
        self.run.does("promote", topic, "--yes")

    def mirror_group(self, group: str, mode: str) -> None:
        self.run.make_group(group, group)
        self.run.does("group", "mirror", group, "--mode", mode)

    def promote_group(self, group: str) -> None:
        self.run.does("group", "promote", group, "--yes")
