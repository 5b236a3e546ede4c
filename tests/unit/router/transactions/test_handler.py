"""Transactions through a single client connection: the cluster, the identity at that cluster, and the fences."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c

from kmigrate.model.presences import GroupReport
from kmigrate.model.records import TransactionRecord
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.api import blank, decode_body, element_type, entity, frame_answer, frame_request, is_flexible
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import peek_request, response_body_offset
from kmigrate.records.batch import walk
from kmigrate.records.build import one_record_batch
from kmigrate.router.session.session import Session
from kmigrate.router.shared.conversation import Future
from kmigrate.router.shared.open_transactions import OpenTransaction, TargetTransactions
from kmigrate.router.shared.state import Outcome, StoredBatch
from kmigrate.router.transactions.locate import close_stale_transactions
from kmigrate.router.wire.produce import ProducePart, ProduceRequest, encode_request, parse_answer
from tests.unit.router.router_fakes import Sent, Stage, held, route

FIND, INIT, ADD, OFFSETS, END, COMMIT, DESCRIBE = 10, 22, 24, 25, 26, 28, 65
T, S = (50, 3), (9, 8)
"""Producer id and epoch of the transactional id at the target, and at the source."""
NAME = "till"
_TRANSACTIONAL = 0x10


class Desk:
    """A client connection with transactions.

    `hears` answers every upstream request as two good clusters would.
    """

    def __init__(self, *routes: Any, known: bool = True, topics: tuple[str, ...] = ("t",), tells: bool = False) -> None:
        self.stage = Stage(*routes, held=("waiting",))
        self.stage.backend.tells = tells
        if known:
            self.stage.transaction_store.records[("l", NAME)] = TransactionRecord("l", NAME, *T, *S, topics)
            self.stage.transaction_store.changed()
        self.codes: dict[tuple[str, int], int] = {}
        """Error codes of the clusters' answers, by cluster and API key; 0 where no code is given."""
        self.open: dict[str, tuple[str, ...]] = {}
        """Topics of the open transaction in DescribeTransactions, by cluster."""
        self.holders: dict[str, tuple[int, int]] = {"target": T, "source": S}
        """Newest producer id and epoch of the transactional id, by cluster."""
        self.lost: set[tuple[str, int]] = set()
        self.target_knows: bool | None = True
        """True where the target's logs hold records of the producer; None while the target does not answer."""
        self.passed: list[tuple[str, int, Any]] = []
        self._correlation = 0

    def says(self, key: int, version: int = -1, **values: Any) -> Any:
        """Send a request, let the clusters answer, and return the client's answer, or None while the request waits."""
        version = version if version >= 0 else {INIT: 4, ADD: 3, OFFSETS: 3, END: 3, COMMIT: 3}[key]
        self._correlation += 1
        message = blank(entity(key, version, "request"), **values)
        before = len(self.stage.edge.replies)
        self.stage.session.frame(bytearray(frame_request(message, self._correlation, "c")))
        self.hears()
        return self.read(key, version) if len(self.stage.edge.replies) > before else None

    def read(self, key: int, version: int) -> Any:
        frame = self.stage.edge.replies[-1]
        kind = entity(key, version, "response")
        return decode_body(kind, frame, response_body_offset(frame, kind.__flexible__))

    def hears(self) -> None:
        """Let the clusters answer all requests except batches."""
        edge, backend = self.stage.edge, self.stage.backend
        while backend.asked or (asked := [sent for sent in edge.sent if peek_request(sent.frame).api_key]):
            if backend.asked:
                knows = self.target_knows
                backend.asked.pop(0)[3](None if knows is None else held(0 if knows else -1))
            else:
                edge.sent.remove(asked[0])
                self._answer(asked[0])

    def _answer(self, sent: Sent) -> None:
        head = peek_request(sent.frame)
        key, version = head.api_key, head.version
        where = sent.where.split()[0]
        head = peek_request(sent.frame, is_flexible(key, version))
        request = decode_body(entity(key, version, "request"), sent.frame, head.body)
        self.passed.append((where, key, request))
        assert sent.done is not None
        if (where, key) in self.lost:
            sent.done(Outcome(None))
            return
        answer = self._told(where, key, version, request)
        sent.done(Outcome(bytearray(frame_answer(answer, head.correlation_id))))

    def _told(self, where: str, key: int, version: int, request: Any) -> Any:
        kind, code = entity(key, version, "response"), self.codes.get((where, key), 0)
        if key == ADD:
            topic_type = element_type(kind, "results_by_topic_v3_and_below")
            part_type = element_type(topic_type, "results_by_partition")
            topics = tuple(
                blank(
                    topic_type,
                    name=topic.name,
                    results_by_partition=tuple(
                        blank(part_type, partition_index=p, partition_error_code=code) for p in topic.partitions
                    ),
                )
                for topic in request.v3_and_below_topics
            )
            return blank(kind, results_by_topic_v3_and_below=topics)
        if key == DESCRIBE:
            state_type = element_type(kind, "transaction_states")
            topic_type = element_type(state_type, "topics")
            topics = tuple(blank(topic_type, topic=topic, partitions=(0,)) for topic in self.open.get(where, ()))
            state = blank(
                state_type,
                error_code=code,
                transactional_id=NAME,
                transaction_state="Ongoing" if where in self.open else "Empty",
                producer_id=self.holders[where][0],
                producer_epoch=self.holders[where][1],
                topics=topics,
                transaction_start_time=dt.datetime.fromtimestamp(1, dt.UTC),
            )
            return blank(kind, transaction_states=(state,))
        number, epoch = self.holders[where]
        return blank(kind, error_code=code, node_id=2, host="h", port=1, producer_id=number, producer_epoch=epoch)

    def init(self, **values: Any) -> int:
        answer = self.says(INIT, transactional_id=NAME, producer_id=-1, producer_epoch=-1, **values)
        return code_of(answer.error_code)

    def add(
        self,
        *topics: str,
        producer_id: int = T[0],
        epoch: int = T[1],
        version: int = 3,
        partitions: tuple[int, ...] = (0,),
    ) -> dict[str, int] | None:
        kind = element_type(entity(ADD, version, "request"), "v3_and_below_topics")
        answer = self.says(
            ADD,
            version,
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=tuple(kind(name=topic, partitions=partitions) for topic in topics),
        )
        return None if answer is None else self.codes_of(answer)

    @staticmethod
    def codes_of(answer: Any) -> dict[str, int]:
        return {
            str(topic.name): code_of(topic.results_by_partition[0].partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
        }

    def offsets(self, group: str, holder: tuple[int, int] = T) -> int | None:
        answer = self.says(
            OFFSETS, transactional_id=NAME, producer_id=holder[0], producer_epoch=holder[1], group_id=group
        )
        return None if answer is None else code_of(answer.error_code)

    def end(self, committed: bool = True, epoch: int = T[1], version: int = 3, producer_id: int = T[0]) -> int:
        answer = self.says(
            END, version, transactional_id=NAME, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        return code_of(answer.error_code)

    def produce(self, topic: str, epoch: int = T[1], sequence: int = 0) -> Sent | None:
        """Send a transactional batch, and return the unanswered upstream request."""
        self._correlation += 1
        records = one_record_batch(b"k", b"v", timestamp=1, producer_id=T[0], epoch=epoch, sequence=sequence)
        records[22] |= _TRANSACTIONAL
        records[17:21] = crc32c(records[21:]).to_bytes(4, "big")
        parts = (ProducePart(topic, 0, memoryview(records)),)
        request = ProduceRequest(9, NAME, -1, 30_000, parts)
        frame = encode_request(request, parts, version=9, acks=-1, correlation=self._correlation, client_id="c")
        self.stage.session.frame(bytearray(b"".join(frame)))
        produced = [s for s in self.stage.edge.sent if peek_request(s.frame).api_key == 0]
        return produced[0] if produced else None

    def asked(self, *keys: int) -> list[tuple[str, int]]:
        """Return the clusters that got requests of these APIs so far, in order."""
        return [(where, key) for where, key, _ in self.passed if key in keys]


def forwarded(**values: Any) -> Desk:
    return Desk(route("t", Serve.FORWARD), **values)


def follows(desk: Desk, *, frozen: bool = False) -> None:
    desk.stage.turn(g=GroupRoute("l", gathering=frozen, frozen=frozen))


def fenced(desk: Desk, *topics: str) -> None:
    desk.stage.swap(*(route(topic, Serve.HOLD, fence_epoch=5) for topic in topics or ("t",)))


def in_flight(desk: Desk, topic: str = "t") -> int:
    return desk.stage.shared.forwards.in_flight.get(f"topic/l/{topic}", 0)


def before_it_answers(desk: Desk, happens: Callable[[], object]) -> None:
    """Let something happen while a request to the source is in flight."""
    told = desk._told

    def late(where: str, *asked: Any) -> Any:
        if where == "source":
            happens()
        return told(where, *asked)

    desk._told = late  # type: ignore[method-assign, assignment]


def before_it_is_kept(desk: Desk, happens: Callable[[], object]) -> None:
    """Let something happen while a record is on the way to the state log."""
    remember = desk.stage.transaction_store.remember

    def late(record: TransactionRecord, *, begins: bool = False) -> Future[bool]:
        happens()
        assert desk.stage.shared.group_reports(0.0).get("g", GroupReport(1)).in_flight == 1
        return remember(record, begins=begins)

    desk.stage.transaction_store.remember = late  # type: ignore[method-assign]


# Identities


def test_an_id_is_given_by_both_clusters_and_the_pair_is_written_down_before_the_client_hears_of_it() -> None:
    desk = forwarded(known=False)
    assert desk.init() == 0
    assert desk.asked(FIND, INIT) == [("target", INIT), ("source", FIND), ("source", INIT)]
    assert desk.stage.transaction_store.records[("l", NAME)] == TransactionRecord("l", NAME, *T, *S, since=1)


def test_a_source_gives_an_id_once_however_many_links_begin_there() -> None:
    """A second InitProducerId would fence the identity from the first answer."""
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD, link="m"), known=False)
    assert desk.init() == 0
    assert desk.asked(INIT) == [("target", INIT), ("source", INIT)]
    for link in ("l", "m"):
        assert desk.stage.transaction_store.records[(link, NAME)] == TransactionRecord(link, NAME, *T, *S, since=1)


