"""A router's memory after hundreds of topics, groups, producers and transactional ids that came and went.

The tests cover connections that stay and connections that end. `make soak-weeks` does the same with a process, clusters
and clients.
"""

from __future__ import annotations

from uuid import UUID

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.api import blank, element_type, entity
from kmigrate.router.session.session import Session
from tests.soak.census import census, grown
from tests.unit.router.groups.test_handler import BEAT, JOIN, LEAVE, Member
from tests.unit.router.router_fakes import Stage, batch, route
from tests.unit.router.transactions.test_handler import ADD, END, INIT, Desk, T

EARLY, LATE = 100, 300
"""Rounds; by the first count each bounded memory of a connection is full."""


def lengths(stage: Stage, staying: Session) -> dict[str, int]:
    shared = stage.shared
    shared.waiting_groups.waiting((), 0.0)  # The router's presence does the same.
    # The presence does the same.
    shared.session_timeouts.words(shared.table.held_groups, shared.table.followed.keys(), stage.edge.clock)
    return census([stage.shared, staying])


def turns(stage: Stage, number: int, staying: Session) -> tuple[Session, ...]:
    """Return the sessions of a round: the session that stays, and a new session."""
    passing = Session(stage.shared, stage.edge)
    passing.broker, passing.client_id = 1, f"client-{number}"
    return staying, passing


def answer_all(stage: Stage) -> None:
    while stage.edge.sent:
        stage.edge.sent.pop(0).answer(0)


def write(stage: Stage, topic: str, producer: int, sequence: int) -> None:
    stage.produce((topic, 0, batch(producer, 0, sequence)))
    answer_all(stage)


def promoted_and_forgotten(stage: Stage, number: int) -> None:
    """Play a topic's life: forwarded, fenced, promoted, and the link deleted; the producer writes all the while."""
    topic, producer, at = f"t-{number}", 1000 + number, stage.shared.table.epoch
    stage.swap(route(topic, Serve.FORWARD))
    write(stage, topic, producer, 0)
    stage.swap(route(topic, Serve.HOLD, fence_epoch=at))
    stage.shared.forwards.fences(stage.shared.table)
    stage.produce((topic, 0, batch(producer, 0, 1)))
    stage.swap(route(topic, Serve.LOCAL, gate={0: (ProducerMark(producer, 0, 0),)}))
    answer_all(stage)
    write(stage, topic, producer, 2)
    stage.swap()


def test_topics_and_producers_that_went_are_not_remembered() -> None:
    stage = Stage()
    staying = stage.session
    seen = []
    for number in range(LATE):
        for session in turns(stage, number, staying):
            stage.session = session
            promoted_and_forgotten(stage, number)
            if session is not staying:
                session.closed()
        if number in (EARLY, LATE - 1):
            seen.append(lengths(stage, staying))
    assert stage.shared.forwards.total == 2 * LATE, "the first batch of each producer went to the source"
    assert grown(seen[:1], seen[1:], {}) == {}


def transacts(desk: Desk, name: str, topic: str) -> None:
    """Play a transaction of a new transactional id.

    The client writes a mirrored topic, is refused a topic of the other cluster, and commits.
    """
    kind = element_type(entity(ADD, 3, "request"), "v3_and_below_topics")
    desk.says(INIT, transactional_id=name, producer_id=-1, producer_epoch=-1)
    for topics in ((topic, "free"), (topic,)):
        desk.says(
            ADD,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=T[0],
            v3_and_below_producer_epoch=T[1],
            v3_and_below_topics=tuple(blank(kind, name=each, partitions=(0,)) for each in topics),
        )
    desk.says(END, transactional_id=name, producer_id=T[0], producer_epoch=T[1], committed=True)


def test_transactional_ids_that_went_are_not_remembered() -> None:
    """Flink makes new ids with each checkpoint, over connections that stay."""
    desk = Desk(known=False)
    stage, staying = desk.stage, desk.stage.session
    seen, begun = [], 0
    for number in range(LATE):
        stage.swap(route("t", Serve.FORWARD))
        for who, session in enumerate(turns(stage, number, staying)):
            stage.session = session
            transacts(desk, f"till-{number}-{who}", "t")
            begun += len(stage.transaction_store.records)
            if session is not staying:
                session.closed()
            # The controller does the same with ids that both clusters have forgotten.
            stage.transaction_store.records.clear()
        if number in (EARLY, LATE - 1):
            stage.swap()
            seen.append(lengths(stage, staying))
    assert begun == 2 * LATE
    assert desk.asked(END) == [("source", END)] * 2 * LATE
    assert grown(seen[:1], seen[1:], {}) == {}


def test_groups_that_followed_and_went_are_not_remembered() -> None:
    member = Member()
    stage, staying = member.stage, member.stage.session
    seen = []
    for number in range(LATE):
        group = f"g-{number}"
        member.turns(**{group: GroupRoute("l")})
        for session in turns(stage, number, staying):
            stage.session = session
            member.says(JOIN, group_id=group, member_id="m", protocol_type="consumer")
            member.says(BEAT, group_id=group, generation_id=2, member_id="m")
            stage.shared.followers.leave(group)
            stage.shared.followers.resolved(group)
            stage.shared.followers.withhold(group, "m", frozenset({UUID(int=number)}), stage.edge.clock)
            if session is not staying:
                member.says(LEAVE, group_id=group)
                session.closed()
        if number in (EARLY, LATE - 1):
            stage.edge.clock += 61  # For a minute the router knows which groups have opened.
            member.turns(none=GroupRoute("l"))
            seen.append(lengths(stage, staying))
    assert grown(seen[:1], seen[1:], {}) == {}
