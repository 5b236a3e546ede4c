"""The feed of the page: one look for all readers, few looks for none, and the last status when a cluster is silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from kmigrate.errors import Unreachable
from kmigrate.net import retry
from kmigrate.web import feed as feed_module
from kmigrate.web.feed import Feed
from kmigrate.workflow.status.snapshot import Snapshot
from kmigrate.workflow.status.timeline import Happened, Timeline, TimelineEvent
from tests.fakes.status import migration


class Looks:
    """Counts the looks at a made-up migration; an error set here is raised by each look."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    async def __call__(self) -> Snapshot:
        self.count += 1
        if self.error is not None:
            raise self.error
        return migration(self.count, 1_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_PAUSE_S", 0.02)
    monkeypatch.setattr(feed_module, "_UNREAD_PAUSE_S", 3600.0)
    monkeypatch.setattr(feed_module, "_READING_S", 600.0)
    monkeypatch.setattr(feed_module, "_REST_FOR_WORK", 0.0)


async def until(true: Callable[[], bool]) -> None:
    assert await retry.until(true, every_s=0.005, within_s=60)


def read(feed: Feed) -> dict[str, object]:
    told: dict[str, object] = json.loads("".join(feed.status()) or "{}")
    return told


def run(scenario: Callable[[Feed, Looks], object]) -> None:
    async def main() -> None:
        looks = Looks()
        feed = Feed(looks, Timeline())
        task = asyncio.get_running_loop().create_task(feed.run())
        try:
            await scenario(feed, looks)  # type: ignore[misc]
        finally:
            task.cancel()

    asyncio.run(main())


def test_the_status_is_the_document_of_the_command() -> None:
    async def scenario(feed: Feed, looks: Looks) -> None:
        assert read(feed) == {}
        assert feed.newest is None
        await until(lambda: feed.newest is not None)
        told = read(feed)
        assert {"at_ms", "links", "topics", "groups", "routers", "mirrors", "controllers", "progress"} <= told.keys()
        topics = told["topics"]
        assert isinstance(topics, list)
        assert [each["topic"] for each in topics] == [each.topic for each in migration(0, 0).topics]
        assert all(each["attention"]["need"] for each in topics)

    run(scenario)


def test_nobody_reads_and_the_clusters_are_left_alone_until_somebody_does() -> None:
    async def scenario(feed: Feed, looks: Looks) -> None:
        await until(lambda: looks.count == 1)
        await asyncio.sleep(0.2)
        assert looks.count == 1
        read(feed)
        await until(lambda: looks.count >= 3)

    run(scenario)


def test_a_hundred_readers_cost_one_look() -> None:
    async def scenario(feed: Feed, looks: Looks) -> None:
        await until(lambda: looks.count >= 1)
        before = looks.count
        assert len({"".join(feed.status()) for _ in range(100)}) == 1
        await until(lambda: looks.count > before)
        assert looks.count == before + 1

    run(scenario)


def test_a_cluster_that_is_silent_is_named_and_the_last_status_stays() -> None:
    async def scenario(feed: Feed, looks: Looks) -> None:
        await until(lambda: feed.newest is not None)
        looks.error = Unreachable("cluster-unreachable", "target: nobody answers")
        read(feed)
        await until(lambda: json.loads("".join(feed.history()))["trouble"] != "")
        assert json.loads("".join(feed.history()))["trouble"] == "cluster-unreachable: target: nobody answers"
        assert read(feed)["links"]
        looks.error = None
        await until(lambda: (read(feed), json.loads("".join(feed.history()))["trouble"])[1] == "")

    run(scenario)


def test_the_history_has_the_samples_and_the_events() -> None:
    timeline = Timeline()
    feed = Feed(Looks(), timeline)
    for second in range(0, 10, 2):
        feed.take(migration(second, 1_000), float(second))
    timeline.events.append(TimelineEvent(7, Happened.GIVEN_UP, "blue", "topic", "orders", "a router is silent", 12))
    told = json.loads("".join(feed.history()))
    assert [each["at_ms"] for each in told["samples"]] == [1_000, 3_000, 5_000, 7_000, 9_000]
    assert told["samples"][-1]["copied_per_s"] > 0
    assert [(each["happened"], each["reason"]) for each in told["events"]] == [("given-up", "a router is silent")]