def test_no_id_is_given_while_the_state_log_is_away() -> None:
    desk = forwarded(known=False)
    desk.stage.transaction_store.reach = False
    assert desk.init() == 14


@pytest.mark.parametrize(("code", "told"), [(51, 51), (16, 14), (15, 14), (50, 50)])
def test_what_keeps_the_source_from_giving_an_id_is_told_and_its_coordinator_looked_for_again(
    code: int, told: int
) -> None:
    desk = forwarded(known=False)
    desk.codes["source", INIT] = code
    assert desk.init() == told
    assert desk.stage.transaction_store.records == {}
    desk.codes.clear()
    assert desk.init() == 0
    assert desk.asked(FIND).count(("source", FIND)) == (2 if code in (15, 16) else 1)


def test_a_client_without_rights_at_the_source_may_still_write_what_is_not_mirrored() -> None:
    desk = forwarded(known=False)
    desk.codes["source", INIT] = 53
    assert desk.init() == 0
    assert desk.add("free") == {"free": 0}
    assert desk.asked(ADD) == [("target", ADD)]


def test_a_source_that_is_away_stops_nobody_but_its_own_writers() -> None:
    desk = forwarded(known=False, tells=True)
    desk.lost |= {("source", FIND), ("source", INIT)}
    assert desk.init() == 0
    assert desk.add("free") == {"free": 0}
    assert desk.end() == 0
    assert desk.add("t") == {"t": 14}
    desk.lost.clear()
    assert desk.add("t") == {"t": 0}
    assert desk.passed[-1][0] == "source"
    assert desk.stage.transaction_store.records[("l", NAME)] == TransactionRecord("l", NAME, *T, *S, ("t",))


def test_a_new_holder_of_an_id_that_is_known_at_a_source_waits_for_it() -> None:
    desk = forwarded()
    desk.lost.add(("source", INIT))
    assert desk.init() == 14


def test_a_transaction_goes_to_the_source_in_the_sources_name() -> None:
    desk = forwarded()
    assert desk.add("t") == {"t": 0}
    where, _, request = desk.passed[-1]
    assert where == "source"
    assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == S
    sent = desk.produce("t", sequence=7)
    assert sent is not None
    batch = next(iter(walk(sent.request.parts[0].records)))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional) == (*S, 7, True)
    sent.answer()
    desk.stage.edge.sent.clear()
    assert desk.end() == 0
    where, _, request = desk.passed[-1]
    assert (where, request.producer_id, request.producer_epoch, request.committed) == ("source", *S, True)
    assert desk.stage.shared.forwards.fences(desk.stage.shared.table) == {}
    assert in_flight(desk) == 0


def test_the_first_write_of_an_id_to_a_topic_is_written_down_before_it_happens() -> None:
    """The same holds for a client that does not wait for the answer to AddPartitionsToTxn."""
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    desk.stage.transaction_store.reach = False
    assert desk.add("u") == {"u": 14}
    assert desk.produce("u") is None
    desk.stage.transaction_store.reach = True
    assert desk.add("u") == {"u": 0}
    assert desk.stage.transaction_store.records[("l", NAME)].topics == ("t", "u")
    assert in_flight(desk, "u") == 1
    assert desk.produce("u") is not None


@pytest.mark.parametrize("code", [29, 3, 53, 51])
def test_what_the_source_does_not_let_an_id_write_is_not_coupled_by_it(code: int) -> None:
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    desk.codes["source", ADD] = code
    assert desk.add("u") == {"u": code}
    assert desk.stage.transaction_store.records[("l", NAME)].topics == ("t",)
    assert desk.stage.shared.open_at_source.entries == {}


def test_a_group_that_the_source_does_not_let_an_id_commit_for_is_not_coupled_by_it() -> None:
    desk = forwarded()
    follows(desk)
    desk.codes["source", OFFSETS] = 30
    assert desk.offsets("g") == 30
    assert desk.stage.transaction_store.records[("l", NAME)].groups == ()


