"""A seal makes the source broker hold the fence in place of a silent router; seals are set, proven and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.append import Takes
from kmigrate.errors import BrokerRefused, Refused, Unreachable
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import FenceAck, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    SIZE_LIMIT,
    LastEnd,
    Revoked,
    RouterRecord,
    Seal,
    StrayRecord,
    TopicRecord,
    TransactionRecord,
)
from kmigrate.model.routes import Serve, routing_table
from kmigrate.workflow.base import open_transactions as transactions
from kmigrate.workflow.promote import sealing, size_limit
from kmigrate.workflow.promote import topic as promote
from kmigrate.workflow.promote.sealing import may_come_off
from tests.fakes.coordinator import Coordinator
from tests.fakes.scripted_cluster import FakeAdmin
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING, ROUTER, SHARED, Stage

SILENT = RouterRecord("far", "f1", "far", "far:1", 1)
TILL = TransactionRecord("l", "till", 5, 0, 9, 8, ("t",))
LEFT = StrayRecord("gone", "far", ("g1", "g2"))


@dataclass
class SourceAdmin(FakeAdmin):
    """An admin client with the source's topic configs; `away` makes every change fail."""

    limit: ConfigValue = field(default_factory=lambda: ConfigValue("1048588", own=False))
    away: bool = False
    refuses: bool = False

    async def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        return {name: {SIZE_LIMIT: self.limit} for name in names}

    async def alter_topic_configs(self, *given: Any, try_only: bool = False) -> None:
        if self.away:
            raise Unreachable("away", "the source is away")
        if self.refuses:
            raise BrokerRefused("not-allowed", "no right to alter configs")
        if try_only:
            return
        self.altered.append(given)
        put = given[1].get(SIZE_LIMIT)
        self.limit = ConfigValue(put or "1048588", own=put is not None)


