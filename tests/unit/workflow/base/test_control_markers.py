"""The verbs `link finish`, `promote.topic` and `topic show` report the times of a copy's control markers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import LogOffset, ProducerState
from kmigrate.errors import Unreachable
from kmigrate.model.ids import LARGEST
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import ClusterRef, CopyIdentity, LinkRecord, TopicRecord
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.control_markers import CopyTimes, copy_times, marker_findings

DAY = 86_400_000
BEGAN = 1_795_000_000_000
COPY = 6
LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), BEGAN - 5, CopyIdentity(COPY, 0))
TOPIC = TopicRecord(
    "l",
    "t",
    TopicPhase.PROMOTED,
    1,
    partitions=2,
    target_topic_id="id",
    began={0: 100, 1: 50},
    began_ms=BEGAN,
    promoted_ms=BEGAN + 9_000,
)


@dataclass
class Target:
    """A target that answers a look-up by the time of the copy's begin with the offsets in `first`."""

    first: Mapping[int, int]
    markers: Mapping[int, int] = field(default_factory=dict)
    """Newest time in the log, by partitions with markers that the target remembers."""
    newest_list_offsets: int = 7
    oldest: int = BEGAN - 5 * DAY
    configs: Mapping[str, str] = field(
        default_factory=lambda: {"retention.ms": str(7 * DAY), "cleanup.policy": "delete"}
    )
    away: bool = False

    async def refresh(self, topics: Iterable[str]) -> None:
        if self.away:
            raise Unreachable("away", "no broker answers")

    async def describe_producers(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Any]:
        plain = (ProducerState(COPY, 0, 4, BEGAN, -1),)
        states = {p: (ProducerState(COPY, 1, -1, BEGAN - DAY, -1, 5),) for p in self.markers}
        return {key: (0, (ProducerState(99, 0, 4, BEGAN + DAY, -1), *states.get(key[1], plain))) for key in keys}

    async def list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
        if set(wanted.values()) == {LARGEST}:
            return {key: LogOffset(0, 1, 0, self.markers[key[1]]) for key in wanted}
        assert set(wanted.values()) in ({BEGAN}, {0})
        return {
            key: LogOffset(0, self.first.get(key[1], -1) if at else 0, 0, self.oldest) for key, at in wanted.items()
        }

    async def call(self, request: Any, node: int | None, *, purpose: str) -> Any:
        return SimpleNamespace(api_keys=[SimpleNamespace(api_key=2, max_version=self.newest_list_offsets)])

    async def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        return {name: {key: ConfigValue(value, True) for key, value in self.configs.items()} for name in names}


def told(target: Target, record: TopicRecord = TOPIC) -> list[CopyTimes] | None:
    cluster = cast("Any", target)
    return asyncio.run(copy_times(cluster, cluster, LINK, [record]))


def test_the_figures_of_a_copy_of_history() -> None:
    found = told(Target({0: 10, 1: 45}, {0: BEGAN + 1_000, 1: BEGAN + 8_000}))
    assert found == [CopyTimes("t", BEGAN + 8_000, BEGAN, 95, BEGAN - 5 * DAY, 7 * DAY, True)]
    assert found[0].kept_until_ms == BEGAN + 8_000 + 7 * DAY
    assert found[0].longer_ms == 5 * DAY + 8_000
    assert found[0].as_json()["kept_until_ms"] == found[0].kept_until_ms


def test_a_target_that_cannot_tell_its_newest_time_has_markers_up_to_now() -> None:
    before = now_ms()
    [found] = told(Target({0: 10}, {0: BEGAN}, newest_list_offsets=5)) or []
    assert before <= found.marked_ms <= now_ms()


def test_markers_whose_producer_the_target_has_forgotten_are_found_by_their_times() -> None:
    [found] = told(Target({0: 10})) or []
    assert (found.marked_ms, found.read_again) == (TOPIC.promoted_ms, 90)


@pytest.mark.parametrize("first", [{}, {0: 100, 1: 70}], ids=["no-record-since", "records-since"])
def test_a_copy_without_markers_has_nothing_to_say(first: Mapping[int, int]) -> None:
    assert told(Target(first)) == []


@pytest.mark.parametrize("record", [replace(TOPIC, mapped=True), replace(TOPIC, target_topic_id="")])
def test_topics_without_a_copy_under_the_sources_offsets_are_not_looked_at(record: TopicRecord) -> None:
    assert told(Target({0: 10}, {0: BEGAN}), record) == []


def test_before_the_promote_the_configs_are_those_that_the_promote_puts_back() -> None:
    waiting = replace(TOPIC, promoted_ms=0, restore_configs={"retention.ms": "5000"}, compacted=True)
    target = Target({0: 10}, {0: BEGAN}, configs={"retention.ms": "-1"})
    [found] = told(target, waiting) or []
    assert (found.retention_ms, found.deletes, found.kept_until_ms) == (5000, False, None)
    [unsettled] = told(target, replace(waiting, promoted_ms=1, unsettled=True, compacted=False)) or []
    assert unsettled.kept_until_ms == BEGAN + 5000


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            CopyTimes("t", BEGAN + DAY, BEGAN, 95, BEGAN - DAY, 7 * DAY, True),
            "up to 2 days longer than by its own times",
        ),
        (CopyTimes("t", BEGAN, BEGAN, 95, -1, -1, True), "no end by itself, because retention.ms is unlimited"),
        (CopyTimes("t", BEGAN, BEGAN, 95, -1, None, True), "for retention.ms from the copy on"),
        (CopyTimes("t", BEGAN, BEGAN, 95, -1, 5, False), "when the log cleaner has removed the markers"),
    ],
)
def test_the_end_of_it_is_told_as_far_as_it_is_known(times: CopyTimes, words: str) -> None:
    assert words in times.retention()


def test_a_finish_names_each_topic_with_moments_and_figures() -> None:
    cluster = cast("Any", Target({0: 10, 1: 45}, {0: BEGAN + 8_000}))
    [found] = asyncio.run(marker_findings(cluster, cluster, LINK, [TOPIC], finish=True))
    assert (found.level, found.ref) == ("warn", "times-of-the-copy")
    assert "a time before 2026-11-18 11:06:48 UTC may name an earlier offset" in found.what
    assert "a time before 2026-11-18 11:06:40 UTC up to 95 offsets are read again" in found.what
    assert "until 2026-11-25 11:06:48 UTC" in found.what
    assert "at the source" in found.next_step and "DeleteRecords" in found.next_step


def test_markers_that_were_copied_as_they_came_are_no_warning() -> None:
    cluster = cast("Any", Target({0: 100}, {0: BEGAN + 8_000}))
    [found] = asyncio.run(marker_findings(cluster, cluster, LINK, [TOPIC], finish=True))
    assert found.level == "ok" and "as the copy lagged then" in found.what


def test_a_target_that_does_not_tell_is_no_silence() -> None:
    cluster = cast("Any", Target({}, away=True))
    [found] = asyncio.run(marker_findings(cluster, cluster, LINK, [TOPIC], finish=True))
    assert (found.level, found.ref) == ("warn", "times-of-the-copy") and "does not tell" in found.what