def test_a_topic_that_is_fenced_before_the_source_agrees_to_its_first_write_is_not_written() -> None:
    """By then the router has reported that nothing of the topic is in flight."""
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    before_it_answers(desk, lambda: desk.stage.swap(route("t", Serve.FORWARD), route("u", Serve.HOLD, fence_epoch=5)))
    assert desk.add("u") is None
    assert (in_flight(desk, "t"), in_flight(desk, "u")) == (1, 0)
    assert desk.stage.transaction_store.records[("l", NAME)].topics == ("t",)


def test_a_topic_that_is_fenced_once_the_source_has_agreed_waits_for_the_transaction() -> None:
    """The promote waits until no transaction is open at the topic, and the transaction would wait for the promote."""
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    before_it_is_kept(desk, lambda: desk.stage.swap(route("t", Serve.FORWARD), route("u", Serve.HOLD, fence_epoch=5)))
    assert desk.add("u") == {"u": 0}
    assert (in_flight(desk, "t"), in_flight(desk, "u")) == (1, 1)
    assert desk.produce("u") is not None


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90)])
def test_an_older_holder_is_fenced_without_asking_the_source(version: int, code: int) -> None:
    desk = forwarded()
    assert desk.add("t", epoch=T[1] - 1, version=version) == {"t": code}
    desk.add("t")
    assert desk.end(epoch=T[1] - 1, version=version) == code
    assert desk.asked(END) == []
    assert desk.produce("t", epoch=T[1] - 1) is None
    assert parse_answer(desk.stage.edge.replies[-1], 9)[0][0].error == 47


def test_a_holder_that_the_source_does_not_know_yet_is_made_known_there() -> None:
    desk = forwarded(known=False, tells=True)
    assert desk.add("t") == {"t": 0}
    assert desk.asked(INIT, ADD) == [("source", INIT), ("source", ADD), ("source", ADD)]
    assert desk.stage.transaction_store.records[("l", NAME)] == TransactionRecord("l", NAME, *T, *S, ("t",))


@pytest.mark.parametrize(("number", "epoch"), [(T[0], T[1] + 1), (T[0] + 1, 0)])
def test_a_holder_that_is_newer_than_the_record_by_the_targets_word_is_made_known_at_the_source(
    number: int, epoch: int
) -> None:
    """The identity was created while nothing was mirrored."""
    desk = forwarded(tells=True)
    desk.holders |= {"target": (number, epoch), "source": (S[0], S[1] + 1)}
    assert desk.add("t", producer_id=number, epoch=epoch) == {"t": 0}
    assert desk.stage.transaction_store.records[("l", NAME)] == TransactionRecord(
        "l", NAME, number, epoch, S[0], S[1] + 1, ("t",)
    )


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("number", "epoch", "code"), [(T[0] - 1, 32_765, 49), (T[0] + 1, 0, 49), (T[0], 32_767, 90)])
def test_whom_the_target_does_not_call_the_holder_is_told_so_and_ends_nothing_at_the_source(
    number: int, epoch: int, code: int, known: bool
) -> None:
    desk = forwarded(known=known, tells=True)
    records = dict(desk.stage.transaction_store.records)
    assert desk.add("t", producer_id=number, epoch=epoch) == {"t": code}
    assert desk.asked(INIT, ADD) == []
    assert desk.stage.transaction_store.records == records
    assert desk.add("t") == {"t": 0}


def test_an_end_in_the_name_of_who_is_no_holder_leaves_the_open_transaction_as_it_is() -> None:
    desk = forwarded(tells=True)
    desk.add("t")
    assert desk.end(epoch=T[1] + 1) == 90
    assert desk.asked(INIT, END) == []
    assert in_flight(desk) == 1


@pytest.mark.parametrize(("code", "told"), [(53, 53), (16, 16), (14, 14), (105, 49)])
def test_what_keeps_the_target_from_telling_the_holder_is_told(code: int, told: int) -> None:
    desk = forwarded(known=False, tells=True)
    desk.codes["target", DESCRIBE] = code
    assert desk.add("t") == {"t": told}
    assert desk.asked(INIT) == []


def test_where_the_target_cannot_tell_the_holder_the_client_asks_for_the_id_anew() -> None:
    desk = forwarded(known=False)
    assert desk.add("t") == {"t": 49}
    assert desk.asked(INIT) == []
    assert desk.init() == 0
    assert desk.add("t") == {"t": 0}


def test_nobody_is_made_known_at_the_source_while_what_others_have_written_cannot_be_read() -> None:
    desk = forwarded(known=False, tells=True)
    desk.stage.transaction_store.reach = False
    assert desk.add("t") == {"t": 14}
    assert desk.asked(INIT) == []


def test_requests_that_come_together_have_their_holder_made_known_once() -> None:
    """The router makes the identity known at the source once.

    librdkafka adds several partitions at once; a second InitProducerId would end the transaction of the first request.
    """
    desk = forwarded(known=False, tells=True)
    kind = element_type(entity(ADD, 3, "request"), "v3_and_below_topics")
    for correlation, partition in enumerate((0, 1)):
        message = blank(
            entity(ADD, 3, "request"),
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=T[0],
            v3_and_below_producer_epoch=T[1],
            v3_and_below_topics=(kind(name="t", partitions=(partition,)),),
        )
        desk.stage.session.frame(bytearray(frame_request(message, correlation, "c")))
    desk.hears()
    assert len(desk.stage.edge.replies) == 2
    assert desk.asked(INIT, ADD) == [("source", INIT), *[("source", ADD)] * 4]


def test_identities_that_two_routers_tell_end_as_the_newest_of_both_clusters() -> None:
    one, other = TransactionRecord("l", NAME, 50, 2, 9, 1, ("a",)), TransactionRecord("l", NAME, 50, 1, 9, 2, ("b",))
    assert one.merged(other) == TransactionRecord("l", NAME, 50, 2, 9, 2, ("a", "b"))
    assert other.crosses(one) and not one.crosses(other), "the other's may have begun at the source"
    assert one.merged(TransactionRecord("l", NAME, 60, 0, 9, 3)) == TransactionRecord("l", NAME, 60, 0, 9, 3, ("a",))


NEXT = (T[0], T[1] + 1)
"""The next identity after the record's, at the target."""


def _meanwhile(desk: Desk, where: str, key: int, happens: Callable[[], object]) -> None:
    """Let something happen over another connection while a request to a cluster is in flight."""
    told, waits = desk._told, [True]

    def late(at: str, asked: int, *request: Any) -> Any:
        if (at, asked) == (where, key) and waits:
            waits.clear()
            session, desk.stage.session = desk.stage.session, Session(desk.stage.shared, desk.stage.edge)
            happens()
            desk.stage.session = session
        return told(at, asked, *request)

    desk._told = late  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("first", [True, False])
