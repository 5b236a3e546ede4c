"""Producer identities are revoked at the source before a seal.

The outcome of the last transaction is noted first, a transaction may slip in, and the next controller finishes a
revocation that is half done.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.errors import BrokerRefused, Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import ClusterRef, LastEnd, LinkRecord, Revoked, Seal, TransactionRecord
from kmigrate.net.clock import monotonic
from kmigrate.workflow.promote.revoking import Revoker
from tests.fakes.coordinator import Coordinator
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING

FENCED = replace(PENDING, phase=TopicPhase.FENCING, fence_epoch=1, seal=Seal("", {"f1": "far"}))
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",))


def scene(patch: pytest.MonkeyPatch, coordinator: Coordinator, *records: Record) -> Revoker:
    coordinator.put_in_place(patch)
    return Revoker(MemoryLog(LINK, FENCED, *(records or (TILL,))), coordinator)  # type: ignore[arg-type]


def revoke(revoker: Revoker, span: float = 5.0) -> bool:
    return asyncio.run(revoker.revoke(FENCED, monotonic() + span))


def revoked(revoker: Revoker, link: str = "l") -> Revoked | None:
    found = revoker.log.state.transaction(link, "till")
    assert found is not None
    return found.revoked


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("state", ["CompleteCommit", "Empty"])
def test_an_identity_is_refused_by_the_source_and_how_it_ended_is_known(
    monkeypatch: pytest.MonkeyPatch, tells: bool, state: str
) -> None:
    coordinator = Coordinator(state=state, tells=tells)
    revoker = scene(monkeypatch, coordinator)
    assert revoke(revoker)
    assert coordinator.refuses
    assert revoked(revoker) == Revoked(LastEnd.COMMITTED, proven=True)


@pytest.mark.parametrize(("tells", "noted"), [(True, LastEnd.ABORTED), (False, LastEnd.CUT_OFF)])
def test_an_abort_before_kafka_3_0_may_have_been_ours(
    monkeypatch: pytest.MonkeyPatch, tells: bool, noted: LastEnd
) -> None:
    revoker = scene(monkeypatch, Coordinator(state="CompleteAbort", tells=tells))
    assert revoke(revoker)
    assert revoked(revoker) == Revoked(noted, proven=True)


def test_how_it_ended_is_written_down_before_the_source_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    revoker = scene(monkeypatch, coordinator)
    noted: list[Revoked | None] = []

    def look(what: str) -> None:
        if what == "raise_epoch":
            noted.append(revoked(revoker))

    coordinator.before = look
    assert revoke(revoker)
    assert noted == [Revoked(LastEnd.COMMITTED)], "and is not believed yet"


@pytest.mark.parametrize("kind", [{}, {"tells": False}, {"forgives": True}])
def test_a_transaction_that_slips_in_is_cut_off_and_its_record_says_so(
    monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    coordinator = Coordinator(**kind)
    revoker = scene(monkeypatch, coordinator)
    coordinator.before = lambda what: coordinator.begins("t") if what == "raise_epoch" else None
    assert revoke(revoker)
    assert revoked(revoker) == Revoked(LastEnd.CUT_OFF, proven=True)


def test_a_transaction_that_slips_in_and_is_ended_by_its_client_is_what_the_record_tells_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = Coordinator(state="CompleteAbort")
    revoker = scene(monkeypatch, coordinator)
    raised = [0]

    async def raising(_: Any, __: Any) -> int:
        raised[0] += 1
        if raised[0] == 1:
            coordinator.ends("CompleteCommit")
            return 51  # the markers are being written
        return await Coordinator.raise_epoch(coordinator, None, ("till", 9, 8))

    monkeypatch.setattr("kmigrate.workflow.promote.revoking.raise_epoch", raising)
    assert revoke(revoker)
    assert revoked(revoker) == Revoked(LastEnd.COMMITTED, proven=True)


def test_one_whose_time_was_up_is_refused_already_and_its_client_has_to_hear_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = Coordinator(epoch=9, state="CompleteAbort")
    revoker = scene(monkeypatch, coordinator)
    assert revoke(revoker)
    assert revoked(revoker) == Revoked(LastEnd.CUT_OFF, proven=True)
    assert "raise_epoch" not in coordinator.asked


def test_an_id_that_the_source_has_forgotten_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(state="Dead")
    revoker = scene(monkeypatch, coordinator)
    assert revoke(revoker)
    assert revoked(revoker) == Revoked(LastEnd.COMMITTED, proven=True)
    assert coordinator.asked == ["id_state"]


def test_an_open_transaction_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(state="Ongoing", topics=("t",))
    revoker = scene(monkeypatch, coordinator)
    with pytest.raises(Refused, match="till has a transaction open"):
        revoke(revoker, span=0.05)
    assert not coordinator.refuses and revoked(revoker) is None


def test_before_kafka_3_0_no_abort_is_sent_while_the_logs_tell_of_an_open_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A source before Kafka 3.0 gets no abort while any topic of the id shows an open transaction.

    Each topic has a promote of its own, and the promote of another topic may not have reached its fence.
    """
    coordinator = Coordinator(tells=False)
    other = replace(PENDING, topic="u")
    revoker = scene(monkeypatch, coordinator, replace(TILL, topics=("t", "u")), other)

    async def begun(keys: Any) -> Any:
        return {key: (0, (ProducerState(9, 8, 1, 1, 40 if key[0] == "u" else -1),)) for key in keys}

    monkeypatch.setattr(coordinator, "describe_producers", begun)
    with pytest.raises(Refused, match="till has a transaction open"):
        revoke(revoker, span=0.05)
    assert coordinator.asked == []


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("slips", [False, True])
@pytest.mark.parametrize("kind", [{}, {"tells": False}, {"forgives": True}])
def test_what_a_controller_leaves_half_done_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any], slips: bool, after: int
) -> None:
    """The controller dies right before or right after the request that makes the source refuse the identity."""
    coordinator = Coordinator(**kind)
    revoker = scene(monkeypatch, coordinator)

    class Crashed(Exception):
        """A stand-in for kill -9."""

    async def dying(_: Any, identity: Any) -> int:
        if slips:
            coordinator.begins("t")
        if after == 2:
            await coordinator.raise_epoch(_, identity)
        raise Crashed

    monkeypatch.setattr("kmigrate.workflow.promote.revoking.raise_epoch", dying)
    with pytest.raises(Crashed):
        revoke(revoker)
    assert revoked(revoker) == Revoked(LastEnd.COMMITTED)
    monkeypatch.setattr("kmigrate.workflow.promote.revoking.raise_epoch", coordinator.raise_epoch)
    if after == 1 and coordinator.state == "Ongoing":
        coordinator.ends("CompleteAbort")  # the client ends the transaction before the next controller starts
    asyncio.run(revoker.finish(FENCED, monotonic() + 5))
    told = revoked(revoker)
    assert told is not None and told.proven and coordinator.refuses
    if slips:
        assert told.last_end in (LastEnd.CUT_OFF, LastEnd.ABORTED)
    else:
        assert told.last_end is LastEnd.COMMITTED


