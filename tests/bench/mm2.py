"""MirrorMaker 2 in its dedicated mode, tuned as its users tune it for throughput.

The settings, and why they are fair: two tasks for two cores, large fetches and polls, 512 kB producer batches with 5 ms
of linger (none where latency is measured), acks=all. The heap has 2 GB (with 1 GB, these fetches ended a task for want
of memory). Checkpoints, heartbeats and config sync are off, so that MirrorMaker only copies. The producer compresses
where the source's batches are compressed, because a copy must not grow. The consumer reads committed records, as
kmigrate does. The clock starts at the first record on the target, so starting Java and Connect costs nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from kmigrate.kafka_jars.jars import ensure_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.processes import ProcessIdentity, spawn_tied

__all__ = ["SETTINGS", "VERSION", "start_mirror_maker"]

VERSION = "4.3.1"

SETTINGS = {
    "tasks.max": "2",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "emit.checkpoints.enabled": "false",
    "emit.heartbeats.enabled": "false",
    "sync.topic.configs.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "refresh.groups.enabled": "false",
    "refresh.topics.interval.seconds": "600",
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "source.consumer.isolation.level": "read_committed",
    "source.consumer.max.poll.records": "20000",
    "source.consumer.fetch.max.bytes": str(64 << 20),
    "source.consumer.max.partition.fetch.bytes": str(8 << 20),
    "source.consumer.receive.buffer.bytes": str(1 << 20),
    "target.producer.acks": "all",
    "target.producer.batch.size": str(512 << 10),
    "target.producer.buffer.memory": str(128 << 20),
    "target.producer.max.request.size": str(16 << 20),
    "target.producer.linger.ms": "5",
}

_HEAP = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def start_mirror_maker(
    source: str, target: str, topic: str, folder: Path, *, alias: str, compression: str = "none", linger_ms: int = 5
) -> ProcessIdentity:
    """Mirror a topic from now on, from a source by the name of `alias`. The process ends with its caller."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = {
        "clusters": f"{alias}, target",
        f"{alias}.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        f"{alias}->target.enabled": "true",
        f"target->{alias}.enabled": "false",
        f"{alias}->target.topics": topic,
        **{re.sub("^source[.]", f"{alias}.", key): value for key, value in SETTINGS.items()},
        "target.producer.compression.type": compression,
        "target.producer.linger.ms": str(linger_ms),
    }
    path = folder / "mm2.properties"
    path.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()), encoding="utf-8")
    jars = ensure_jars("mirror-maker", VERSION)
    return spawn_tied(
        [
            str(find_java().executable),
            *_HEAP,
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(path),
        ],
        log=folder.with_suffix(".log"),
        environment={"PATH": "/usr/bin:/bin"},
        folder=folder,
    )