def test_a_holder_that_is_made_known_while_a_newer_one_gets_the_id_takes_nothing_from_it(first: bool) -> None:
    """Whichever identity reached the source first:

    the source's newest identity belongs to the target's newest identity.
    """
    desk = forwarded(known=False, tells=True)
    older, newer = ((S[0], S[1] + 1), (S[0], S[1] + 2)) if first else ((S[0], S[1] + 2), (S[0], S[1] + 1))

    def newer_one() -> None:
        desk.holders |= {"target": NEXT, "source": newer}
        assert desk.init() == 0
        assert desk.add("t", epoch=NEXT[1]) == {"t": 0}
        desk.holders["source"] = older

    _meanwhile(desk, "source", INIT, newer_one)
    assert desk.add("t") == {"t": 90}
    assert desk.stage.transaction_store.records[("l", NAME)] == TransactionRecord(
        "l", NAME, *NEXT, S[0], S[1] + 2, ("t",), since=1 if first else -1
    )
    assert in_flight(desk) == (1 if first else 0), "what the source has ended is open no more, and nothing else"
    assert desk.add("t", epoch=NEXT[1]) == {"t": 0}


def test_a_newer_holder_does_not_go_on_with_what_an_older_one_has_begun_at_the_source() -> None:
    """The source answered the newer identity first, and gave the last source identity to the older identity."""
    desk = forwarded()

    def older_one() -> None:
        desk.holders |= {"target": NEXT, "source": (S[0], S[1] + 2)}
        assert desk.init() == 0
        assert desk.add("t", epoch=NEXT[1]) == {"t": 0}
        desk.holders |= {"target": (T[0], T[1] + 2), "source": (S[0], S[1] + 1)}

    desk.holders["target"] = (T[0], T[1] + 2)
    _meanwhile(desk, "source", INIT, older_one)
    assert desk.init() == 14, "clients ask for the id again"
    assert desk.stage.transaction_store.records[("l", NAME)] == TransactionRecord(
        "l", NAME, *NEXT, S[0], S[1] + 2, ("t",), since=1
    )
    desk.holders |= {"target": (T[0], T[1] + 3), "source": (S[0], S[1] + 3)}
    assert desk.init() == 0
    assert in_flight(desk) == 0
    assert desk.add("t", epoch=NEXT[1]) == {"t": 90}


def _held_back(desk: Desk, where: str, key: int) -> list[Any]:
    """Keep the first such request at its cluster until the test pops and answers the request."""
    kept: list[Any] = []
    usual = desk._answer

    def answer(sent: Any) -> None:
        if not kept and sent.where.split()[0] == where and peek_request(sent.frame).api_key == key:
            kept.append(sent)
            return
        usual(sent)

    desk._answer = answer  # type: ignore[method-assign]
    return kept


def _renewed_while(desk: Desk, key: int, *, code: int) -> None:
    """Let the source refuse an older identity's request after the newer identity has opened a transaction there."""
    kept = _held_back(desk, "source", key)
    if key == ADD:
        assert desk.add("t") is None
    elif key == OFFSETS:
        assert desk.offsets("g") is None
    else:
        assert desk.add("t") == {"t": 0}
        with pytest.raises(AttributeError):
            desk.end()  # No answer has come yet.
    desk.stage.session = Session(desk.stage.shared, desk.stage.edge)
    desk.holders |= {"target": NEXT, "source": (S[0], S[1] + 1)}
    assert desk.init() == 0
    assert desk.add("t", epoch=NEXT[1]) == {"t": 0}
    assert in_flight(desk) == 1
    desk.codes["source", key] = code
    Desk._answer(desk, kept.pop())
    del desk.codes["source", key]


@pytest.mark.parametrize("key", [ADD, OFFSETS, END])
def test_a_late_refusal_of_an_older_holder_ends_nothing_that_the_newer_has_open(key: int) -> None:
    """Otherwise the next partition would be admitted at the target, and the commit would go only there."""
    desk = forwarded(tells=True)
    follows(desk)
    assert desk.init() == 0
    _renewed_while(desk, key, code=90)
    assert in_flight(desk) == 1, "a fence waits for it"
    assert desk.add("free", epoch=NEXT[1]) == {"free": 29}


@pytest.mark.parametrize("code", [47, 49, 53, 90])
def test_an_end_that_the_source_takes_for_no_holders_leaves_open_what_the_holder_has_begun(code: int) -> None:
    desk = forwarded(tells=True)
    assert desk.add("t") == {"t": 0}
    desk.stage.session, holder = Session(desk.stage.shared, desk.stage.edge), desk.stage.session
    desk.codes["source", END] = code
    assert desk.end() == code
    del desk.codes["source", END]
    desk.stage.session = holder
    assert in_flight(desk) == 1
    assert desk.add("free") == {"free": 29}


# A single cluster per transaction


def test_a_transaction_on_two_clusters_is_refused_and_can_be_aborted() -> None:
    desk = forwarded()
    assert desk.add("t", "free") == {"t": 29, "free": 55}
    assert "promote its topics together" in desk.stage.backend.said[-1]
    assert desk.end(committed=False) == 0
    assert desk.asked(ADD, END) == []
    assert desk.add("t") == {"t": 0}
    assert desk.add("free") == {"free": 29}
    assert desk.end(committed=False) == 0
    assert desk.asked(ADD, END) == [("source", ADD), ("source", END)]
    assert desk.add("free") == {"free": 0}
    assert desk.add("t") == {"t": 29}
    assert desk.end() == 0
    assert desk.asked(ADD, END)[2:] == [("target", ADD), ("target", END)]


def test_offsets_are_committed_where_the_transaction_is() -> None:
    desk = forwarded()
    assert desk.offsets("waiting") == 30
    assert desk.offsets("free") == 0
    assert desk.end() == 0
    assert desk.asked(OFFSETS, END) == [("target", OFFSETS), ("target", END)]
    desk.add("t")
    assert desk.offsets("free") == 30


def test_of_two_requests_that_would_begin_a_transaction_one_may_be_refused() -> None:
    """A refused request does not end the other request's transaction.

    librdkafka adds several partitions at once, and the source refuses requests while the last transaction is still
    ending.
    """
    shared = forwarded().stage.shared
    entry = shared.open_at_source.enter("l", NAME, T[1], {"topic/l/t"})
    entry.ask(who := object())
    entry.ask(who)
    assert not entry.answered(who, known=False)
    assert not entry.answered(who, known=True)
    other = shared.open_at_source.enter("l", "other", T[1], {"topic/l/t"})
    other.ask(who)
    other.ask(who)
    assert not other.answered(who, known=False)
    assert other.answered(who, known=False)


def test_offsets_of_a_group_that_follows_are_at_the_source_in_the_sources_name() -> None:
    desk = forwarded()
    follows(desk)
    desk.add("t")
    assert desk.offsets("g") == 0
    where, _, request = desk.passed[-1]
    assert (where, request.producer_id, request.producer_epoch, str(request.group_id)) == ("source", *S, "g")
    assert desk.stage.transaction_store.records[("l", NAME)].groups == ("g",)
    assert desk.stage.shared.group_reports(0.0)["g"].in_flight == 1
    desk.end()
    assert desk.stage.shared.group_reports(0.0)["g"].in_flight == 0


def test_offsets_of_a_group_that_follows_and_records_on_the_target_are_refused() -> None:
    desk = forwarded()
    follows(desk)
    desk.add("free")
    assert desk.offsets("g") == 30


def test_under_a_freeze_an_open_transaction_of_a_group_ends_and_no_new_one_begins() -> None:
    desk = forwarded()
    follows(desk)
    desk.add("t")
    desk.offsets("g")
    follows(desk, frozen=True)
    drains = desk.stage.backend.drains
    assert desk.offsets("g") == 0
    assert desk.end() == 0
    assert desk.stage.backend.drains == drains + 1
    assert desk.add("t") is None