def test_a_new_holder_that_comes_meanwhile_is_revoked_under_his_own_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    revoker = scene(monkeypatch, coordinator)
    newer = replace(TILL, epoch=4, source_epoch=9)

    def overtake(what: str) -> None:
        if what == "raise_epoch" and revoker.log.state.transaction("l", "till") != newer and coordinator.epoch == 8:
            coordinator.epoch, coordinator.state = 9, "Empty"
            revoker.log._put(newer.key, newer)  # type: ignore[attr-defined]

    coordinator.before = overtake
    assert revoke(revoker)
    assert revoker.log.state.transaction("l", "till") == replace(newer, revoked=Revoked(LastEnd.COMMITTED, proven=True))


def test_a_controller_that_was_taken_for_dead_revokes_nothing_once_the_fence_is_lifted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = Coordinator()
    revoker = scene(monkeypatch, coordinator)
    lifted = replace(FENCED, phase=TopicPhase.MIRRORING, seal=None)
    coordinator.before = lambda what: revoker.log._put(lifted.key, lifted)  # type: ignore[attr-defined]
    assert revoke(revoker) is False
    assert revoked(revoker) is None and not coordinator.refuses


def test_the_same_identity_is_revoked_in_all_links_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = replace(LINK, name="k", uuid="v")
    other = LinkRecord("o", "w", ClusterRef("else", "h:9"), LINK.target, 1)
    records = [replace(TILL, link="k", topics=("u",)), replace(TILL, link="o", topics=("v",))]
    revoker = scene(monkeypatch, Coordinator(), TILL, twin, other, *records)
    assert revoke(revoker)
    assert revoked(revoker, "k") == revoked(revoker) == Revoked(LastEnd.COMMITTED, proven=True)
    assert revoked(revoker, "o") is None


def test_a_clone_of_the_source_keeps_its_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clones of a cluster share a cluster id, but a revocation at a clone has no effect at another clone."""
    home = replace(LINK, source=replace(LINK.source, cluster_id="one-id"))
    clone = LinkRecord("o", "w", ClusterRef("clone", "h:9", "one-id"), LINK.target, 1)
    revoker = scene(monkeypatch, Coordinator(), TILL, home, clone, replace(TILL, link="o"))
    assert revoke(revoker)
    assert (revoked(revoker), revoked(revoker, "o")) == (Revoked(LastEnd.COMMITTED, proven=True), None)


def test_a_right_that_is_missing_is_found_before_anything_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    revoker = scene(monkeypatch, Coordinator(denies=True))
    with pytest.raises(BrokerRefused, match="no right"):
        asyncio.run(revoker.refuse_denied(FENCED))


def test_ids_that_do_not_write_the_topic_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    revoker = scene(monkeypatch, coordinator, replace(TILL, topics=("u",)))
    assert revoke(revoker)
    assert coordinator.asked == []
