"""A mirror process announces its presence, leaves cleanly, and takes its share of the link's rate limit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.lanes import Lanes
from kmigrate.mirror.copy.throttle import part_of_limit
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.process import engine as module
from kmigrate.mirror.process.engine import MirrorEngine
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep.lease_holder import LeaseHolder
from kmigrate.mirror.upkeep.source_changes import Upkeep
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import FencedProgress, MirrorPresence
from kmigrate.model.records import (
    AssignmentRecord,
    ClusterRef,
    CopyIdentity,
    GroupRecord,
    LeaseRecord,
    LinkRecord,
    TopicRecord,
    WayBack,
)
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import boottime, monotonic
from kmigrate.state.codec import Report
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

LEASE = LeaseRecord("mirror/l", "me", 4)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 0, 1: 0})
GROUP = GroupRecord("l", "t", GroupPhase.MIRRORED, 1, forgotten_ms=7)
ROOM = SimpleNamespace(low="", unwatched="")
SHARED = AssignmentRecord("l", 5, ("me", "you"), {"t": (0, 1)})


def engine(log: MemoryLog, settings: MirrorSettings | None = None) -> MirrorEngine:
    nowhere = ClusterClient(ClusterSettings("nowhere", (("127.0.0.1", 1),)))
    admin = cast("Admin", None)
    own = cast("StateLog", log), "me", settings or MirrorSettings()
    return MirrorEngine(MirroredLink(nowhere, nowhere, admin, admin, "l", *own))


def said(log: MemoryLog) -> list[MirrorPresence]:
    return [word for word, _ in log.presence.values() if isinstance(word, MirrorPresence)]


def test_a_process_that_ends_says_that_its_share_is_free_and_gives_up_the_lease() -> None:
    log = MemoryLog(LEASE, TOPIC, SHARED)
    asyncio.run(engine(log)._leave())
    assert [(word.shares, word.topics) for word in said(log)] == [(False, {})]
    lease = log.state.lease("mirror/l")
    assert lease is not None
    assert (lease.holder, lease.term) == ("", 4)


def test_a_process_whose_configuration_contradicts_the_link_says_so_in_its_notes() -> None:
    it = engine(MemoryLog(LEASE, TOPIC, SHARED))
    assert it._notes() == ()
    it._link = replace(it._link, contradictions=lambda of_link: {"hole_limit": f"7, not {of_link.hole_limit}"})
    assert it._notes() == ("link-settings-differ: 7, not 100000; the link's setting counts",)


def test_one_that_ends_in_the_middle_of_a_hole_keeps_silent_as_if_it_had_died() -> None:
    log = MemoryLog(LEASE, TOPIC, SHARED)
    leaving = engine(log)
    leaving._late_writes = [("t", 0)]
    asyncio.run(leaving._leave())
    assert said(log) == []
    assert log.state.lease("mirror/l") == LEASE


@pytest.mark.parametrize("torn", [False, True])
def test_one_that_begins_anew_after_a_failure_in_the_middle_of_a_hole_keeps_silent_until_it_copies(torn: bool) -> None:
    log = MemoryLog(LEASE, TOPIC, SHARED)
    it = engine(log)
    it._late_writes = [("t", 0)] if torn else []

    async def scene() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(it._announce(), 0.05)

    asyncio.run(scene())
    assert [word.shares for word in said(log)] == ([] if torn else [False])


def test_one_that_begins_anew_lets_the_tail_rest_of_a_partition_whose_markers_may_still_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failure the process knows which partitions may still get markers of its own.

    Their log ends are not settled: a late marker may be written before the next batch.
    """
    link = LinkRecord("l", "u", ClusterRef("s", ""), ClusterRef("t", ""), 1, copy=CopyIdentity(1, 0))
    it, unknown = engine(MemoryLog(link, TOPIC, replace(SHARED, owners={"t": (0, 0)}))), list[list[bool]]()

    async def nothing(*_: object, **__: object) -> str:
        return ""

    async def no_limit(*_: object) -> int:
        return 1 << 20

    async def run(copier: Copier) -> None:
        if len(unknown) != 1:
            await asyncio.sleep(0.01)
        unknown.append([copier.lanes[key].target.unknown for key in sorted(copier.lanes)])
        if len(unknown) == 1:
            copier.lanes["t", 1].fill()
        raise Unreachable("wait", "the state log is away")

    monkeypatch.setattr(module, "activate", nothing)
    monkeypatch.setattr(module, "request_limit", no_limit)
    monkeypatch.setattr(Copier, "run", run)

    async def scene() -> None:
        for _ in range(4):
            with suppress(Unreachable):
                await it._serve()

    asyncio.run(scene())
    assert unknown == [[False, False], [], [False, True], [False, True]], "also where one failed before it began"


def test_what_is_not_compare_and_set_is_done_only_by_an_owner_that_is_sure_of_itself() -> None:
    it = engine(MemoryLog(LEASE, TOPIC, SHARED))
    assert it._owner_term(("t", 0)) == 0, "nobody has heard of it yet"
    it._membership.announced(monotonic())
    assert it._owner_term(("t", 0)) == SHARED.generation
    assert it._owner_term(("t", 1)) == 0
    assert it._owner_term(("other", 0)) == 0