def test_a_group_that_is_frozen_before_the_source_agrees_to_its_first_positions_is_not_reached() -> None:
    desk = forwarded()
    follows(desk)
    desk.add("t")
    before_it_answers(desk, lambda: follows(desk, frozen=True))
    assert desk.offsets("g") is None
    assert desk.stage.shared.group_reports(0.0)["g"].in_flight == 0
    assert desk.stage.transaction_store.records[("l", NAME)].groups == ()


def test_a_group_that_is_frozen_once_the_source_has_agreed_waits_for_the_transaction() -> None:
    desk = forwarded()
    follows(desk)
    desk.add("t")
    before_it_is_kept(desk, lambda: follows(desk, frozen=True))
    assert desk.offsets("g") == 0
    assert desk.stage.shared.group_reports(0.0)["g"].in_flight == 1


def opened(desk: Desk) -> None:
    """End the promote of the group, and the promote of the topic with it."""
    desk.stage.swap(route("t", Serve.LOCAL))
    desk.stage.turn()
    desk.hears()


def says_positions(desk: Desk) -> Any:
    """Commit an offset of the group in the transaction, and return the answer."""
    topic = element_type(entity(COMMIT, 3, "request"), "topics")
    parts = (blank(element_type(topic, "partitions"), partition_index=0, committed_offset=7),)
    return desk.says(
        COMMIT,
        transactional_id=NAME,
        group_id="g",
        producer_id=T[0],
        producer_epoch=T[1],
        member_id="m",
        generation_id=1,
        topics=(blank(topic, name="t", partitions=parts),),
    )


def commit(desk: Desk) -> int | None:
    """Return the code of such a commit, or None where the commit went to the target."""
    before = desk.asked(COMMIT)
    answer = says_positions(desk)
    if (now := desk.asked(COMMIT)) != before:
        assert now[-1][0] == "target"
        return None
    return code_of(answer.topics[0].partitions[0].error_code)


def commits_for_a_group(desk: Desk) -> Desk:
    """Commit once for the group, and then start the group's promote."""
    follows(desk)
    desk.add("t")
    desk.offsets("g")
    desk.end()
    follows(desk, frozen=True)
    return desk


def held_at_its_records(desk: Desk) -> None:
    assert commits_for_a_group(desk).add("t") is None


def held_at_its_positions(desk: Desk) -> None:
    assert commits_for_a_group(desk).offsets("g") is None


def not_begun(desk: Desk) -> None:
    commits_for_a_group(desk)


def held_at_its_first_positions(desk: Desk) -> None:
    follows(desk, frozen=True)
    assert desk.offsets("g") is None


@pytest.mark.parametrize("read", [held_at_its_records, held_at_its_positions, held_at_its_first_positions, not_begun])
def test_a_transaction_with_what_may_have_been_read_before_its_group_opened_commits_no_positions(
    read: Callable[[Desk], None],
) -> None:
    """The router refuses the group's offsets in such a transaction.

    Members of the new protocol keep their member ids, and the member may have joined anew meanwhile. Then the target
    would accept the commit, although another member reads the same records again.
    """
    desk = forwarded()
    read(desk)
    opened(desk)
    assert desk.add("t") == {"t": 0}
    assert commit(desk) == 22
    assert commit(desk) is None, "its next transaction, whose beginning another router may have heard"


def test_a_new_holder_has_read_nothing_before_its_group_opened() -> None:
    desk = commits_for_a_group(forwarded())
    opened(desk)
    desk.init()
    assert commit(desk) is None


def test_a_group_that_is_given_up_may_be_committed_for() -> None:
    desk = commits_for_a_group(forwarded())
    desk.holders["coordinator"] = S
    assert desk.add("t") is None
    follows(desk)
    desk.hears()
    says_positions(desk)
    assert desk.asked(COMMIT) == [("coordinator", COMMIT)]


@pytest.mark.parametrize("table", [False, True], ids=["at the commit", "at the next table"])
def test_what_was_read_before_a_group_opened_is_over_after_a_while(table: bool) -> None:
    desk = commits_for_a_group(forwarded())
    opened(desk)
    assert set(desk.stage.shared.open_at_target.overtaken) == {NAME}
    desk.stage.edge.clock += 901
    if table:
        desk.stage.turn()
        assert not desk.stage.shared.open_at_target.overtaken
    assert desk.add("t") == {"t": 0}
    assert commit(desk) is None


def test_who_comes_in_the_middle_of_a_transaction_is_asked_about_first() -> None:
    desk = forwarded(tells=True)
    desk.open["source"] = ("t", "not mirrored")
    assert desk.end() == 0
    assert desk.asked(DESCRIBE, END) == [("source", DESCRIBE), ("target", DESCRIBE), ("source", END)]
    other = forwarded(tells=True)
    other.open["target"] = ("free",)
    assert other.add("t") == {"t": 29}
    assert other.end() == 0
    assert other.asked(END) == [("target", END)]


@pytest.mark.parametrize("topics", [("t",), ()])
def test_a_source_that_two_links_mirror_has_one_transaction_open_and_it_is_that_of_its_topics(
    topics: tuple[str, ...],
) -> None:
    """The identity is recorded for both links.

    For a transaction without topics, as when it has only begun, the record decides.
    """
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD, link="k"), tells=True, known=False)
    of_links: dict[str, tuple[str, ...]] = {"k": (), "l": ("t",)}
    for link, named in of_links.items():
        desk.stage.transaction_store.records[(link, NAME)] = TransactionRecord(link, NAME, *T, *S, named)
    desk.stage.transaction_store.changed()
    desk.open["source"] = topics
    assert desk.add("t") == {"t": 0}
    assert desk.end() == 0
    assert desk.add("t") == {"t": 0}
    assert desk.asked(DESCRIBE) == [("source", DESCRIBE), ("target", DESCRIBE)]


def _another(desk: Desk) -> Session:
    """Open a second connection of the same client, and return the first connection."""
    first = desk.stage.session
    desk.stage.session = Session(desk.stage.shared, desk.stage.edge)
    return first


def test_a_transaction_that_began_over_another_connection_is_open_here_too() -> None:
    """The coordinator has moved to another broker and back; both connections knew the transactional id before."""
    desk = forwarded(tells=True)
    assert desk.add("free") == {"free": 0}
    assert desk.end() == 0
    first = _another(desk)
    assert desk.add("free") == {"free": 0}
    desk.stage.session = first
    assert desk.add("t") == {"t": 29}


def test_a_transaction_that_ended_over_another_connection_is_not_open_here() -> None:
    desk = forwarded(tells=True)
    assert desk.add("free") == {"free": 0}
    first = _another(desk)
    desk.open["target"] = ("free",)
    assert desk.end() == 0
    del desk.open["target"]
    desk.stage.session = first
    assert desk.add("t") == {"t": 0}


def test_a_transaction_that_ended_over_another_router_is_not_open_here_by_the_targets_word() -> None:
    """The first connection may be half dead for long."""
    desk = forwarded(tells=True)
    assert desk.add("free") == {"free": 0}
    _another(desk)
    assert desk.add("t") == {"t": 0}