@dataclass
class Scene:
    """A topic that is promoted while routers are silent.

    A leader shows a change of configs only at the second look.
    """

    stage: Stage
    admin: SourceAdmin
    coordinator: Coordinator

    def promote(self) -> TopicRecord:
        return asyncio.run(self.stage.run())

    @property
    def seals(self) -> list[Seal | None]:
        return [r.seal for r in self.stage.log.history if isinstance(r, TopicRecord)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(*records: Record, topic: TopicRecord = PENDING, silent_s: float = 0.0) -> Scene:
        admin = SourceAdmin()
        log = MemoryLog(LINK, ROUTER, *SHARED, *records, topic)
        stage = Stage(log=log, source_admin=admin, silent_s=silent_s)
        looked: dict[tuple[int, str], int] = {}

        async def told(_: Any, __: str, partitions: list[int]) -> dict[int, Takes]:
            shown = Takes.NOTHING if admin.limit.value == "1" else Takes.WRITES
            other = Takes.WRITES if shown is Takes.NOTHING else Takes.NOTHING
            for partition in partitions:
                looked[(partition, admin.limit.value)] = looked.get((partition, admin.limit.value), 0) + 1
            return {p: shown if looked[(p, admin.limit.value)] > 1 else other for p in partitions}

        for module in (sealing, size_limit):
            monkeypatch.setattr(module, "ask_to_append", told)
        monkeypatch.setattr(sealing, "_AGAIN_S", 0.0)
        coordinator = Coordinator()
        coordinator.put_in_place(monkeypatch)
        return Scene(stage, admin, coordinator)

    return made


@pytest.mark.parametrize("other", [SILENT, LEFT])
def test_a_topic_is_sealed_for_a_router_that_is_silent_or_left_without_a_word(scene: Any, other: Record) -> None:
    made = scene(other)
    proven: list[str] = []

    def look(record: Record | None) -> None:
        if isinstance(record, TopicRecord) and record.phase is TopicPhase.FENCED:
            proven.append(made.admin.limit.value)

    made.stage.log.on_append = look
    record = made.promote()
    assert record.phase is TopicPhase.PROMOTED
    assert proven == ["1"], "the barrier is read behind the seal"
    assert record.seal is not None and set(record.seal.routers) == ({"f1"} if other is SILENT else {"g1", "g2"})
    assert made.admin.limit.value == "1", "it stays on after the flip"
    assert not may_come_off(made.stage.log, record)


def test_the_seal_and_the_old_value_are_written_down_before_the_broker_has_it(scene: Any) -> None:
    made = scene(SILENT)
    made.admin.limit = ConfigValue("2000000", own=True)
    written: list[tuple[str, bool]] = []

    def look(record: Record | None) -> None:
        if isinstance(record, TopicRecord) and record.seal is not None:
            written.append((record.seal.before, bool(made.admin.altered)))

    made.stage.log.on_append = look
    made.promote()
    assert written[0] == ("2000000", False)


def test_no_topic_is_sealed_while_every_router_answers(scene: Any) -> None:
    made = scene()
    assert made.promote().phase is TopicPhase.PROMOTED
    assert made.admin.altered == []
    assert set(made.seals) == {None}


def test_a_seal_comes_off_when_its_router_has_acknowledged_the_fence(scene: Any) -> None:
    made = scene(SILENT)
    record = made.promote()
    log = made.stage.log
    log.say(RouterPresence("f1", "far", 1, 500, {record.key: FenceAck(record.fence_epoch, 1)}))
    assert not may_come_off(log, record), "something of it is under way"
    log.say(RouterPresence("f1", "far", 1, 500, {record.key: FenceAck(record.fence_epoch, 0)}))
    assert may_come_off(log, record)
    record = made.promote()
    assert (record.phase, record.seal) == (TopicPhase.PROMOTED, None)
    assert made.admin.altered[-1] == ("t", {}, (SIZE_LIMIT,)), "it had no limit of its own"


@pytest.mark.parametrize(("other", "key"), [(SILENT, SILENT.key), (LEFT, LEFT.key)])
def test_a_seal_comes_off_when_its_router_has_left_or_is_called_dead(scene: Any, other: Record, key: str) -> None:
    made = scene(other)
    made.admin.limit = ConfigValue("2000000", own=True)
    record = made.promote()
    asyncio.run(made.stage.log.append(lambda _: (key, None)))
    assert may_come_off(made.stage.log, record)
    assert made.promote().seal is None
    assert made.admin.limit == ConfigValue("2000000", own=True)


def test_a_seal_stays_on_for_a_router_that_may_be_one_of_those_that_are_not_named_any_more(scene: Any) -> None:
    made = scene(LEFT)
    record = made.promote()
    asyncio.run(made.stage.log.append(lambda _: replace(LEFT, instances=(LEFT.key, "g9"))))
    assert not may_come_off(made.stage.log, record)
    asyncio.run(made.stage.log.append(lambda _: (LEFT.key, None)))
    assert may_come_off(made.stage.log, record)


def test_a_fence_that_is_given_up_takes_the_seal_off_before_anything_is_forwarded_again(scene: Any) -> None:
    made = scene(SILENT)
    made.stage.mirror_stops_at = 99
    record = made.promote()
    assert record.phase is TopicPhase.MIRRORING
    assert record.seal is not None
    assert routing_table(made.stage.log.state).topics["t"].serve is Serve.HOLD
    record = made.promote()
    assert (record.phase, record.seal) == (TopicPhase.MIRRORING, None)
    assert not made.admin.limit.own
    assert routing_table(made.stage.log.state).topics["t"].serve is Serve.FORWARD


def test_a_source_that_is_away_keeps_the_seal_in_the_record_until_it_is_off(scene: Any) -> None:
    made = scene(SILENT)
    made.stage.mirror_stops_at = 99
    made.promote()
    made.admin.away = True
    with pytest.raises(Unreachable):  # the controller reports the error, and tries again
        made.promote()
    assert made.stage.record.seal is not None
    made.admin.away = False
    assert made.promote().seal is None


class Crashed(Exception):
    """A stand-in for kill -9 right after a durable write."""


@pytest.mark.parametrize("write", range(5))
def test_a_controller_that_dies_after_any_write_forgets_no_seal(scene: Any, write: int) -> None:
    made = scene(SILENT)
    left = [write]

    def crash(_: Record | None) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Crashed

    made.stage.log.on_append = crash
    with pytest.raises(Crashed):
        made.promote()
    record = made.promote()
    assert (record.phase, made.admin.limit.value) == (TopicPhase.PROMOTED, "1")
    assert record.seal == Seal("", {"f1": "far"})


def test_a_seal_of_a_controller_whose_fence_another_has_lifted_is_taken_off_at_once(scene: Any) -> None:
    made = scene(SILENT)
    stage = made.stage
    fenced = replace(PENDING, phase=TopicPhase.FENCING, fence_epoch=1, seal=Seal("", {"f1": "far"}))
    asyncio.run(stage.log.append(lambda _: replace(fenced, phase=TopicPhase.MIRRORING, seal=None)))
    assert asyncio.run(stage.promotion().sealer.put_on(fenced, {"f1": "far"}, 0.0)) is False
    assert not made.admin.limit.own


@pytest.fixture
def written(scene: Any, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return a scene whose topic transactions write, too."""

    async def none_lost(*_: Any) -> None: ...

    async def open_topics(*_: Any) -> dict[str, frozenset[str]]:
        return {}

    monkeypatch.setattr(promote, "refuse_lost_ids", none_lost)
    monkeypatch.setattr(promote, "_SHORT_S", 0.02)
    monkeypatch.setattr(promote, "_LOOK_S", 0.003)
    monkeypatch.setattr(transactions, "open_topics", open_topics)
    made: Scene = scene(SILENT, TILL)
    return made


def revoked(made: Scene) -> Revoked | None:
    found = made.stage.log.state.transaction("l", "till")
    assert found is not None
    return found.revoked


def test_identities_are_revoked_before_the_topic_that_they_write_is_sealed(written: Scene) -> None:
    """Identities are revoked before the topic is sealed.

    A marker that meets the seal would never be written, and the transactional id would be lost.
    """
    sealed_at: list[tuple[bool, bool]] = []
    alter = written.admin.alter_topic_configs

    async def altered(*given: Any, **how: Any) -> None:
        sealed_at.append((how.get("try_only", False), written.coordinator.refuses))
        await alter(*given, **how)

    written.admin.alter_topic_configs = altered  # type: ignore[method-assign]
    record = written.promote()
    assert record.phase is TopicPhase.PROMOTED
    assert sealed_at == [(True, False), (False, True)]
    assert revoked(written) == Revoked(LastEnd.COMMITTED, proven=True)
    assert written.coordinator.asked[-1] == "open_writers", "the source is asked once more behind the seal"


def test_a_seal_gives_way_to_a_transaction_that_a_late_word_has_begun(written: Scene) -> None:
    """A late request has begun the transaction with an id that has not written the topic before."""
    looked: list[str] = []

    def late(what: str) -> None:
        if what != "open_writers" or written.stage.record.phase is not TopicPhase.FENCING:
            return
        looked.append(written.admin.limit.value)
        if len(looked) == 3:
            written.coordinator.topics = ("t",)
        elif len(looked) == 5:
            written.coordinator.topics = ()

    written.coordinator.before = late
    assert written.promote().phase is TopicPhase.PROMOTED
    assert looked == ["1048588", "1048588", "1", "1048588", "1048588", "1048588", "1"]


def test_a_transaction_that_does_not_end_gives_the_promote_up_and_no_identity_is_touched(written: Scene) -> None:
    def begun(_: str) -> None:
        written.coordinator.topics = ("t",) if written.stage.record.phase is TopicPhase.FENCING else ()

    written.coordinator.before = begun
    record = written.promote()
    assert record.phase is TopicPhase.MIRRORING
    assert record.reason == "open-transaction: till has a transaction open on t at the source"
    assert written.admin.altered == [] and revoked(written) is None
    assert written.promote().seal is None, "what was written down is taken back"


def test_a_router_that_goes_on_comes_to_an_end_though_a_transaction_is_open_at_any_time(written: Scene) -> None:
    """A router that is cut off from the state log, and begins ever new transactions, does not stop the promote."""
    coordinator = written.coordinator

    def goes_on(_: str) -> None:
        if written.stage.record.phase is TopicPhase.FENCING and not coordinator.refuses:
            coordinator.topics, coordinator.began = ("t",), coordinator.began + 1
        else:
            coordinator.topics = ()

    coordinator.before = goes_on
    assert written.promote().phase is TopicPhase.PROMOTED


def test_a_missing_right_to_speak_for_an_id_is_found_before_anything_is_changed(written: Scene) -> None:
    written.coordinator.denies = True
    record = written.promote()
    assert (record.phase, record.seal) == (TopicPhase.MIRRORING, None)
    assert record.reason.startswith("transactional-id-denied: no right to speak for till. Topic t has to be sealed")
    assert record.way_on == "if no such process runs any more: kmigrate router forget far --dead"
    assert written.admin.altered == [] and not written.coordinator.refuses


@pytest.mark.parametrize("write", range(7))
def test_a_controller_that_dies_after_any_write_leaves_no_identity_half_revoked(written: Scene, write: int) -> None:
    left = [write]

    def crash(_: Record | None) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Crashed

    written.stage.log.on_append = crash
    with pytest.raises(Crashed):
        written.promote()
    record = written.promote()
    assert (record.phase, written.admin.limit.value) == (TopicPhase.PROMOTED, "1")
    assert revoked(written) == Revoked(LastEnd.COMMITTED, proven=True)
    assert written.coordinator.epoch == 9, "raised once"


@pytest.mark.parametrize("write", range(2, 5))
def test_what_is_half_revoked_when_a_promote_is_given_up_is_finished_before_the_topic_goes_on(
    written: Scene, write: int
) -> None:
    left = [write]

    def give_up(_: Record | None) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Refused("given-up", "for this test")

    written.stage.log.on_append = give_up
    written.promote()
    written.stage.log.on_append = lambda _: None
    record = written.promote()
    assert (record.phase, record.seal) == (TopicPhase.MIRRORING, None)
    half = revoked(written)
    assert half is None or half.proven
    assert written.coordinator.refuses is (half is not None)
    assert routing_table(written.stage.log.state).topics["t"].serve is Serve.FORWARD


def test_a_seal_is_not_taken_out_of_the_record_while_a_revocation_is_half_done(written: Scene) -> None:
    """Another controller, which counted as dead, begins a revocation just before the seal would be removed."""
    written.stage.mirror_stops_at = 99
    written.promote()
    half = replace(TILL, source_epoch=9, revoked=Revoked(LastEnd.COMMITTED))
    written.coordinator.state = "CompleteCommit"
    written.stage.log.meanwhile(lambda _: half)
    assert written.promote().seal is None
    assert revoked(written) == Revoked(LastEnd.COMMITTED, proven=True)
    assert written.coordinator.epoch == 10


def test_transactions_that_may_hang_on_the_silent_router_are_waited_for_before_the_fence(written: Scene) -> None:
    """Transactions that may hang at the silent router end before the fence begins.

    Otherwise every writer would wait for the patience of a single client, whose next transaction may hang, too.
    """
    coordinator, looked = written.coordinator, [0]
    coordinator.topics = ("t",)

    def look(_: str) -> None:
        looked[0] += 1
        coordinator.began = 1 if looked[0] < 10 else 2 if looked[0] < 20 else looked[0]
        if written.stage.record.phase is TopicPhase.FENCING:
            coordinator.topics = ()
            assert looked[0] > 20

    coordinator.before = look
    assert written.promote().phase is TopicPhase.PROMOTED


def test_one_that_hangs_on_for_too_long_is_named_and_nothing_was_fenced(written: Scene) -> None:
    written.coordinator.topics = ("t",)
    record = written.promote()
    assert record.reason == "open-transaction: till has had one open on t for long"
    assert TopicPhase.FENCING not in {r.phase for r in written.stage.log.history if isinstance(r, TopicRecord)}


def test_a_source_that_does_not_let_itself_be_sealed_is_asked_before_anything_is_written_down(scene: Any) -> None:
    made = scene(SILENT)
    made.admin.refuses = True
    record = made.promote()
    assert (record.phase, record.seal) == (TopicPhase.MIRRORING, None)
    assert record.reason.startswith("not-allowed: no right to alter configs. Topic t has to be sealed on the source")
    assert set(made.seals) == {None}


def test_a_seal_that_no_leader_shows_gives_the_promote_up(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scene(SILENT)

    async def open_(_: Any, __: str, partitions: list[int]) -> dict[int, Takes]:
        return dict.fromkeys(partitions, Takes.WRITES)

    monkeypatch.setattr(size_limit, "ask_to_append", open_)
    record = made.promote()
    assert record.phase is TopicPhase.MIRRORING
    assert record.reason == f"seal-unproven: {record.topic}-0: the source still takes writes"


def test_a_router_that_is_not_silent_long_enough_is_waited_for(scene: Any) -> None:
    made = scene(SILENT, silent_s=60.0)
    assert "registered but silent" in made.promote().reason
    assert made.admin.altered == []