@pytest.mark.parametrize("lease_s", [1.0, 1.5, 3.0, 30.0])
@pytest.mark.parametrize("partitions", [1, 100_000])
def test_its_word_is_said_again_before_it_is_no_longer_good(lease_s: float, partitions: int) -> None:
    it = engine(MemoryLog(LEASE, TOPIC, SHARED), MirrorSettings(lease_s=lease_s))
    it._copier = cast("Copier", SimpleNamespace(lanes=range(partitions)))
    interval_s = it._presence_ms() / 1000
    it._membership.announced(monotonic() - 1.6 * interval_s)
    assert it._membership.sure()
    assert interval_s <= (0.5 if partitions == 1 else 1.0)


def test_a_process_says_that_it_has_let_go_of_what_is_forgotten_once_nothing_of_it_is_under_way() -> None:
    log = MemoryLog(LEASE, replace(TOPIC, forgotten_ms=7), SHARED)
    it = engine(log)
    assert it._presence().let_go == log.state.epoch
    lane = Lane("t", 0, producer_id=1, epoch=0, hole_limit=1)
    it._copier = cast("Copier", SimpleNamespace(lanes={lane.key: lane}, leaving=frozenset(), trouble="", disks=ROOM))
    assert it._presence().let_go == -1, "it has not read of it yet"
    it._copier = cast("Copier", SimpleNamespace(lanes={}, leaving={"t"}, trouble="", disks=ROOM))
    assert it._presence().let_go == -1, "a batch of it is left until its last answer"
    it._copier = None
    for part in ("_lease_holder", "_upkeep"):
        setattr(it, part, SimpleNamespace(working={TOPIC.key}, trouble="", problems={}, reports={}, notes=()))
        assert it._presence().let_go == -1
        setattr(it, part, None)
    log._put(TOPIC.key, TOPIC)
    it._lease_holder = cast("LeaseHolder", SimpleNamespace(working={TOPIC.key}, trouble="", problems={}))
    assert it._presence().let_go == log.state.epoch, "it is mirrored"
    log._put(GROUP.key, GROUP)
    assert it._presence().let_go == log.state.epoch, "a topic may have a group's name"
    it._upkeep = cast("Upkeep", SimpleNamespace(working={GROUP.key}, reports={}, notes=()))
    assert it._presence().let_go == -1


def test_status_is_told_why_nothing_is_pipelined() -> None:
    it = engine(MemoryLog(LEASE, TOPIC, SHARED))
    assert it._presence().notes == ()
    it._forgets = "its brokers do not know producer.id.expiration.ms"
    (note,) = it._presence().notes
    assert note.startswith("short-memory: target nowhere: its brokers do not know producer.id.expiration.ms; each")


def test_between_two_words_only_what_writers_wait_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one topic is fenced, the frequent announcements leave out the partitions of all other topics."""
    log = MemoryLog(LEASE, TOPIC, SHARED)
    it = engine(log)
    lanes = Lanes()
    for name in ("t", "fenced"):
        lanes[name, 0] = Lane(name, 0, producer_id=1, epoch=0, hole_limit=1)
    it._copier = cast("Copier", SimpleNamespace(lanes=lanes, leaving=frozenset(), trouble="", disks=ROOM))
    it._applied = 9
    words: list[Report] = []

    async def announce(word: Report) -> None:
        words.append(word)

    monkeypatch.setattr(log, "announce", announce)

    async def scene() -> None:
        speaking = asyncio.create_task(it._announce())
        await asyncio.sleep(0.02)
        it._urgent_topics = {"fenced"}
        lanes["fenced", 0].urgent = True
        lanes["fenced", 0].barrier = lanes["fenced", 0].target.position = 7
        it._moved(lanes["t", 0])
        it._moved(lanes["fenced", 0])
        await asyncio.sleep(0.1)
        it._announce_now()
        await asyncio.sleep(0.02)
        speaking.cancel()

    asyncio.run(scene())
    first, second, third = words
    assert isinstance(first, MirrorPresence)
    assert isinstance(second, FencedProgress)
    assert isinstance(third, MirrorPresence)
    assert set(first.topics) == set(third.topics) == {"t", "fenced"}
    assert (second.applied, {t: told[0].position for t, told in second.topics.items()}) == (9, {"fenced": 7})


def test_a_mapped_topic_is_the_lease_holders_under_the_term_of_its_lease() -> None:
    mapped = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, mapped=True)
    it = engine(MemoryLog(LEASE, mapped, SHARED))
    it._membership.announced(monotonic())
    assert it._owner_term(("t", 1)) == LEASE.term


@pytest.mark.parametrize(
    ("throttle", "ours", "everything", "part"), [(0, 3, 9, 0), (900, 3, 9, 300), (900, 9, 9, 900), (2, 1, 9, 1)]
)
def test_processes_divide_a_links_limit_by_their_partitions(
    throttle: int, ours: int, everything: int, part: int
) -> None:
    assert part_of_limit(throttle, ours, everything) == part


def test_brokers_that_are_sent_no_windows_are_named() -> None:
    it = engine(MemoryLog(LEASE, TOPIC, SHARED))
    assert it._presence().notes == ()
    it._holes = cast("HoleMaker", SimpleNamespace(slow_brokers=frozenset({3, 1}), in_turn=frozenset(), window_s=0.0))
    (note,) = it._presence().notes
    assert note.startswith("holes-apart: target ") and "brokers 1, 3 go on behind a refused" in note


def test_nothing_is_written_under_a_state_that_is_not_the_newest_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest state may have ended the copy of a topic, whose log then belongs to the clients."""
    log = MemoryLog(LEASE, TOPIC, SHARED)
    it = engine(log)
    it._applied = log.state.epoch
    assert not it._may_write(), "nobody has heard of it yet"
    it._membership.announced(boottime())
    assert it._may_write()
    log._put(TOPIC.key, replace(TOPIC, phase=TopicPhase.PROMOTED))
    assert not it._may_write()