def test_what_is_asked_while_the_target_answers_is_not_taken_for_ended() -> None:
    desk = forwarded(tells=True)
    assert desk.add("free") == {"free": 0}
    _another(desk)
    entry = desk.stage.shared.open_at_target.open[NAME]
    entry.ask(object())
    assert desk.add("t") == {"t": 29}


@pytest.mark.parametrize("code", [53, 29, 49, 90])
def test_what_the_target_refuses_to_a_stranger_is_no_transaction_of_the_holder(code: int) -> None:
    desk = forwarded(tells=True)
    first = _another(desk)
    desk.codes["target", ADD] = code
    assert desk.add("free", producer_id=1, epoch=0) == {"free": code}
    desk.codes.clear()
    desk.stage.session = first
    assert desk.add("t") == {"t": 0}


def test_a_stranger_that_is_refused_leaves_open_what_the_holder_has_begun_meanwhile() -> None:
    desk = forwarded(tells=True)
    entry = desk.stage.shared.open_at_target.open.setdefault(NAME, OpenTransaction())
    entry.ask(stranger := object())
    assert desk.add("free") == {"free": 0}
    assert not entry.answered(stranger, known=False)
    assert desk.add("t") == {"t": 29}


@pytest.mark.parametrize(("where", "asked", "elsewhere"), [("target", "free", "t"), ("source", "t", "free")])
def test_what_a_stranger_asks_for_is_not_open_to_the_holder_before_its_cluster_has_judged_it(
    where: str, asked: str, elsewhere: str
) -> None:
    """Otherwise any client that names the id could make the true client's next request fail, again and again."""
    desk = forwarded(tells=True)
    holder, told, waits = _another(desk), desk._told, [True]

    def late(at: str, key: int, *request: Any) -> Any:
        if key == ADD and waits:
            waits.clear()
            stranger, desk.stage.session = desk.stage.session, holder
            assert desk.add(elsewhere) == {elsewhere: 0}
            assert desk.end() == 0
            assert {at for at, _ in desk.asked(END)} == {"source" if where == "target" else "target"}
            desk.stage.session, desk.codes[where, ADD] = stranger, 53
        return told(at, key, *request)

    desk._told = late  # type: ignore[method-assign, assignment]
    assert desk.add(asked) == {asked: 53}
    assert (desk.stage.shared.open_at_source.entries, desk.stage.shared.open_at_target.open) == ({}, {})


def test_what_a_client_asks_for_is_open_to_itself_before_the_target_has_answered() -> None:
    """librdkafka adds several partitions at once, and a transaction uses a single cluster."""
    desk = forwarded(tells=True)
    assert desk.end(committed=False) == 0
    told, waits = desk._told, [True]

    def late(at: str, key: int, *request: Any) -> Any:
        if key == ADD and waits:
            waits.clear()
            assert desk.add("t") is None, "answers come in the order of the requests"
        return told(at, key, *request)

    desk._told = late  # type: ignore[method-assign, assignment]
    assert desk.add("free") == {"t": 29}
    assert desk.asked(ADD) == [("target", ADD)]


def test_what_a_client_had_asked_the_target_for_when_its_connection_was_lost_is_open_to_nobody() -> None:
    """A later client asks the target, which knows the transaction."""
    desk = forwarded(tells=True)
    stays, goes = _another(desk), desk.stage.session
    assert desk.add("free") == {"free": 0}
    assert desk.end() == 0
    desk.hears = lambda: None  # type: ignore[method-assign]
    assert desk.add("free") is None
    assert desk.stage.shared.open_at_target.open.keys() == {NAME}
    desk.stage.session = stays
    del desk.hears
    desk.stage.edge.sent.clear()
    assert desk.end(committed=False) == 0
    goes.closed()
    assert desk.stage.shared.open_at_target.open == {}


@pytest.mark.parametrize("code", [90, 47, 49, 53])
def test_an_end_that_the_target_takes_for_no_holders_leaves_open_what_the_holder_has_begun(code: int) -> None:
    """Otherwise the commit would go to the source, which calls its last transaction there committed."""
    desk = forwarded(tells=True)
    assert desk.add("free") == {"free": 0}
    first = _another(desk)
    desk.open["target"] = ("free",)
    desk.codes["target", END] = code
    assert desk.end(committed=False, epoch=T[1] - 1) == code
    desk.codes.clear()
    desk.stage.session = first
    assert desk.add("t") == {"t": 29}
    assert desk.end() == 0
    assert {where for where, _ in desk.asked(END)} == {"target"}


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_coordinator_at_the_target_that_cannot_tell_now_is_asked_again(code: int) -> None:
    """The request fails until the target's coordinator can answer.

    The coordinator has just moved, and the client with it, in the middle of a transaction. If the router took the
    transaction for ended, the commit would go to the source, which calls its last transaction there committed.
    """
    desk = forwarded(tells=True)
    desk.open["target"] = ("free",)
    desk.codes["target", DESCRIBE] = code
    assert desk.end() == code
    assert desk.asked(END) == []
    desk.codes.clear()
    assert desk.end() == 0
    assert desk.asked(END) == [("target", END)]


def test_of_what_is_open_at_the_target_nothing_is_kept_when_all_of_its_connections_are_gone() -> None:
    desk = forwarded(tells=True)
    desk.add("free")
    first = _another(desk)
    desk.add("free")
    first.closed()
    assert desk.stage.shared.open_at_target.open.keys() == {NAME}
    desk.stage.session.closed()
    assert desk.stage.shared.open_at_target == TargetTransactions()


def test_a_connection_remembers_few_ids_that_the_target_refuses() -> None:
    desk = forwarded(tells=True)
    desk.codes["target", OFFSETS] = 53
    for number in range(100):
        desk.says(OFFSETS, transactional_id=f"made-up-{number}", producer_id=1, producer_epoch=0, group_id="free")
    assert len(desk.stage.shared.open_at_target._heard) < 20
    assert desk.stage.shared.open_at_target.open == {}


def test_a_connection_remembers_few_ids_beside_those_with_an_open_transaction() -> None:
    """A transactional id has up to 32 KB, and the client chooses how many ids exist."""
    desk = forwarded(tells=True)
    desk.add("free")
    for number in range(100):
        desk.says(END, transactional_id=f"made-up-{number}", producer_id=1, producer_epoch=0, committed=False)
    assert len(desk.stage.shared.open_at_target._heard) < 20
    asked = len(desk.asked(DESCRIBE))
    assert desk.add("t") == {"t": 29}, "its own is still known to be at the target"
    assert len(desk.asked(DESCRIBE)) == asked


# Fences


def test_a_fence_holds_what_begins_and_lets_what_is_open_end() -> None:
    desk = forwarded()
    desk.add("t")
    fenced(desk)
    ack = desk.stage.shared.forwards.fences(desk.stage.shared.table)["topic/l/t"]
    assert (ack.epoch, ack.in_flight) == (5, 1)
    sent = desk.produce("t")
    assert sent is not None and sent.where.startswith("source")
    sent.answer()
    desk.stage.edge.sent.clear()
    assert desk.end() == 0
    assert (in_flight(desk), desk.stage.backend.drains) == (0, 1)
    assert desk.add("t") is None, "it waits"
    desk.stage.swap(route("t", Serve.LOCAL))
    desk.hears()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": 0}
    assert desk.asked(ADD) == [("source", ADD), ("target", ADD)]


