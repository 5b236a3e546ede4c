"""Clients leave a router: the hand-off to the brokers, the writes in progress, and the order of the clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.model.routes import Serve
from kmigrate.protocol.api import (
    ApiKey,
    answer_type,
    blank,
    decode_answer,
    element_type,
    encode_body,
    entity,
    frame_answer,
    is_flexible,
)
from kmigrate.protocol.frames import encode_request_head
from kmigrate.router.session.session import Session
from kmigrate.router.shared.client_handoff import Handoff, grouped, mark
from kmigrate.router.shared.state import Outcome
from kmigrate.router.wire.apis import OFFERED
from kmigrate.router.wire.node_ids import AddressBook
from tests.unit.router.router_fakes import FakeClientLink, Stage, batch, route

NOT_LEADER = 6


def _stage(*, finished: bool = True) -> Stage:
    """Return a connection of client "c" on a router whose only topic is promoted."""
    stage = Stage(route("t", Serve.LOCAL))
    _see(stage, stage.session)
    if finished:
        _finish(stage)
    return stage


def _see(stage: Stage, session: Session, *, host: str = "h", at: float = 0.0) -> None:
    session.host, session.client_id, session.since, session.active = host, "c", at, at
    stage.shared.handoff.connections.add(session)


def _finish(stage: Stage, *, finished: bool = True) -> None:
    stage.shared.swap(replace(stage.shared.table, epoch=stage.shared.table.epoch + 1, finished=finished), 0.0)
    stage.shared.wake()


def _another(stage: Stage, *, host: str = "h", at: float = 0.0) -> tuple[Session, FakeClientLink]:
    """Open a second connection to the same router."""
    edge = FakeClientLink()
    session = Session(stage.shared, edge)
    _see(stage, session, host=host, at=at)
    session.broker = 1
    return session, edge


def _ask(session: Session, request: Any, client_id: bytes = b"c") -> None:
    kind = type(request)
    key, version = int(kind.__api_key__), int(kind.__version__)
    raw = encode_request_head(key, version, 77, client_id, is_flexible(key, version)) + encode_body(request)
    session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))


def _ask_metadata(session: Session) -> None:
    _ask(session, blank(entity(ApiKey.METADATA, 9, "request"), topics=()))


def _metadata_answer() -> bytearray:
    kind = entity(ApiKey.METADATA, 9, "response")
    broker = blank(element_type(kind, "brokers"), node_id=1, host="real", port=9)
    return bytearray(frame_answer(blank(kind, brokers=(broker,), controller_id=1), 77))


def test_before_the_finish_clients_are_told_the_router_and_after_it_the_brokers() -> None:
    stage = _stage(finished=False)
    for shown in (b"router", b"real", b"router"):
        _ask_metadata(stage.session)
        done = stage.edge.sent[-1].done
        assert done is not None
        done(Outcome(_metadata_answer()))
        assert shown in stage.edge.replies[-1]
        _finish(stage, finished=shown == b"router")


@pytest.mark.parametrize(("answers", "shown"), [(True, b"elsewhere"), (False, b"router")])
def test_nobody_is_told_by_a_router_that_stands_in_for_its_own(answers: bool, shown: bytes) -> None:
    stage = _stage()
    presence = RouterPresence("i", "b", 1, 500, bootstrap="elsewhere:9000", listeners={1: "elsewhere:9001"})
    stage.shared.fallbacks.follow("router:9000", [presence])
    stage.session.home = "elsewhere:9000"
    _ask_metadata(stage.session)
    done = stage.edge.sent[-1].done
    assert done is not None
    done(Outcome(_metadata_answer()))
    stage.asked[0][1](answers)
    assert shown in stage.edge.replies[-1] and b"real" not in stage.edge.replies[-1]
    assert not stage.shared.handoff.informed


def test_a_client_is_told_only_when_all_that_it_has_written_is_answered() -> None:
    stage = _stage()
    asks, asking = _another(stage)
    stage.produce(("free", 0, batch()))
    _ask_metadata(asks)
    assert asking.sent == []
    stage.produce(("free", 0, batch(sequence=1)))
    assert len(stage.edge.sent) == 1, "from the question on nothing more of it is written here"
    stage.edge.sent[0].answer()
    assert len(asking.sent) == 1
    assert stage.told() == [(1, [("free", 0, 0)]), (2, [("free", 0, NOT_LEADER)])]


def test_a_client_that_stays_is_shown_the_router_and_goes_on_writing() -> None:
    stage = _stage()
    asks, asking = _another(stage)
    deferred = stage.shared.deferred
    deferred.promise("till", stage.session._transactions._at_target, [("t", 0)])
    _ask_metadata(asks)
    done = asking.sent[-1].done
    assert done is not None
    done(Outcome(_metadata_answer()))
    assert b"router" in asking.replies[-1]
    stage.produce(("free", 0, batch()))
    assert stage.edge.sent[-1].where == "target"
    stage.edge.sent[-1].answer()
    deferred.over("till")
    _ask_metadata(asks)
    done = asking.sent[-1].done
    assert done is not None
    done(Outcome(_metadata_answer()))
    assert b"real" in asking.replies[-1]


def _word(stage: Stage, *staying: Session, applied: int) -> None:
    """Set the presence of another process, which may hold connections of the same client."""
    marks = tuple(mark(each) for each in staying)
    stage.shared.handoff.heard = (RouterPresence("i", "b", applied, 500, staying=marks),)


def _shown(session: Session, edge: FakeClientLink) -> bytearray:
    """Ask for metadata, and return the answer that the client gets."""
    _ask_metadata(session)
    done = edge.sent[-1].done
    assert done is not None
    done(Outcome(_metadata_answer()))
    return edge.replies[-1]


def test_a_client_that_another_router_keeps_is_shown_the_router_and_has_no_turn() -> None:
    """With `--workers`, the connections of a client to coordinator and leaders may lead to different processes."""
    stage = _stage()
    stays, staying = _another(stage, host="elsewhere")
    epoch = stage.shared.table.epoch
    _word(stage, stays, applied=epoch)
    assert b"router" in _shown(stays, staying)
    assert b"real" in _shown(stage.session, stage.edge)
    assert stage.shared.handoff.next(now=9.0) is stage.session
    stage.session.leaving = True
    assert stage.shared.handoff.next(now=9.0) is None
    _word(stage, applied=epoch + 1)
    assert b"real" in _shown(stays, staying)
    assert stage.shared.handoff.next(now=9.0) is stays


def test_nobody_is_told_while_another_process_is_reached_at_the_same_address() -> None:
    """No client is handed off while another process listens at the same address.

    A client has connections to several processes, and no process knows when all writes of the client are answered.
    """
    stage = _stage()
    handoff, epoch = stage.shared.handoff, stage.shared.table.epoch
    handoff.bootstrap = "router:9092"
    handoff.heard = (RouterPresence("i", "b-2", epoch, 500, bootstrap="router:9092"),)
    assert b"router" in _shown(stage.session, stage.edge)
    assert handoff.next(now=9.0) is None
    handoff.heard = (RouterPresence("i", "c", epoch, 500, bootstrap="other:9092"),)
    assert b"real" in _shown(stage.session, stage.edge)


def test_nobody_is_told_before_every_router_that_is_heard_of_has_acted_on_the_finish() -> None:
    """No client is handed off before every known router has applied the finish.

    A router without the finish may still give clients answers that are true only through that router.
    """
    stage = _stage(finished=False)
    _word(stage, applied=stage.shared.table.epoch)
    _finish(stage)
    assert b"router" in _shown(stage.session, stage.edge)
    assert stage.shared.handoff.next(now=9.0) is None
    _word(stage, applied=stage.shared.table.epoch)
    _finish(stage)
    assert b"real" in _shown(stage.session, stage.edge), "what else is written is nothing to wait for"
    _finish(stage, finished=False)
    _finish(stage)
    assert b"router" in _shown(stage.session, stage.edge), "it may have heard of the undo only"


def test_who_has_just_started_tells_nobody_before_it_has_heard_who_else_is_there() -> None:
    """Clients reconnect at once to a router that starts again after the finish."""
    stage = _stage()
    stage.shared.handoff = Handoff(connections={stage.session})
    stage.shared.handoff.follow(stage.shared.table)
    assert b"router" in _shown(stage.session, stage.edge)
    assert stage.shared.handoff.next(now=9.0) is None
    stage.shared.handoff.heard = ()
    assert b"real" in _shown(stage.session, stage.edge)
    assert stage.shared.handoff.next(now=9.0) is stage.session


def test_whose_turn_had_come_before_an_undo_waits_for_another_one() -> None:
    """Since the undo, the client may have received answers that are true only through the router."""
    stage = _stage()
    stage.produce(("free", 0, batch()))
    stage.session.leave()
    _finish(stage, finished=False)
    stage.edge.sent[0].answer()
    stage.shared.deferred.promise("till", stage.session._transactions._at_target, [("t", 0)])
    _finish(stage)
    assert b"router" in _shown(stage.session, stage.edge)
    assert stage.edge.parted == 0
    stage.produce(("free", 0, batch(sequence=1)))
    assert stage.edge.sent[-1].where == "target", "its writes go on"
    stage.edge.sent[-1].answer()
    stage.shared.deferred.over("till")
    assert stage.edge.parted == 0
    assert stage.shared.handoff.next(now=9.0) is stage.session


def test_a_client_whose_writing_connection_is_lost_need_not_wait() -> None:
    stage = _stage()
    asks, asking = _another(stage)
    stage.produce(("free", 0, batch()))
    _ask_metadata(asks)
    stage.shared.handoff.connections.discard(stage.session)
    stage.session.closed()
    assert len(asking.sent) == 1


def test_another_client_is_neither_waited_for_nor_kept_from_writing() -> None:
    stage = _stage()
    asks, asking = _another(stage, host="elsewhere")
    stage.produce(("free", 0, batch()))
    _ask_metadata(asks)
    assert len(asking.sent) == 1
    stage.produce(("free", 0, batch(sequence=1)))
    assert len(stage.edge.sent) == 2


@pytest.mark.parametrize("version", [3, 9, 11])
def test_what_a_client_that_was_told_still_writes_is_surely_not_appended(version: int) -> None:
    stage = _stage()
    _ask_metadata(stage.session)
    sent = len(stage.edge.sent)
    stage.produce(("t", 0, batch()), ("free", 1, batch()), version=version)
    assert len(stage.edge.sent) == sent
    done = stage.edge.sent[0].done
    assert done is not None
    done(Outcome(_metadata_answer()))
    stage.edge.replies.pop(0)
    assert stage.told(version) == [(1, [("t", 0, NOT_LEADER), ("free", 1, NOT_LEADER)])]


def _of_coordinators() -> list[Any]:
    """Return the requests of members and transactional producers to a coordinator, in every offered version."""
    found: list[Any] = []
    for key in (12, 68, 76, 22, 24, 25, 28):
        least, most = OFFERED[key].versions
        for version in range(least, most + 1):
            kind = entity(key, version, "request")
            named = {"transactional_id": "till", "v3_and_below_transactional_id": "till"}
            topics: tuple[Any, ...] = ()
            if key in (24, 28):
                topic_type = element_type(kind, "v3_and_below_topics" if key == 24 else "topics")
                part_type = element_type(topic_type, "partitions") if key == 28 else None
                parts = (blank(part_type, partition_index=1),) if part_type else (1,)
                topics = (blank(topic_type, name="t", partitions=parts),)
            found.append(blank(kind, **named, topics=topics, v3_and_below_topics=topics))
    return found


@pytest.mark.parametrize("request_", _of_coordinators(), ids=lambda each: f"{type(each).__name__}-{each.__version__}")
def test_who_was_told_has_no_coordinator_here_any_more(request_: Any) -> None:
    stage = _stage()
    stage.shared.handoff.may_tell(stage.session)
    _ask(stage.session, request_)
    assert stage.edge.sent == []
    answer = decode_answer(answer_type(type(request_)), stage.edge.replies[-1])
    assert set(_codes(dataclasses.asdict(answer))) == {ErrorCode.not_coordinator}


def _codes(told: Any) -> Iterator[Any]:
    """Yield all error codes in an answer."""
    if isinstance(told, dict):
        for name, value in told.items():
            if name.endswith("error_code"):
                yield value
            else:
                yield from _codes(value)
    elif isinstance(told, tuple):
        for each in told:
            yield from _codes(each)


@pytest.mark.parametrize("request_", _of_coordinators(), ids=lambda each: f"{type(each).__name__}-{each.__version__}")
def test_who_was_not_told_has_its_coordinators_here(request_: Any) -> None:
    stage = _stage()
    _ask(stage.session, request_)
    assert [sent.where for sent in stage.edge.sent] == ["target"]


def test_what_an_application_would_hear_of_is_passed_on_also_of_who_was_told() -> None:
    """Some requests pass to the target even after the hand-off, because an application would notice a refusal.

    A client reports a refused commit to the application. Any broker hands out a producer id without transactions.
    After a refused OffsetFetch, librdkafka may not ask a second time, and reads nothing.
    A member that leaves its group does not repeat the request; nobody would read the member's partitions until the
    session expires.
    """
    stage = _stage()
    stage.shared.handoff.may_tell(stage.session)
    for request in (
        blank(entity(8, 7, "request"), group_id="g"),
        blank(entity(9, 7, "request"), group_id="g"),
        blank(entity(11, 7, "request"), group_id="g"),
        blank(entity(14, 5, "request"), group_id="g"),
        blank(entity(22, 4, "request"), transactional_id=None),
        blank(entity(26, 3, "request"), transactional_id="till"),
        blank(entity(68, 1, "request"), group_id="g", member_epoch=-1),
        blank(entity(68, 0, "request"), group_id="g", member_epoch=-2),
        blank(entity(76, 1, "request"), group_id="g", member_epoch=-1),
    ):
        _ask(stage.session, request)
    assert [sent.where for sent in stage.edge.sent] == ["target"] * 9


def test_who_was_told_has_its_coordinators_here_until_its_connection_ends() -> None:
    """The coordinators stay here until the client's connection ends.

    Most clients look for the coordinator anew after that. Sarama's application sees each heartbeat error.
    """
    stage = _stage()
    asks, asking = _another(stage, at=1.0)
    asking.clock = 2.0
    _ask_metadata(asks)
    _ask(stage.session, blank(entity(12, 4, "request"), group_id="g"))
    assert [sent.where for sent in stage.edge.sent] == ["target"]
    back, coming = _another(stage, at=3.0)
    _ask(back, blank(entity(12, 4, "request"), group_id="g"))
    assert (coming.sent, len(coming.replies)) == ([], 1)


def test_a_write_without_acknowledgement_is_taken_to_the_end() -> None:
    stage = _stage()
    stage.session.leave()
    assert stage.edge.parted == 1
    stage.produce(("free", 0, batch()), acks=0)
    assert [s.where for s in stage.edge.sent] == ["target"]
    stage.produce(("free", 0, batch()), acks=1)
    _ask_metadata(stage.session)
    assert len(stage.edge.sent) == 1, "nothing else is carried out on a connection that was ended"
    assert stage.edge.replies == []


def test_a_connection_is_ended_only_when_nothing_of_it_is_under_way() -> None:
    stage = _stage()
    stage.produce(("free", 0, batch()))
    stage.session.leave()
    assert stage.edge.parted == 0
    stage.produce(("free", 0, batch(sequence=1)))
    stage.edge.sent[0].answer()
    assert stage.told() == [(1, [("free", 0, 0)]), (2, [("free", 0, NOT_LEADER)])]
    assert stage.edge.parted == 1


def test_after_an_undo_everything_is_as_before() -> None:
    stage = _stage()
    stage.produce(("free", 0, batch()))
    stage.session.leave()
    _ask_metadata(stage.session)
    _finish(stage, finished=False)
    stage.edge.sent[0].answer()
    stage.produce(("free", 0, batch(sequence=1)))
    assert [s.where for s in stage.edge.sent] == ["target", "target", "target"]
    assert stage.edge.parted == 0
    assert stage.shared.handoff.informed == {}


def test_the_longest_idle_goes_first_the_busy_later_and_the_newly_come_not_yet() -> None:
    stage = _stage()
    idle, _ = _another(stage, at=1.0)
    young, _ = _another(stage, at=9.9)
    bootstrap, _ = _another(stage, at=0.5)
    bootstrap.broker = None
    stage.produce(("free", 0, batch()))
    handoff = stage.shared.handoff
    order = []
    while (guest := handoff.next(10.0)) is not None:
        guest.leaving = True
        order.append(guest)
    assert order == [idle, stage.session]
    assert handoff.next(10.4) is young


def test_who_was_told_is_remembered_within_bounds() -> None:
    handoff = Handoff()
    stage = _stage()
    for number in range(20_005):
        stage.session.client_id = str(number)
        assert handoff.may_tell(stage.session)
    assert len(handoff.informed) == 20_000
    assert handoff.knows(stage.session)


def test_a_client_tells_its_library_and_its_name() -> None:
    stage = _stage(finished=False)
    kind = entity(ApiKey.API_VERSIONS, 3, "request")
    _ask(stage.session, blank(kind, client_software_name="librdkafka", client_software_version="2.8.0"))
    assert (stage.session.software, stage.session.client_id) == ("librdkafka 2.8.0", "c")


def test_of_what_a_client_calls_itself_no_more_is_kept_than_is_told() -> None:
    """Ten thousand connections would otherwise keep 96 KB each, far beyond the memory limit."""
    stage = _stage(finished=False)
    kind = entity(ApiKey.API_VERSIONS, 3, "request")
    message = blank(kind, client_software_name="s" * 32_000, client_software_version="v" * 32_000)
    _ask(stage.session, message, b"c" * 32_000)
    assert (stage.session.software, stage.session.client_id) == ("s" * 256, "c" * 256)


def test_connections_are_summed_up_by_client_and_the_rest_is_counted() -> None:
    app = ("x-app", "h", "User:a", "lib 1")
    clients, more = grouped([(app, True), (app, False), (app, True)])
    assert (clients, more) == ((ConnectedClient(*app, brokers=2, bootstrap=1),), 0)
    waiting = [((f"b{number:03}" + "…" * 999, "h", "", ""), False) for number in range(100)]
    clients, more = grouped([*waiting, (app, True)])
    assert (clients[0].client_id, len(clients), more) == ("x-app", 64, 37), "who must leave yet comes first"
    assert len(clients[1].client_id) == 80


def test_a_client_may_name_a_broker_by_either_id() -> None:
    book = AddressBook(1_000_000, {2: ("router", 9002)})
    assert [book.real(node) for node in (1_000_002, 2, -1)] == [2, 2, -1]
