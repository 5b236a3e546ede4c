"""The output of `plan` for topics that are mirrored already: only the remaining copy counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cli.commands.plan import TopicForecast, _Asked, _filling, _forecast, _total
from kmigrate.cluster.client import EARLIEST, LATEST, LogOffset
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import Refused
from kmigrate.mirror.upkeep import forecast as outlook
from kmigrate.mirror.upkeep.forecast import Sample
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import ClusterRef, LeaseRecord, LinkRecord, TopicRecord
from kmigrate.model.stops import PartitionStop
from kmigrate.net.clock import now_ms
from kmigrate.workflow import verbs
from kmigrate.workflow.verbs.creatable import no_configs
from kmigrate.workflow.verbs.proposal import propose
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
COPIED = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 100, 1: 0})
SOURCE = {0: (100, 1_100), 1: (0, 500)}


@dataclass
class Cluster:
    """A cluster with the start and end of each log of topic t; without logs topic t does not exist."""

    logs: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    metadata: Any = field(default_factory=lambda: SimpleNamespace(brokers={1: ("h", 1)}))
    time: int = -1
    """Time of the record that a look-up by time finds."""

    async def refresh(self, topics: Any) -> None: ...

    async def list_offsets(self, wanted: Mapping[tuple[str, int], int], **_: Any) -> dict[tuple[str, int], LogOffset]:
        def told(partition: int, at: int) -> LogOffset:
            if partition not in self.logs:
                return LogOffset(5, -1, -1)
            start, end = self.logs[partition]
            return LogOffset(0, {EARLIEST: start, LATEST: end}.get(at, 700), 0, self.time)

        return {key: told(key[1], at) for key, at in wanted.items()}

    async def log_ends(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogOffset]:
        return await self.list_offsets(dict.fromkeys(keys, LATEST))


class NoRuns:
    """A map topic without runs of this topic: the mirror's own report then says how far the copy is."""

    def __init__(self, _: Any) -> None: ...

    async def read_to_end(self) -> None: ...

    def folded(self, *_: Any) -> Any:
        return OffsetMap()


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """Return the sampled range of each partition; each offset weighs 1 MB, and half of the offsets are holes."""
    found: dict[int, tuple[int, int]] = {}

    async def sample(_: Any, topic: str, partition: int, start: int, end: int, *, stretches: int) -> Sample:
        found.setdefault(partition, (start, end))  # the last hour is sampled afterwards
        count = max(0, end - start)
        return Sample(count // 2, True, count * 10**6, 0)

    async def why_mapped(*_: Any, **__: Any) -> str:
        return ""

    async def mirror_topics(connections: Any, link: str, topics: list[str], *_: Any, **__: Any) -> verbs.Proposal:
        owner = connections.log.state.topic_owner(topics[0])
        if owner is not None and owner.link != link:
            raise Refused("topic-of-another-link", f"link {owner.link} mirrors it")
        return propose(connections.log, "topic mirror", ())

    monkeypatch.setattr(verbs, "mirror_topics", mirror_topics)
    monkeypatch.setattr(outlook, "sample", sample)
    monkeypatch.setattr(outlook, "why_mapped", why_mapped)
    monkeypatch.setattr("kmigrate.workflow.base.offset_maps.OffsetMaps", NoRuns)
    return found


def of_plan(
    start: str = "earliest", offsets: str = "identical", *, min_insync: int = 2, windows: str = "long"
) -> _Asked:
    return _Asked(
        start,
        offsets,
        50.0,
        compacted=False,
        stretches=10,
        settings=LinkSettings(),
        round_trip_s=0.001,
        min_insync=min_insync,
        windows=windows,
        configs_of=no_configs,
    )


def planned(
    record: TopicRecord | None,
    target: Mapping[int, tuple[int, int]],
    source: Mapping[int, tuple[int, int]] = SOURCE,
    words: Iterable[MirrorPresence] = (),
    *,
    start: str = "latest",
    offsets: str = "mapped",
    time: int = -1,
) -> TopicForecast:
    """Return the outlook of a plan with options that contradict the record."""
    log = MemoryLog(LINK, *([record] if record is not None else []), LeaseRecord("mirror/l", "m", 1))
    for word in words:
        log.say(word)
    connections = SimpleNamespace(log=log, target=Cluster(target))
    parts = dict.fromkeys(source, PartitionInfo(1, 0, (1, 2, 3)))
    info = TopicInfo("t", None, parts) if source else None
    asked = of_plan(start, offsets)
    cluster = cast("Any", Cluster(source, time=time))
    return asyncio.run(_forecast(cast("Any", connections), "l", cluster, info, "t", asked, []))


def figures(row: TopicForecast) -> tuple[int, int, int, float, str]:
    return row.padding, row.records, row.holes, row.seconds, row.offsets


def test_a_copy_is_counted_from_where_the_targets_logs_end(looked_at: dict[int, tuple[int, int]]) -> None:
    row = planned(COPIED, {0: (100, 1_000), 1: (0, 400)})
    assert looked_at == {0: (1_000, 1_100), 1: (400, 500)}
    assert figures(row) == (0, 200, 100, 4.0, "identical")
    assert (row.state, row.bytes) == ("mirroring", 200 * 10**6)
    (note,) = row.notes
    assert note.startswith("holes are filled with control markers, which bear the time of the copy")


def test_one_that_has_caught_up_has_nothing_left() -> None:
    assert figures(planned(COPIED, SOURCE)) == (0, 0, 0, 0.0, "identical")


def test_while_it_is_aligned_the_padding_that_is_missing_is_counted_and_all_records() -> None:
    aligning = replace(COPIED, phase=TopicPhase.ALIGNING)
    assert planned(aligning, {0: (0, 30), 1: (0, 0)}).padding == 70
    row = planned(aligning, {})
    assert (row.padding, row.records) == (100, 1_500)


def test_one_whose_copy_has_not_begun_gets_what_its_record_asks_for() -> None:
    waiting = TopicRecord("l", "t", TopicPhase.INITIALISING, 1, start="earliest", offsets="identical", partitions=2)
    row = planned(waiting, {})
    assert (row.padding, row.records, row.offsets, row.state) == (100, 1_500, "identical", "initialising")
    assert planned(None, {}, start="latest", offsets="auto").records == 0


def test_what_the_source_has_deleted_meanwhile_is_not_counted_and_an_added_partition_is() -> None:
    row = planned(COPIED, {0: (100, 200), 1: (0, 500)}, {0: (600, 1_100), 1: (0, 500), 2: (40, 90)})
    assert (row.records, row.padding, row.partitions) == (550, 40, 3)


def test_where_offsets_are_mapped_the_map_says_how_far_it_is_not_the_targets_log() -> None:
    mapped = replace(COPIED, mapped=True, target_starts={0: 9_000, 1: 0})
    said = {0: PartitionProgress(800, target_position=9_300), 1: PartitionProgress(500, target_position=400)}
    word = MirrorPresence("m", "l", 1, True, 500, {"t": said})
    row = planned(mapped, {0: (0, 9_300), 1: (0, 400)}, words=[word])
    assert figures(row) == (0, 300, 150, 6.0, "mapped")


def test_a_target_that_does_not_tell_is_named_and_all_is_counted() -> None:
    row = planned(COPIED, {})
    assert row.records == 1_500
    assert row.notes[0].startswith("the target does not tell how far the copy is, so all of it is counted: t-0: ")


@pytest.mark.parametrize("source", [SOURCE, {}], ids=["source there", "source gone"])
def test_of_a_promoted_one_nothing_is_left_wherever_its_source_ends(source: Mapping[int, tuple[int, int]]) -> None:
    row = planned(replace(COPIED, phase=TopicPhase.PROMOTED), {}, source)
    assert figures(row) == (0, 0, 0, 0.0, "identical")
    assert (row.partitions, row.state, row.notes) == (2, "promoted", ())


def test_another_links_topic_is_refused_as_before() -> None:
    row = planned(replace(COPIED, link="other"), SOURCE)
    assert (row.offsets, row.records) == ("link other mirrors it", 0), "as it would be here, --from latest"


def test_what_holds_a_copy_back_is_told_beside_its_figures() -> None:
    held = replace(COPIED, paused=True, stops={1: PartitionStop("source-range-lost", "gone")})
    assert planned(held, SOURCE).notes == (
        "it is paused: kmigrate topic resume --link l t",
        "partitions that have stopped, and that only a person lets go on (kmigrate status): 1",
    )


def test_growth_is_what_the_source_was_written_in_its_last_hour() -> None:
    """Offset 700 is the first offset of the last hour, and partition 1 ends before that offset."""
    row = planned(None, {}, start="earliest", offsets="identical")
    assert (row.hourly_bytes, row.replicas_target) == (400 * 10**6, 1)
    assert (row.disk, row.disk_growth) == (1_500 * 10**6, 400 * 10**6)


def test_growth_by_a_time_that_lies_ahead_is_unknown_and_that_of_a_promoted_topic_is_nothing() -> None:
    ahead = planned(None, {}, start="earliest", offsets="identical", time=now_ms() + 86_400_000)
    assert (ahead.hourly_bytes, ahead.disk_growth) == (-1, -1)
    assert planned(replace(COPIED, phase=TopicPhase.PROMOTED), {}).disk_growth == 0


@pytest.mark.parametrize(
    ("sizes", "text"), [([], ""), ([0, 0], ""), ([-1, -1], "?"), ([-1, 5_000], "≥ 5 kB"), ([1_000, 5_000], "6 kB")]
)
def test_a_sum_of_figures_of_which_some_are_unknown_says_so(sizes: list[int], text: str) -> None:
    assert _total(sizes) == text


@pytest.mark.parametrize(
    ("windows", "min_insync", "seconds", "way"),
    [
        ("long", 1, 102, "up to 64 of a partition in a round trip, as min.insync.replicas is 1 on the target"),
        ("long", 2, 300, "each a round trip of 1.0 ms, as min.insync.replicas is 2 on the target"),
        ("short", 1, 300, "each a round trip of 1.0 ms, as [mirror] has windows = short"),
        ("apart", 1, 400, "each two round trips of 1.0 ms, as [mirror] has windows = apart"),
    ],
)
def test_the_time_of_holes_depends_on_the_windows(windows: str, min_insync: int, seconds: float, way: str) -> None:
    asked = of_plan(min_insync=min_insync, windows=windows)
    found = _filling([Sample(100_000, True, 0, 100_000)], asked)
    assert (round(found[0]), found[1]) == (seconds, way)