def test_shortly_before_a_fence_no_transaction_begins_and_everything_else_goes_on() -> None:
    desk = forwarded()
    desk.add("t")
    desk.stage.swap(route("t", Serve.FORWARD, fence_epoch=4, closing=True))
    ack = desk.stage.shared.forwards.fences(desk.stage.shared.table)["topic/l/t"]
    assert (ack.epoch, ack.in_flight) == (4, 0)
    assert desk.add("t", partitions=(1,)) == {"t": 0}
    sent = desk.produce("t")
    assert sent is not None and sent.where.startswith("source")
    sent.answer()
    desk.stage.edge.sent.clear()
    assert desk.end() == 0
    assert desk.add("t") is None, "it waits"
    desk.stage.swap(route("t", Serve.FORWARD))
    desk.hears()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": 0}, "the promote was given up"


def test_an_open_transaction_does_not_reach_out_to_a_topic_that_was_fenced_without_it() -> None:
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD), topics=("u",))
    desk.add("u")
    desk.stage.swap(route("t", Serve.HOLD, fence_epoch=5), route("u", Serve.FORWARD))
    assert desk.add("t") is None
    assert (in_flight(desk, "t"), in_flight(desk, "u")) == (0, 1)
    desk.stage.swap(route("t", Serve.LOCAL), route("u", Serve.FORWARD))
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": 29}


def test_a_rollbacks_fence_waits_for_a_transactions_batch_and_lets_no_further_batch_or_partition_in() -> None:
    promoted, other = route("t", Serve.LOCAL, copied_back=True), route("u", Serve.LOCAL)
    back = route("t", Serve.HOLD, fence_epoch=5, copied_back=True, rolling_back=True)
    desk = Desk(promoted, other)
    assert desk.add("t", "u") == {"t": 0, "u": 0}
    sent = desk.produce("t")
    assert sent is not None and in_flight(desk) == 1
    desk.stage.swap(back, other)
    sent.answer()
    assert (in_flight(desk), desk.stage.backend.drains) == (0, 1)
    desk.stage.edge.sent.clear()
    assert desk.end() == 0
    assert desk.asked(END) == [("target", END)]
    assert desk.add("t") is None, "it waits"
    desk.stage.swap(promoted, other)
    desk.hears()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": 0}
    assert {where for where, _, _ in desk.passed} == {"target"}
    desk.stage.swap(back, other)
    assert desk.produce("t", sequence=1) is None


def _coupled(*serves: Serve, **values: Any) -> Desk:
    """Return a client whose transactional id has written both topics before."""
    return Desk(*map(route, ("t", "u"), serves or (Serve.FORWARD, Serve.FORWARD)), topics=("t", "u"), **values)


@pytest.mark.parametrize("begin", [lambda desk: desk.add("t"), lambda desk: desk.offsets("g")])
def test_a_fence_waits_for_an_open_transaction_at_all_topics_that_its_id_writes(begin: Callable[[Desk], Any]) -> None:
    """The two topics are promoted together.

    The transaction cannot end before writing the other topic, and the fence cannot complete before the transaction
    ends.
    """
    desk = _coupled()
    follows(desk)
    begin(desk)
    fenced(desk, "t", "u")
    fences = desk.stage.shared.forwards.fences(desk.stage.shared.table)
    assert (fences["topic/l/t"].in_flight, fences["topic/l/u"].in_flight) == (1, 1)
    assert desk.add("u") == {"u": 0}
    assert desk.passed[-1][0] == "source"
    assert desk.end() == 0
    assert (in_flight(desk, "t"), in_flight(desk, "u")) == (0, 0)
    assert desk.add("u") is None


def test_a_transaction_that_another_router_has_begun_counts_at_all_topics_that_its_id_writes() -> None:
    desk = _coupled(tells=True)
    desk.open["source"] = ("t",)
    assert desk.add("t") == {"t": 0}
    fenced(desk, "t", "u")
    assert in_flight(desk, "u") == 1
    assert desk.add("u") == {"u": 0}


def test_a_topic_that_is_fenced_before_a_transaction_is_heard_of_is_not_reached_by_it() -> None:
    """The fence may be complete, and the barrier may have been read."""
    desk = _coupled(Serve.FORWARD, Serve.HOLD, tells=True)
    desk.open["source"] = ("t",)
    assert desk.add("t") == {"t": 0}
    assert in_flight(desk, "u") == 0
    assert desk.add("u") is None


def test_a_fenced_topic_of_which_only_the_source_knows_is_not_reached() -> None:
    """The router that added the topic died before it could record the topic, so the fence does not wait."""
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.HOLD, fence_epoch=5), tells=True)
    desk.open["source"] = ("t", "u")
    assert desk.add("t") == {"t": 0}
    assert in_flight(desk, "u") == 0
    assert desk.add("u") is None


def test_what_is_promoted_already_waits_for_no_open_transaction() -> None:
    desk = _coupled(Serve.FORWARD, Serve.LOCAL)
    assert desk.add("t") == {"t": 0}
    assert in_flight(desk, "u") == 0


def test_what_a_fence_holds_too_long_is_told_to_come_again() -> None:
    desk = forwarded()
    fenced(desk)
    assert desk.add("t") is None
    desk.stage.edge.clock = desk.stage.edge.wakes[-1]
    desk.stage.session.advance()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": 51}
    assert desk.stage.shared.waiting == {}


def test_no_transaction_begins_while_any_topic_of_its_id_is_fenced() -> None:
    desk = Desk(route("t", Serve.LOCAL), route("u", Serve.HOLD, fence_epoch=5), topics=("t", "u"))
    assert desk.add("t") is None
    assert desk.offsets("free") is None
    desk.stage.swap(route("t", Serve.LOCAL), route("u", Serve.LOCAL))
    desk.hears()
    assert sorted(desk.asked(ADD, OFFSETS)) == [("target", ADD), ("target", OFFSETS)]


def test_a_batch_under_a_fence_goes_on_only_where_its_transaction_is_open() -> None:
    desk = forwarded(tells=True)
    fenced(desk)
    assert desk.produce("t") is None
    desk.hears()
    assert desk.asked(DESCRIBE) == [("source", DESCRIBE)]
    assert desk.produce("t") is None
    other = forwarded(tells=True)
    other.open["source"] = ("t",)
    fenced(other)
    assert other.produce("t") is None
    sent = other.stage.edge.sent.pop(0)
    other._answer(sent)
    other._answer(other.stage.edge.sent.pop(0))
    assert [peek_request(s.frame).api_key for s in other.stage.edge.sent] == [0]
    assert in_flight(other) == 2, "the transaction and its batch"