class Given:
    """A copier that notes which topics it is given."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.changes: list[dict[str, MirroredTopic | None]] = []
        self.limits: list[int] = []

    def change(self, topics: dict[str, MirroredTopic | None]) -> None:
        self.changes.append(topics)

    def limit(self, rate: int) -> None:
        self.limits.append(rate)


def test_a_state_record_gives_the_copier_the_topics_that_have_changed() -> None:
    """With 10,000 topics a look at all of them takes long enough to be felt by the writers behind a fence."""
    names = [f"t{number:03}" for number in range(300)]
    link = LinkRecord("l", "u", ClusterRef("s", ""), ClusterRef("t", ""), 1, copy=CopyIdentity(1, 0), throttle=600)
    topics = [replace(TOPIC, topic=name) for name in names]
    shared = replace(SHARED, owners=dict.fromkeys(names, (0, 1)))
    log = MemoryLog(link, LEASE, shared, *topics)
    it, copier = engine(log), Given()

    def apply() -> dict[str, MirroredTopic | None]:
        it._apply(log.state, cast("Copier", copier))
        return copier.changes[-1]

    first = apply()
    assert sorted(first) == names
    assert copier.limits == [300], "this process copies half of the partitions"
    log._put(topics[7].key, replace(topics[7], phase=TopicPhase.FENCING))
    it._full = it._urgent = False
    fenced = apply()
    assert [(name, topic.urgent) for name, topic in fenced.items() if topic is not None] == [("t007", True)]
    assert (it._urgent, it._full, it._applied) == (True, False, log.state.epoch), "progress of that topic is enough"
    log._put(topics[7].key, topics[7])
    assert [topic.urgent for topic in apply().values() if topic is not None] == [False]
    log._put(topics[8].key, replace(topics[8], forgotten_ms=5))
    assert apply() == {"t008": None}
    log._put("assignment/l", replace(shared, generation=6, owners={**shared.owners, "t000": (0, 0)}))
    again = apply()
    assert sorted(again) == sorted({*names} - {"t008"}), "an assignment concerns all topics"
    assert [name for name in again if again[name] is not first[name] and name != "t007"] == ["t000"]


def test_a_topic_that_changes_its_direction_leaves_one_copier_before_the_other_begins() -> None:
    link = LinkRecord("l", "u", ClusterRef("s", ""), ClusterRef("t", ""), 1, copy=CopyIdentity(1, 0))
    log = MemoryLog(link, LEASE, TOPIC, SHARED)
    it, forward, back = engine(log), Given(), Given()
    it._reverse.copier = cast("Copier", back)
    it._apply(log.state, cast("Copier", forward))
    way_back = WayBack({0: 3, 1: 4}, copy=CopyIdentity(9, 0))
    log._put(TOPIC.key, replace(TOPIC, phase=TopicPhase.PROMOTED, way_back=way_back))
    order: list[tuple[str, list[str]]] = []

    def note(which: str, topics: dict[str, MirroredTopic | None]) -> None:
        order.extend((which, ["ends" if topic is None else "copies"]) for topic in topics.values())

    forward.change = lambda topics: note("forward", topics)  # type: ignore[method-assign]
    back.change = lambda topics: note("back", topics)  # type: ignore[method-assign]
    it._apply(log.state, cast("Copier", forward))
    assert order.index(("forward", ["ends"])) < order.index(("back", ["copies"]))
    assert ("back", ["ends"]) not in order


def test_a_process_without_a_part_in_a_fence_has_nothing_urgent_to_say() -> None:
    link = LinkRecord("l", "u", ClusterRef("s", ""), ClusterRef("t", ""), 1, copy=CopyIdentity(1, 0))
    yours = AssignmentRecord("l", 5, ("me", "you"), {"t": (1, 1)})
    log = MemoryLog(link, replace(LEASE, holder="you"), yours, TOPIC)
    it = engine(log)
    it._apply(log.state, cast("Copier", Given()))
    it._full = it._urgent = False
    log._put(TOPIC.key, replace(TOPIC, phase=TopicPhase.FENCING))
    it._apply(log.state, cast("Copier", Given()))
    assert (it._urgent, it._full) == (False, True)
