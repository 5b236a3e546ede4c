"""The limit for the target's disks on real brokers: a copy that would go below the limit waits, and continues later."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import bounds, log_bytes, produce
from tests.integration.test_metrics import engine

MORE_THAN_THERE_IS = 1 << 50


def test_a_copy_waits_for_room_on_the_target_by_name_and_goes_on_once_the_limit_allows(
    source: KafkaCluster,
    target: KafkaCluster,
    make_topic: Callable[..., None],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    link, topic = unique_name("link"), unique_name("wide")
    run = Migration(source, target, tmp_path / "run", f"[mirror]\ndisk_min_free_bytes = {MORE_THAN_THERE_IS}\n")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 20_000, partitions=2)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    planned = run.does("plan", topic, "--link", link)["topics"][0]
    assert planned["disk"] > 20_000, "one replica"
    assert planned["disk_growth"] == planned["disk"], "all of it was written within the last hour"

    with engine(run, "mirror", "--link", link) as watched:
        run.does("topic", "mirror", topic, "--link", link)
        held = wait_until(lambda: _held(run, link, topic), 40, "the copy to wait")
        node, broker = next(iter(target.brokers.items()))
        assert f"target-disk-low: cluster target: broker {node}, log directory {broker.folder / 'data'}" in held
        assert "make room" in held
        refused = run.cli("promote", topic, "--link", link, "--yes")
        assert (refused.code, refused.told["error"]) == (3, "target-disk-low"), refused
        assert held in str(refused.told)
        scraped = watched.scrape()
        assert scraped.value("kmigrate_mirror_disk_held_partitions", link=link) == 2
        free = scraped.value("kmigrate_mirror_target_free_bytes", link=link, broker=str(node))
        assert 0 < free < MORE_THAN_THERE_IS
        time.sleep(1)
        assert set(bounds(target.bootstrap, topic).values()) == {(0, 0)}, "and nothing is copied"

    run.config.write_text(run.config.read_text().replace(str(MORE_THAN_THERE_IS), "1"), encoding="utf-8")
    with engine(run, "mirror", "--link", link) as watched:
        wait_until(lambda: bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic), 40, "the copy to go on")

        def figures() -> tuple[int, int] | None:
            told = _link(run, link)
            assert told["disk_low"] == []
            known = told["disk_bytes"] and told["disk_growth"]
            return (told["disk_bytes"], told["disk_growth"]) if known else None

        # The process reads the size at its start, and again after 5 s.
        size, growth = wait_until(figures, 30, "the size and the growth of the copy")
        assert size == log_bytes(target, topic)
        assert growth > 0
        shown = watched.scrape()
        assert shown.value("kmigrate_mirror_target_disk_bytes", link=link, topic=topic) == size
        assert shown.value("kmigrate_mirror_target_disk_growth_bytes_per_hour", link=link) == growth
    asked = _link(run, link)
    assert (asked["disk_bytes"], asked["disk_growth"]) == (size, None), "brokers know sizes, and no growth"


def _link(run: Migration, link: str) -> dict[str, Any]:
    links: list[dict[str, Any]] = run.does("status")["links"]
    return next(each for each in links if each["name"] == link)


def _held(run: Migration, link: str, topic: str) -> str:
    """Return the mirror's report on the disk, once each partition waits for room."""
    told = run.does("status")
    found = next(each for each in told["topics"] if (each["link"], each["topic"]) == (link, topic))
    waits = [part["trouble"].startswith("target-disk-low: waits for room") for part in found["partitions"]]
    low = next(each for each in told["links"] if each["name"] == link)["disk_low"]
    return str(low[0]) if len(waits) == 2 and all(waits) and low else ""
