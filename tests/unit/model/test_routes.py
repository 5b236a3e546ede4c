"""The routing table follows from the state alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    BarrierRecord,
    ClusterRef,
    GroupRecord,
    LeaseRecord,
    LinkRecord,
    ProducerMark,
    TopicRecord,
    TransactionRecord,
    WayBack,
)
from kmigrate.model.routes import DIRECT_LIMIT, GroupRoute, Serve, finished, id_shift, next_table, routing_table
from kmigrate.model.state import State

LINK = LinkRecord("l", "uuid", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "cluster"), 1)


def state(*records: Record) -> State:
    folded = State()
    for epoch, record in enumerate((LINK, *records)):
        folded = folded.with_record(record.key, record, epoch)
    return folded


@pytest.mark.parametrize(
    ("phase", "serve"),
    [
        (TopicPhase.INITIALISING, Serve.HIDDEN),
        (TopicPhase.ALIGNING, Serve.HIDDEN),
        (TopicPhase.MIRRORING, Serve.FORWARD),
        (TopicPhase.PROMOTE_PENDING, Serve.FORWARD),
        (TopicPhase.FENCING, Serve.HOLD),
        (TopicPhase.FENCED, Serve.HOLD),
        (TopicPhase.PROMOTED, Serve.LOCAL),
    ],
)
def test_the_phase_says_who_serves_produce(phase: TopicPhase, serve: Serve) -> None:
    table = routing_table(state(TopicRecord("l", "t", phase, 1)))
    assert table.topics["t"].serve is serve
    assert table.epoch == 1


def test_a_topic_that_is_being_forgotten_is_served_as_before_until_its_record_is_gone() -> None:
    """The mirror may have just created the topic: clients would find an empty topic instead of a living source."""
    leaving = TopicRecord("l", "t", TopicPhase.INITIALISING, 1, forgotten_ms=7)
    known = state(leaving, replace(LINK, finished_ms=5))
    assert routing_table(known).topics["t"].serve is Serve.HIDDEN
    assert not finished(known)
    assert routing_table(known.with_record(leaving.key, None, 9)).topics == {}


def test_the_gate_is_of_the_newest_fence_only_and_joins_its_chunks() -> None:
    old, one, two = ProducerMark(1, 0, 1), ProducerMark(2, 0, 2), ProducerMark(3, 0, 3)
    table = routing_table(
        state(
            TopicRecord("l", "t", TopicPhase.PROMOTED, 1, fence_epoch=9),
            BarrierRecord("l", "t", 2, 8, {0: (old,)}),
            BarrierRecord("l", "t", 0, 9, {0: (one,)}),
            BarrierRecord("l", "t", 1, 9, {0: (two,), 1: (two,)}),
        )
    )
    assert table.topics["t"].gate == {0: (one, two), 1: (two,)}


@pytest.mark.parametrize(
    ("phase", "generation", "eras"),
    [
        (TopicPhase.MIRRORING, 0, [(False, 0)]),
        (TopicPhase.PROMOTED, 0, [(True, None), (False, 0)]),
        (TopicPhase.ROLLBACK_FENCED, 0, [(True, None), (False, 0)]),
        (TopicPhase.MIRRORING, 1, [(False, 1), (True, None), (False, 0)]),
        (TopicPhase.ROLLBACK_PENDING, 1, [(True, 1), (False, 1), (True, None)]),
        (TopicPhase.FENCING, 2, [(False, 2), (True, 1), (False, 1)]),
        (TopicPhase.PROMOTED, 2, [(True, 2), (False, 2), (True, 1)]),
    ],
)
def test_each_flip_begins_an_era_with_ids_that_its_cluster_has_not_seen(
    phase: TopicPhase, generation: int, eras: list[tuple[bool, int | None]]
) -> None:
    route = routing_table(state(TopicRecord("l", "t", phase, 1, generation=generation))).topics["t"]
    shifts = [(at_target, 0 if g is None else id_shift("cluster", "uuid", g)) for at_target, g in eras]
    assert [route.era, *route.former_eras] == shifts


def test_the_table_that_sends_writes_to_the_target_says_that_they_are_counted() -> None:
    """A router counts from the first write on, because the flip opens the way back in the same record."""
    promoted = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, way_back=WayBack({0: 7}))
    for phase in (TopicPhase.PROMOTED, TopicPhase.ROLLBACK_PENDING, TopicPhase.ROLLBACK_FENCING):
        assert routing_table(state(replace(promoted, phase=phase))).topics["t"].copied_back
    ended = replace(promoted, way_back=WayBack({0: 7}, ended="a foreign record"))
    for record in (ended, replace(promoted, way_back=None), replace(promoted, phase=TopicPhase.MIRRORING)):
        assert not routing_table(state(record)).topics["t"].copied_back


@pytest.mark.parametrize(
    ("phase", "closing"),
    [(TopicPhase.PROMOTE_PENDING, True), (TopicPhase.FENCING, False), (TopicPhase.MIRRORING, False)],
)
def test_routers_let_no_transaction_begin_and_say_so_before_the_fence_of_a_promote(
    phase: TopicPhase, *, closing: bool
) -> None:
    record = TopicRecord("l", "t", phase, 1, fence_epoch=4, closing=True)
    found = routing_table(state(record)).topics["t"]
    assert (found.closing, found.fenced) == (closing, closing or phase is TopicPhase.FENCING)
    assert found.fence_epoch == 4
    assert not routing_table(state(replace(record, closing=False))).topics["t"].closing


@pytest.mark.parametrize(("phase", "told"), [(TopicPhase.FENCED, True), (TopicPhase.PROMOTED, False)])
def test_a_topics_own_configs_are_known_until_they_are_in_force(phase: TopicPhase, *, told: bool) -> None:
    own = {"cleanup.policy": "compact"}
    table = routing_table(state(TopicRecord("l", "t", phase, 1, restore_configs=own)))
    assert table.topics["t"].own_configs == (own if told else {})


def test_groups_are_held_until_promoted() -> None:
    table = routing_table(
        state(
            GroupRecord("l", "waits", GroupPhase.MIRRORED, 1),
            GroupRecord("l", "moves", GroupPhase.PROMOTING, 1),
            GroupRecord("l", "free", GroupPhase.PROMOTED, 1),
        )
    )
    assert table.held_groups == {"waits", "moves"}


@pytest.mark.parametrize("phase", [GroupPhase.PROMOTING, GroupPhase.ROLLING_BACK])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("coupled", [(), ("moves",)])
def test_members_join_anew_in_a_promote_or_rollback_but_for_a_group_in_transactions_before_it_is_frozen(
    coupled: tuple[str, ...], frozen: bool, phase: GroupPhase
) -> None:
    till = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",), coupled)
    moves = GroupRecord("l", "moves", phase, 1, mode=GroupMode.FOLLOW, gathering=True, frozen=frozen)
    waits = GroupRecord("l", "waits", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
    followed = routing_table(state(moves, waits, till)).followed
    assert (followed["moves"].gathering, followed["moves"].rejoining) == (True, frozen or not coupled)
    assert (followed["waits"].gathering, followed["waits"].rejoining) == (False, False)


@pytest.mark.parametrize("mode", list(GroupMode))
def test_a_group_that_is_rolled_back_is_the_targets_until_its_end_and_held_while_frozen(mode: GroupMode) -> None:
    back = GroupRecord("l", "g", GroupPhase.ROLLING_BACK, 1, mode=mode)
    for gathering, frozen in ((False, False), (True, False), (True, True)):
        table = routing_table(state(replace(back, gathering=gathering, frozen=frozen)))
        assert table.followed == {"g": GroupRoute("l", gathering, frozen, at_target=True)}
        assert table.held_groups == ({"g"} if frozen else set())
    again = routing_table(state(replace(back, phase=GroupPhase.MIRRORED)))
    assert ("g" in again.followed, "g" in again.held_groups) == (mode is GroupMode.FOLLOW, mode is GroupMode.HOLD)


def test_translated_ids_never_fall_below_the_direct_limit_and_never_overflow() -> None:
    shifts = {id_shift(f"c{n}", f"l{n}", g) for n in range(200) for g in (0, 1, 63, 64)}
    assert all(shift >= DIRECT_LIMIT and shift + DIRECT_LIMIT <= 1 << 62 for shift in shifts)
    assert all(shift % DIRECT_LIMIT == 0 for shift in shifts)


def test_a_new_generation_and_a_new_link_use_another_block() -> None:
    assert len({id_shift("c", "l", 0), id_shift("c", "l", 1), id_shift("c", "other", 0), id_shift("d", "l", 0)}) == 4


def _finished(*links: LinkRecord, more: tuple[Record, ...] = ()) -> bool:
    folded = State()
    for epoch, record in enumerate((*links, *more)):
        folded = folded.with_record(record.key, record, epoch)
    assert finished(folded) is routing_table(folded).finished
    return finished(folded)


def test_clients_leave_when_every_link_that_mirrored_anything_is_finished() -> None:
    done, other = replace(LINK, finished_ms=9), replace(LINK, name="other")
    promoted = TopicRecord("l", "t", TopicPhase.PROMOTED, 1)
    elsewhere = TopicRecord("other", "u", TopicPhase.PROMOTED, 1)
    assert not _finished(LINK, more=(promoted,))
    assert not _finished()
    assert _finished(done, more=(promoted,))
    assert _finished(done, other, more=(promoted,)), "a link that mirrored nothing needs no router"
    assert not _finished(done, other, more=(promoted, elsewhere))
    assert _finished(done, replace(other, finished_ms=9), more=(promoted, elsewhere))


@pytest.mark.parametrize(
    "late", [TopicRecord("l", "u", TopicPhase.MIRRORING, 1), GroupRecord("l", "g", GroupPhase.MIRRORED, 1)]
)
def test_nobody_leaves_while_anything_is_mirrored(late: Record) -> None:
    promoted = TopicRecord("l", "t", TopicPhase.PROMOTED, 1)
    assert not _finished(replace(LINK, finished_ms=9), more=(promoted, late))


def test_holders_of_transactional_ids_are_known_by_link_and_none_is_looked_at_for_the_table() -> None:
    here, there = TransactionRecord("l", "till", 1, 0, 2, 0), TransactionRecord("other", "till", 1, 0, 3, 0)
    made = state(replace(LINK, name="other"), here, there, TransactionRecord("l", "another", 4, 0, 5, 0))
    table = routing_table(made)
    assert "in_order" not in vars(made.records._kinds["transaction"])
    assert table.transactions.get("till") == {"l": here, "other": there}
    assert table.transactions.get("nobody", {}) == {}
    assert sorted(table.transactions) == ["another", "till"]
    assert len(table.transactions) == 2


_LINKS = [replace(LINK, name=name, uuid=name) for name in ("l", "m")]
_CHANGES = st.one_of(
    st.builds(
        TopicRecord, st.sampled_from(["l", "m", "gone"]), st.sampled_from("abcd"), st.sampled_from(list(TopicPhase)),
        st.just(1), fence_epoch=st.integers(1, 2),
    ),
    st.builds(
        BarrierRecord, st.sampled_from(["l", "m"]), st.sampled_from("abcd"), st.integers(0, 1), st.integers(1, 2),
        st.just({0: (ProducerMark(1, 0, 5),)}),
    ),
    st.builds(
        GroupRecord, st.just("l"), st.sampled_from("gh"), st.sampled_from(list(GroupPhase)), st.just(1),
        mode=st.sampled_from(list(GroupMode)),
    ),
    st.sampled_from([*_LINKS, replace(_LINKS[1], finished_ms=7)]),
    st.builds(LeaseRecord, st.just("w"), st.just("h"), st.integers(1, 9)),
)  # fmt: skip


@given(st.lists(st.tuples(_CHANGES, st.booleans(), st.booleans()), max_size=30))
def test_a_table_that_follows_a_change_is_the_one_that_is_made_anew(changes: list[tuple[Record, bool, bool]]) -> None:
    """Some changes come alone, some together; some write a record, some drop a key."""
    known = state(*_LINKS)
    table, now = routing_table(known), known
    for epoch, (record, drops, waits) in enumerate(changes, start=10):
        now = now.with_record(record.key, None if drops else record, epoch)
        if waits:
            continue
        table = next_table(now, known, table)
        known = now
        anew = routing_table(now)
        assert table.topics == anew.topics
        for kept in ("fenced", "hidden", "mirrored", "unready"):
            assert getattr(table.routes, kept) == getattr(anew.routes, kept)
        assert +table.routes.link_topics == anew.routes.link_topics
        assert (table.held_groups, table.followed, table.mirroring) == (anew.held_groups, anew.followed, anew.mirroring)
        assert (table.epoch, table.siblings, table.finished) == (anew.epoch, anew.siblings, anew.finished)


def test_the_hidden_topics_are_computed_anew_only_where_a_topic_becomes_hidden_or_shown() -> None:
    """While thousands of topics begin to be mirrored, most records change other topics."""
    hidden = [TopicRecord("l", f"h{number}", TopicPhase.INITIALISING, 1) for number in range(3)]
    shown = TopicRecord("l", "t", TopicPhase.MIRRORING, 1)
    known = state(*_LINKS, *hidden, shown)
    table = routing_table(known)
    assert table.routes.hidden == {"h0", "h1", "h2"}
    pausing = known.with_record(shown.key, replace(shown, phase=TopicPhase.PROMOTE_PENDING), 90)
    after = next_table(pausing, known, table)
    assert after.routes is not table.routes
    assert after.routes.hidden is table.routes.hidden
    renewed = pausing.with_record(hidden[0].key, replace(hidden[0], reason="waits"), 91)
    again = next_table(renewed, pausing, after)
    assert again.routes.hidden is table.routes.hidden
    ready = renewed.with_record(hidden[0].key, replace(hidden[0], phase=TopicPhase.MIRRORING), 92)
    assert next_table(ready, renewed, again).routes.hidden == {"h1", "h2"}


def test_a_record_of_one_topic_among_many_changes_nothing_else_of_the_table() -> None:
    """A router has 10,000 topics and 2,000 groups, and each record of the state log makes a table."""
    topics = [TopicRecord("l", f"t{number}", TopicPhase.MIRRORING, 1) for number in range(50)]
    groups = [GroupRecord("l", f"g{n}", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW) for n in range(20)]
    known = state(*_LINKS, *topics, *groups)
    table = routing_table(known)
    fencing = replace(topics[7], phase=TopicPhase.FENCING, fence_epoch=90)
    now = known.with_record(fencing.key, fencing, 90)
    after = next_table(now, known, table)
    assert after.changes_since(table.topics) == {"t7"}
    assert after.changes_since({}) == after.topics.keys(), "who has seen no table looks at all topics"
    assert after.changes_since(after.topics) == frozenset()
    assert list(after.routes.fenced) == ["t7"]
    assert after.routes.mirrored is table.routes.mirrored
    assert after.followed is table.followed
    assert all(after.topics[name] is route for name, route in table.topics.items() if name != "t7")
    promoted = replace(fencing, phase=TopicPhase.PROMOTED)
    last = next_table(now.with_record(promoted.key, promoted, 91), now, after)
    assert table.routes.mirrored.keys() - last.routes.mirrored.keys() == {"t7"}
    assert (list(last.routes.fenced), last.routes.link_topics["l"]) == ([], 49)
    assert table.topics["t7"].serve is Serve.FORWARD, "a table that is out of use stays as it was"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (ClusterRef("s", "h:1", "S"), True),
        (ClusterRef("s", "h:7", "S"), True),
        (ClusterRef("again", "h:7,h:1", "S"), True),
        (ClusterRef("again", "h:7", "S", ("b:2", "b:3")), True),
        (ClusterRef("clone", "h:7", "S", ("b:3",)), False),
        (ClusterRef("s", "h:1", "other"), False),
        (ClusterRef("s", "h:1"), False),
    ],
    ids=["itself", "by-name", "by-bootstrap", "by-broker", "a-clone", "another-id", "not-contacted"],
)
def test_links_from_one_source_are_told_from_links_from_a_clone(other: ClusterRef, same: bool) -> None:
    one = replace(LINK, source=ClusterRef("s", "h:1", "S", ("b:1", "b:2")))
    two = replace(LINK, name="m", uuid="m", source=other)
    topics = [TopicRecord(name, f"of-{name}", TopicPhase.MIRRORING, 1) for name in ("l", "m")]
    table = routing_table(state(one, two, *topics))
    assert one.source.is_same(other) is other.is_same(one.source) is same
    assert table.of_one_source("l") == (("l", "m") if same else ("l",))
    assert table.sources == (("l",) if same else ("l", "m"))


def test_a_record_of_no_topic_leaves_the_routes_the_very_same_values() -> None:
    known = state(TopicRecord("l", "t", TopicPhase.MIRRORING, 1), TopicRecord("l", "u", TopicPhase.MIRRORING, 1))
    table = routing_table(known)
    lease = LeaseRecord("w", "h", 1)
    assert next_table(known.with_record(lease.key, lease, 9), known, table).topics is table.topics
    promoted = TopicRecord("l", "t", TopicPhase.PROMOTED, 1)
    after = next_table(known.with_record(promoted.key, promoted, 9), known, table).topics
    assert after["t"].serve is Serve.LOCAL
    assert after["u"] is table.topics["u"]


def test_a_transactional_id_of_a_link_that_is_gone_is_not_among_those_that_are_gone_through() -> None:
    """The id used to be listed, and then its record was not found."""
    gone = TransactionRecord("gone", "till", 50, 3, 9, 8)
    table = routing_table(state(gone, replace(gone, link="l", name="shop")))
    assert [name for name, _ in table.transactions.items()] == ["shop"]
