"""The bulk copy on Spark: offsets as by the daemon, whoever dies, is made twice, or copies at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import bounds, produce, read_all, transactions
from tests.integration.test_verify import mirror_of

pytestmark = pytest.mark.timeout(200)

MakeTopic = Callable[..., None]
Names = Callable[[str], str]
DAY_MS = 86_400_000


def test_spark_copies_plain_old_and_transactional_partitions_to_the_same_offsets_and_hands_over(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    run = Migration(source, target, tmp_path / "run")
    link, plain, odd = unique_name("link"), unique_name("bulk"), unique_name("bulk-odd")
    make_topic(source, plain, 4)
    make_topic(source, odd, 2, config={"retention.ms": "-1"})
    produce(source.bootstrap, plain, 8_000, partitions=4)
    produce(source.bootstrap, odd, 2_000, partitions=2, age_ms=40 * DAY_MS)
    transactions(source.bootstrap, odd, 20, name=unique_name("tx"), partitions=2)
    produce(source.bootstrap, odd, 200, partitions=2, first=2_000)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    with mirror_of(run, link):
        told = run.does(
            "topic", "mirror", plain, odd, "--link", link, "--engine", "spark", "--master", "local[2]", timeout=100
        )
        bulk = told["bulk"]
        assert (bulk["engine"], bulk["speculation"], bulk["problems"]) == ("spark", "off", [])
        assert {(r["topic"], r["caution"]) for r in bulk["ranges"]} == {(plain, None), (odd, "old-records")}
        assert [(r["tasks"], r["partitions"]) for r in bulk["rounds"]] == [(2, 6)]
        for topic in (plain, odd):
            assert bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic)
            assert read_all(target.bootstrap, topic) == read_all(source.bootstrap, topic)

        produce(source.bootstrap, plain, 400, partitions=4, first=8_000)
        transactions(source.bootstrap, odd, 10, name=unique_name("tx"), partitions=2)
        for topic in (plain, odd):
            wait_until(
                lambda topic=topic: bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic),  # type: ignore[misc]
                30,
                "the daemon to have taken over",
            )
            assert read_all(target.bootstrap, topic) == read_all(source.bootstrap, topic)
