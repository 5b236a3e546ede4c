"""One try of a Spark task obeys the state log.

The try ends when all its partitions have reached their ends, no matter which process copied them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Refused
from kmigrate.mirror.bulk.task import ENDLESS, BulkJob, BulkTry, Copied
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import Claim, ClusterRef, CopyEngine, CopyIdentity, LinkRecord, TopicRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.stops import PartitionStop, Remedy
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1, CopyIdentity(77, 0))
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 0, 1: 0}, engine=CopyEngine.SPARK)
NOWHERE = ClusterSettings("nowhere", (("127.0.0.1", 1),))


class Stage:
    """A try that copies nothing; the test sets the positions of its lanes."""

    def __init__(self, ends: Mapping[int, int], *, endless: bool = False, throttle: int = 0) -> None:
        self.log = MemoryLog(LINK, TOPIC)
        job = BulkJob("l", NOWHERE, NOWHERE, MirrorSettings(), True, 1 << 20, throttle, {"t": 2} if endless else {})
        client = ClusterClient(NOWHERE)
        keys = {("t", partition): end for partition, end in ends.items()}
        self.it = BulkTry(job, keys, "me", client, client, cast("StateLog", self.log))
        self.change(TOPIC)

    def change(self, record: TopicRecord) -> None:
        self.log._put(record.key, record)
        self.it._apply(self.log.state)

    def at(self, partition: int, position: int) -> None:
        self.it.copier.lanes[("t", partition)].target.position = position

    @property
    def ended(self) -> list[Copied]:
        self.it._look(self.log.state)
        return [self.it._ended[key] for key in sorted(self.it._ended)]


def test_a_partition_ends_at_its_end_or_beyond_it_whoever_wrote_the_last_batch() -> None:
    stage = Stage({0: 10, 1: 10})
    assert stage.ended == []
    stage.at(0, 10)
    stage.at(1, 9)
    assert stage.ended == [Copied("t", 0, 10, 0)]
    stage.at(1, 12)
    assert stage.ended == [Copied("t", 0, 10, 0), Copied("t", 1, 12, 0)]


def test_a_topic_that_is_forgotten_is_named_until_nothing_of_it_is_on_its_way() -> None:
    stage = Stage({0: 10})
    lane = stage.it.copier.lanes[("t", 0)]
    lane.busy = True
    stage.change(replace(TOPIC, forgotten_ms=7))
    assert stage.it._presence().topics == {"t": {}}
    lane.busy = False
    assert stage.it._presence().topics == {}


def test_nothing_beyond_the_end_is_sent() -> None:
    stage = Stage({0: 10})
    assert stage.it.copier.lanes[("t", 0)].barrier == 10
    assert Stage({0: ENDLESS}).it.copier.lanes[("t", 0)].barrier is None


@pytest.mark.parametrize(
    "after",
    [replace(TOPIC, engine=CopyEngine.DAEMON), replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING)],
)
def test_what_is_handed_over_or_promoted_is_let_go_of_once_nothing_is_under_way(after: TopicRecord) -> None:
    stage = Stage({0: 10, 1: 10})
    stage.at(0, 10)
    assert len(stage.ended) == 1
    stage.it.copier.lanes[("t", 1)].busy = True
    stage.change(after)
    assert len(stage.ended) == 1, "a hole is being made"
    lane = stage.it.copier.lanes[("t", 1)]
    lane.busy = False
    stage.it.copier._drop_released(lane)
    assert stage.ended[1] == Copied("t", 1, -1, 0, left=True)


def test_a_stop_is_reported_once_it_is_in_the_state_log_or_anothers_to_write() -> None:
    stage = Stage({0: 10, 1: 10})
    for partition in (0, 1):
        stage.it.copier.lanes[("t", partition)].stop("diverged: it holds another record")
    assert stage.ended == []
    stop = PartitionStop("diverged", "it holds another record", Remedy.ANEW)
    stage.change(replace(TOPIC, claims={0: Claim("me", 5), 1: Claim("other", 5)}, stops={0: stop}))
    assert [each.problem for each in stage.ended] == ["diverged: it holds another record"] * 2


def test_an_endless_copy_goes_on_until_the_topic_has_more_partitions_than_were_planned() -> None:
    stage = Stage({0: ENDLESS, 1: ENDLESS}, endless=True)
    stage.at(0, 1_000)
    assert stage.ended == []
    stage.change(replace(TOPIC, partitions=3, starts={0: 0, 1: 0, 2: 0}))
    assert [each.left for each in stage.ended] == [True, True]


@pytest.mark.parametrize(("of_link", "of_job", "limit"), [(0, 0, 0), (800, 0, 400), (0, 300, 300), (800, 300, 300)])
def test_a_task_keeps_to_its_part_of_the_links_limit_and_to_its_own(of_link: int, of_job: int, limit: int) -> None:
    stage = Stage({0: 10}, throttle=of_job)
    stage.log._put(LINK.key, replace(LINK, throttle=of_link))
    stage.it._apply(stage.log.state)
    assert stage.it.copier._throttle.rate == limit


def test_a_link_that_no_mirror_process_has_taken_up_is_refused() -> None:
    log = MemoryLog(replace(LINK, copy=None), TOPIC)
    client = ClusterClient(NOWHERE)
    job = BulkJob("l", NOWHERE, NOWHERE, MirrorSettings(), True, 1 << 20)
    with pytest.raises(Refused) as refused:
        BulkTry(job, {("t", 0): 10}, "me", client, client, cast("StateLog", log))
    assert refused.value.ref == "link-not-activated"
