"""The bulk copy on Spark against a mirror process, on the same data, in a single run.

    python -m tests.bench.bulk [--pairs 3] [--records 2000000]

Each pair is a copy by each, in alternating order, all into the same target broker, which is warm by then
(`tests.bench.mirror`). Spark is `local[2]`, with a session that has started. Both clocks run from the first record on
the target to the last. `job_mb_per_s` is the whole Spark job, the start of its Python workers included.
`make bench-spark` takes `bulk_case` into its report; alone this bench writes build/bench/bulk.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.kafka_jars.java import find_java
from kmigrate.mirror.bulk.task import BulkJob
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep.activation import remembers_long, request_limit
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import CopyEngine
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from kmigrate.spark.bulk import executor_settings
from kmigrate.spark.rounds import BulkRun, Round
from kmigrate.spark.session import spark_session
from tests.bench.load import CASES, Case, load, make_topic, remove_topics
from tests.bench.meter import CopyRun, EndReader, measure_copy, spread
from tests.bench.mirror import PARTITIONS, Bench, cluster, say
from tests.figures import save
from tests.integration.mirror_world import link_between, mirror_process, settings_of

__all__ = ["bulk_case"]

MASTER = "local[2]"
_PATIENCE_S = 180.0


def bulk_case(root: Path, source: KafkaCluster, *, records: int = 2_000_000, pairs: int = 3) -> dict[str, Any]:
    """Return `mb_per_s` and `ratio_to_daemon` of the bulk copy, with the figures behind them."""
    case = replace(CASES["1kB"], name="bulk", records=records)
    topic = f"bench-{case.name}"
    make_topic(source.bootstrap, topic, PARTITIONS)
    load(source.bootstrap, topic, PARTITIONS, case)
    bench = Bench(root, source)
    daemon: list[CopyRun] = []
    spark: list[tuple[CopyRun, Round]] = []
    with (
        spark_session(
            master=MASTER, java_home=find_java().home, conf=executor_settings(MASTER), connector=False
        ) as session,
        bench.fresh_target() as target,
    ):
        bench.warm(target, case, topic)
        for pair in range(pairs + 1):
            for who in ("daemon", "spark") if pair % 2 == 0 else ("spark", "daemon"):
                if who == "daemon":
                    daemon.append(bench.copied("kmigrate", case, topic, target))
                else:
                    spark.append(_by_spark(session, source, target, case, topic, f"bench-bulk-{pair}"))
    del daemon[0], spark[0]  # of the pair that warms
    megabytes = case.record_bytes / 1e6
    ratios = [each.records_per_s / other.records_per_s for (each, _), other in zip(spark, daemon, strict=True)]
    speeds = [run.records_per_s * megabytes for run, _ in spark]
    return {
        "mb_per_s": round(statistics.median(speeds), 1),
        "ratio_to_daemon": round(statistics.median(ratios), 2),
        "mb_per_s_spread": spread(speeds),
        "ratio_spread": spread(ratios),
        "daemon_mb_per_s": spread([run.records_per_s * megabytes for run in daemon]),
        "job_mb_per_s": spread([case.records * megabytes / job.seconds for _, job in spark]),
        "records": case.records,
        "record_bytes": case.record_bytes,
        "partitions": PARTITIONS,
        "master": MASTER,
        "cores": os.cpu_count(),
        "repeats": bench.repeats,
    }


def _by_spark(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, case: Case, topic: str, link: str
) -> tuple[CopyRun, Round]:
    run, job = asyncio.run(_copy(spark, source, target, case, topic, link))
    remove_topics(target.bootstrap, topic)
    say(
        f"  {case.name} spark: {run.records_per_s * case.record_bytes / 1e6:.0f} MB/s, "
        f"the job {case.records * case.record_bytes / 1e6 / job.seconds:.0f} MB/s"
    )
    return run, job


async def _copy(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, case: Case, topic: str, link: str
) -> tuple[CopyRun, Round]:
    """Make the topic's bulk copy beside a mirror process, which creates the topic and copies nothing of it."""
    ours, theirs = settings_of("source", source.bootstrap), settings_of("target", target.bootstrap)
    ends = EndReader(target.bootstrap, topic, PARTITIONS)
    try:
        async with (
            link_between(source, target, link) as world,
            ClusterClient(ours) as reading,
            ClusterClient(theirs) as writing,
        ):
            await world.mirror(topic)
            await world.change(topic, lambda record: replace(record, engine=CopyEngine.SPARK))
            with mirror_process(world, "m"):
                await world.in_phase(topic, TopicPhase.MIRRORING, 60)
                await writing.refresh([topic])
                remembers, limit = (
                    await remembers_long(writing, Admin(theirs)),
                    await request_limit(writing, Admin(theirs)),
                )
                job = BulkJob(world.link, ours, theirs, MirrorSettings(), remembers, limit)
                async with asyncio.TaskGroup() as group:
                    measured = group.create_task(
                        asyncio.to_thread(
                            measure_copy, ends, case.records, os.getpid(), lambda: True, patience_s=_PATIENCE_S
                        )
                    )
                    (only,) = await BulkRun(spark, world.log, reading, writing, job, [topic]).run()
                return measured.result(), only
    finally:
        ends.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=3)
    arguments.add_argument("--records", type=int, default=2_000_000)
    chosen = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-bench-") as folder,
        cluster("source", SOURCE_VERSION, Path(folder)) as source,
    ):
        found = bulk_case(Path(folder), source, records=chosen.records, pairs=chosen.pairs)
    path = save("bench/bulk", found)
    say(f"{path}: {found['mb_per_s']} MB/s, {found['ratio_to_daemon']} of one mirror process")


if __name__ == "__main__":
    main()