def test_a_batch_that_went_another_way_is_asked_for_in_the_sources_name() -> None:
    """A leader at the target moves away and back; without the question the producer would wait for ever."""
    desk = forwarded()
    desk.add("t")
    desk.produce("t", sequence=3)
    desk.stage.edge.sent.pop().answer(6)
    for _ in range(2):
        desk.produce("t", sequence=8)
    ((_, topic, partition, stored, then),) = desk.stage.backend.sought
    assert (topic, partition, stored) == ("t", 0, StoredBatch(*S, 3))
    assert desk.stage.edge.sent == []
    then(True)
    assert desk.produce("t", sequence=8) is not None


def test_a_lost_answer_leaves_the_transaction_open_until_it_is_known_to_have_ended() -> None:
    desk = forwarded()
    desk.lost.add(("source", ADD))
    assert desk.add("t") == {"t": 14}
    assert in_flight(desk) == 1
    desk.lost.clear()
    assert desk.add("t") == {"t": 0}
    desk.lost.add(("source", END))
    assert desk.end() == 14
    assert in_flight(desk) == 1
    desk.lost.clear()
    assert desk.end() == 0
    assert in_flight(desk) == 0


def test_a_transaction_that_did_not_begin_is_not_waited_for() -> None:
    desk = forwarded()
    desk.codes["source", ADD] = 51
    assert desk.add("t") == {"t": 51}
    assert in_flight(desk) == 0


def test_a_newer_holder_at_another_router_ends_what_is_open_here() -> None:
    desk = forwarded()
    desk.add("t")
    desk.stage.transaction_store.records[("l", NAME)] = TransactionRecord(
        "l", NAME, T[0], T[1] + 1, S[0], S[1] + 1, ("t",)
    )
    desk.stage.transaction_store.changed()
    assert in_flight(desk) == 0
    assert desk.add("t") == {"t": 90}


# Transactions whose end the router never saw


def asked_about(desk: Desk, *open_: str, meanwhile: Callable[[], Any] = lambda: None) -> list[str]:
    """Compare once with the source's open transactions, and return the transactional ids in the request."""
    asked: list[str] = []

    async def open_at_source(link: str, names: Collection[str]) -> Collection[str]:
        assert link == "l"
        asked.extend(names)
        meanwhile()
        return open_

    asyncio.run(close_stale_transactions(desk.stage.shared, open_at_source))
    return asked


def test_a_transaction_whose_client_is_gone_counts_until_the_source_has_ended_it() -> None:
    desk = forwarded()
    desk.add("t")
    assert asked_about(desk) == [], "no fence waits for it"
    fenced(desk)
    assert asked_about(desk, NAME) == [NAME]
    assert in_flight(desk) == 1
    assert asked_about(desk) == [NAME]
    assert (in_flight(desk), desk.stage.backend.drains) == (0, 1)


def test_nothing_more_is_asked_of_a_source_for_a_client_that_is_gone() -> None:
    """The client returns over another connection, and the source would get the older connection's request last."""
    desk = forwarded()
    before_it_answers(desk, desk.stage.session.closed)
    assert desk.says(INIT, transactional_id=NAME, producer_id=-1, producer_epoch=-1) is None
    assert desk.asked(FIND, INIT) == [("target", INIT), ("source", FIND)]


def _gone_while(desk: Desk, key: int, ask: Callable[[], object]) -> None:
    """Let the client leave while the source has such a request of the client."""
    kept = _held_back(desk, "source", key)
    with suppress(AttributeError):
        ask()  # No answer has come yet.
    desk.stage.session.closed()
    replies = len(desk.stage.edge.replies)
    desk._answer(kept[0])
    desk.hears()
    assert len(desk.stage.edge.replies) == replies
    assert not desk.stage.shared.conversations._open, "nothing waits for a client that is gone"


def test_an_end_that_the_source_answers_when_the_client_is_gone_ends_the_transaction() -> None:
    desk = forwarded()
    desk.add("t")
    _gone_while(desk, END, desk.end)
    assert in_flight(desk) == 0


def test_an_identity_that_the_source_gives_when_the_client_is_gone_is_written_down() -> None:
    """The source has ended the older identity, so the state log must name the newer identity."""
    desk = forwarded()
    desk.holders = {"target": NEXT, "source": (S[0], S[1] + 1)}
    _gone_while(desk, INIT, desk.init)
    assert desk.stage.transaction_store.records[("l", NAME)].source_epoch == S[1] + 1


def test_a_coupling_to_which_the_source_agrees_when_the_client_is_gone_is_written_down() -> None:
    desk = Desk(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    _gone_while(desk, ADD, lambda: desk.add("u"))
    assert in_flight(desk, "u") == 1, "the transaction is open at the source"
    assert desk.stage.transaction_store.records[("l", NAME)].topics == ("t", "u")
    assert desk.stage.shared.open_at_source.entries[("l", NAME)].asking == []


def test_a_transaction_that_the_source_reports_when_the_client_is_gone_counts_at_fences() -> None:
    desk = forwarded(tells=True)
    desk.open["source"] = ("t",)
    _gone_while(desk, DESCRIBE, lambda: desk.add("t"))
    assert in_flight(desk) == 1


def test_what_a_fence_holds_is_forgotten_with_its_client() -> None:
    desk = forwarded()
    fenced(desk)
    assert desk.add("t") is None
    session = desk.stage.session
    session.closed()
    desk.stage.swap(route("t", Serve.LOCAL))
    desk.hears()
    assert (desk.asked(ADD), desk.stage.shared.waiting) == ([], {})
    assert not session.conversations._open


def test_what_is_asked_while_the_source_answers_is_not_taken_for_ended() -> None:
    desk = forwarded()
    desk.add("t")
    fenced(desk)
    asked_about(desk, meanwhile=lambda: desk.add("t"))
    assert in_flight(desk) == 1
    desk.stage.shared.open_at_source.entries[("l", NAME)].ask(object())
    assert asked_about(desk) == [], "an answer is due"


# EndTxn requests whose answer was lost


@pytest.mark.parametrize(
    ("serve", "order"), [(Serve.FORWARD, ["source", "target"]), (Serve.LOCAL, ["target", "source"])]
)
def test_a_repeated_end_is_answered_by_the_cluster_where_the_transaction_was(serve: Serve, order: list[str]) -> None:
    desk = Desk(route("t", serve))
    first, second = order
    assert desk.end() == 0
    assert desk.asked(END) == [(first, END)]
    desk.codes[first, END] = 48
    assert desk.end() == 0
    assert desk.asked(END)[1:] == [(first, END), (second, END)]
    desk.codes[second, END] = 48
    assert desk.end() == 48


def test_after_the_promote_of_what_an_id_writes_the_target_is_asked_first_though_its_link_mirrors_others() -> None:
    """A target before Kafka 3.0 does not list open transactions: the end may be the first end, and no repetition."""
    desk = Desk(route("t", Serve.LOCAL), route("u", Serve.FORWARD))
    assert desk.end() == 0
    assert desk.asked(END) == [("target", END)]
    desk.codes["target", END] = 48
    assert desk.end() == 0
    assert desk.asked(END)[1:] == [("target", END), ("source", END)]


def test_after_the_promote_of_everything_the_source_is_not_asked_for_anything_else() -> None:
    desk = Desk(route("t", Serve.LOCAL), tells=True)
    assert desk.init() == 0
    assert desk.add("t") == {"t": 0}
    assert desk.end() == 0
    assert {where for where, _, _ in desk.passed} == {"target"}
