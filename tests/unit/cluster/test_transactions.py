"""Tests of open transactions, found from partition leaders and coordinators, and of requests to a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.client import ClusterClient, ProducerState
from kmigrate.cluster.metadata import Metadata
from kmigrate.cluster.transactions import (
    STILL_OPEN,
    IdState,
    OpenTransaction,
    begin_and_abort,
    end_transaction,
    group_partition,
    id_state,
    last_begun,
    listed_ids,
    open_topics,
    open_transactions,
    open_writers,
    raise_epoch,
    refuse_unwritable_id,
    tells_transactions,
)
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.protocol.described import DescribedTopic, DescribedTransaction, DescribedTransactions

KEY = ("t", 0)
NOW = 1_000_000


class Cluster(ClusterClient):
    """A cluster of two brokers.

    `begun` are the answers of DescribeProducers in order, `listed` the coordinators' answers.
    """

    def __init__(self, apis: set[int], begun: list[list[tuple[int, int]]], listed: dict[int, Any]) -> None:
        super().__init__(ClusterSettings("c", (("h", 1),)))
        self.metadata_cache.known = Metadata("id", {0: ("h", 1), 1: ("h", 2)})
        self._apis, self._begun, self._listed = apis, begun, listed

    async def describe_producers(self, keys: Any) -> Any:
        states = self._begun.pop(0)
        return {KEY: (0, tuple(ProducerState(producer, 0, 5, 900_000, start) for producer, start in states))}

    async def call(self, request: Any, node: int | None = None, *, purpose: str = "control") -> Any:
        match int(request.__api_key__):
            case 18:
                return SimpleNamespace(api_keys=[SimpleNamespace(api_key=key, max_version=0) for key in self._apis])
            case 66:
                said = self._listed[node or 0]
                if isinstance(said, Exception):
                    raise said
                states = [
                    SimpleNamespace(transactional_id=name, producer_id=producer, transaction_state=state)
                    for name, producer, state in said
                ]
                return SimpleNamespace(error_code=0, transaction_states=states)
            case _:
                named = {name: producer for name, producer, _ in self._listed[node or 0]}
                states = [
                    SimpleNamespace(
                        error_code=0, transactional_id=name, producer_id=named[name], transaction_start_time=970_000
                    )
                    for name in request.transactional_ids
                ]
                return SimpleNamespace(transaction_states=states)


def ask(cluster: Cluster) -> dict[tuple[str, int], OpenTransaction]:
    return asyncio.run(open_transactions(cluster, [KEY]))


ALL = {61, 65, 66}
OPEN = [("app", 7, "Ongoing")]


def test_the_first_open_transaction_is_named_with_its_id_and_its_age() -> None:
    found = ask(Cluster(ALL, [[(9, 40), (7, 30), (8, -1)]], {0: [("other", 5, "Empty")], 1: OPEN}))
    assert found == {KEY: OpenTransaction(30, 7, 900_000, "app", 970_000)}
    assert found[KEY].text(NOW) == "waits at offset 30 for the transaction of app (producer 7), open for 30 s"


def test_a_partition_without_open_transaction_is_left_out() -> None:
    assert ask(Cluster(ALL, [[(8, -1)]], {})) == {}


def test_an_older_cluster_tells_the_producer_id_alone() -> None:
    found = ask(Cluster({61}, [[(7, 30)]], {}))
    assert found == {KEY: OpenTransaction(30, 7, 900_000)}
    assert found[KEY].text(NOW) == "waits at offset 30 for the transaction of producer 7, open for at least 100 s"
    assert ask(Cluster({1}, [], {})) == {}


def test_a_transaction_that_no_coordinator_has_open_is_hanging() -> None:
    found = ask(Cluster(ALL, [[(7, 30)], [(7, 30)]], {0: [], 1: [("app", 7, "CompleteCommit")]}))
    assert found[KEY].hanging
    assert "hanging: no coordinator knows it as open" in found[KEY].text(NOW)


@pytest.mark.parametrize("later", [[], [(7, 55)]])
def test_a_transaction_that_ended_while_we_asked_is_not_called_hanging(later: list[tuple[int, int]]) -> None:
    assert ask(Cluster(ALL, [[(7, 30)], later], {0: [], 1: []})) == {}


def test_without_every_coordinators_word_nothing_is_called_hanging() -> None:
    found = ask(Cluster(ALL, [[(7, 30)]], {0: [], 1: Unreachable("connection-lost", "gone")}))
    assert found == {KEY: OpenTransaction(30, 7, 900_000)}


class Coordinators(Cluster):
    """A cluster as above whose broker 0 coordinates every id, with the states given in `states`."""

    states: Mapping[str, tuple[int, str, int]] = {}
    sent: Sequence[int] = ()

    async def find_coordinator(self, key: str, *, kind: int = 0) -> int:
        return 0

    async def call(self, request: Any, node: int | None = None, *, purpose: str = "control") -> Any:
        key = int(request.__api_key__)
        if key in (25, 26):
            self.sent = (*self.sent, key)
            return SimpleNamespace(error_code=0)
        if key != 65:
            return await super().call(request, node, purpose=purpose)
        states = []
        for name in request.transactional_ids:
            error, state, start = self.states[name]
            topics = (DescribedTopic("t", (0,)),)
            states.append(DescribedTransaction(error, name, state, 60_000, start, 7, 0, topics))
        return DescribedTransactions(tuple(states))


def coordinators(apis: set[int] = ALL, **states: tuple[int, str, int]) -> Coordinators:
    cluster = Coordinators(apis, [], {0: [(name, 7, state) for name, (_, state, _) in states.items()], 1: []})
    cluster.states = states
    return cluster


def test_an_open_transaction_is_told_with_its_topics_until_its_last_marker_is_written() -> None:
    cluster = coordinators(app=(0, "Ongoing", 1), ending=(0, "PrepareCommit", 1), ended=(0, "CompleteCommit", -1))
    topics = frozenset({"t"})
    assert asyncio.run(open_topics(cluster, ["app", "ending", "ended"])) == {"app": topics, "ending": topics}
    assert asyncio.run(open_topics(cluster, ["ended"])) == {}
    assert asyncio.run(open_topics(coordinators({61}), ["app"])) is None


def test_who_writes_a_topic_in_transactions_is_told_by_coordinators_with_the_time_when_each_began() -> None:
    """A hanging transaction gets no marker."""
    cluster = coordinators(app=(0, "Ongoing", 1000), ending=(0, "PrepareCommit", 2000), ended=(0, "Empty", -1))
    assert asyncio.run(open_writers(cluster, "t", 1)) == {"app": frozenset({1000}), "ending": frozenset({2000})}
    assert asyncio.run(open_writers(cluster, "u", 1)) == {}
    assert asyncio.run(tells_transactions(cluster))


def test_before_kafka_3_0_partitions_tell_of_who_has_written() -> None:
    cluster = Cluster({61}, [[(7, 30), (8, -1)]], {})
    assert asyncio.run(open_writers(cluster, "t", 1)) == {"producer 7": frozenset({30})}
    assert not asyncio.run(tells_transactions(cluster))


def test_the_last_use_of_an_id_is_told_and_that_a_cluster_has_forgotten_it() -> None:
    used, new = (0, "CompleteAbort", 900), (0, "Empty", -1)
    cluster = coordinators(used=used, new=new, gone=(105, "", -1), dead=(0, "Dead", 5))
    assert [asyncio.run(last_begun(cluster, name)) for name in ("used", "new", "gone", "dead")] == [900, -1, None, None]
    assert asyncio.run(last_begun(coordinators(app=(0, "Ongoing", 900)), "app")) == STILL_OPEN
    assert asyncio.run(last_begun(coordinators({61}), "app")) == -1
    with pytest.raises(Unreachable, match="NOT_COORDINATOR"):
        asyncio.run(last_begun(coordinators(app=(16, "", -1)), "app"))


def test_ids_that_a_cluster_names_are_known_there() -> None:
    used, new = (0, "CompleteAbort", 900), (0, "Empty", -1)
    assert asyncio.run(listed_ids(coordinators(used=used, new=new, dead=(0, "Dead", 5)))) == {"used", "new"}
    assert asyncio.run(listed_ids(coordinators({61}, used=used))) == set()


def test_an_id_is_used_by_an_empty_transaction_that_names_no_topic() -> None:
    cluster = coordinators()
    assert asyncio.run(begin_and_abort(cluster, "app", (7, 0))) == 0
    assert cluster.sent == (25, 26)


@pytest.mark.parametrize(
    ("group", "partition"),
    [("hello", 22), ("billing", 9), ("group-869e0e-1", 47), ("polygenelubricants", 0), ("zählung", 20)],
)
def test_a_groups_partition_of_the_offsets_topic_is_the_one_that_brokers_compute(group: str, partition: int) -> None:
    """The expected partitions come from Java's `Math.abs(name.hashCode()) % 50`; many hashes are negative."""
    assert group_partition(group, 50) == partition


TILL = ("till", 9, 8)


@dataclass
class Coordinator:
    """A cluster whose broker 4 is coordinator and answers with error `code` or with a transaction in `state`."""

    code: int = 0
    state: str = "CompleteCommit"
    lost: int = 0
    asked: list[Any] = field(default_factory=list)
    settings: Any = field(default_factory=lambda: ClusterSettings("source", ()))

    async def find_coordinator(self, name: str, *, kind: int) -> int:
        assert (name, kind) == ("till", 1)
        if self.lost:
            raise BrokerRefused("broker-refused", "not yours", code=self.lost)
        return 4

    async def call(self, request: Any, node: int) -> Any:
        assert node == 4
        self.asked.append(request)
        told = SimpleNamespace(
            error_code=self.code, transaction_state=self.state, producer_id=9, producer_epoch=8, transactional_id="till"
        )
        return SimpleNamespace(error_code=self.code, transaction_states=(told,))


def test_an_epoch_is_raised_from_the_given_identity_on_only() -> None:
    cluster = Coordinator(Code.PRODUCER_FENCED)
    assert asyncio.run(raise_epoch(cluster, TILL)) == Code.PRODUCER_FENCED  # type: ignore[arg-type]
    (asked,) = cluster.asked
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == TILL


def test_an_end_is_sent_in_the_identitys_name() -> None:
    cluster = Coordinator(Code.INVALID_TXN_STATE)
    assert asyncio.run(end_transaction(cluster, TILL, committed=False)) == Code.INVALID_TXN_STATE  # type: ignore[arg-type]
    (asked,) = cluster.asked
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.committed) == (*TILL, False)


def test_the_right_to_speak_for_an_id_is_asked_for_in_nobodys_name() -> None:
    cluster = Coordinator(Code.INVALID_PRODUCER_ID_MAPPING)
    asyncio.run(refuse_unwritable_id(cluster, "till"))  # type: ignore[arg-type]
    (asked,) = cluster.asked
    assert (asked.producer_id, asked.producer_epoch, asked.committed) == (-1, -1, False)


@pytest.mark.parametrize("cluster", [Coordinator(code=53), Coordinator(lost=53)])
def test_a_missing_right_is_named_with_the_id(cluster: Coordinator) -> None:
    with pytest.raises(BrokerRefused, match="WRITE transactional id till") as refused:
        asyncio.run(refuse_unwritable_id(cluster, "till"))  # type: ignore[arg-type]
    assert refused.value.ref == "transactional-id-denied"


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("Empty", (False, True, False)),
        ("Ongoing", (True, False, True)),
        ("PrepareAbort", (True, False, True)),
        ("CompleteAbort", (False, False, True)),
        ("CompleteCommit", (False, False, False)),
    ],
)
def test_what_a_coordinator_tells_of_an_id(state: str, told: tuple[bool, bool, bool]) -> None:
    now = asyncio.run(id_state(Coordinator(state=state), "till"))  # type: ignore[arg-type]
    assert now == IdState(9, 8, state)
    assert (now.is_open, now.is_empty, now.aborted) == told


@pytest.mark.parametrize("cluster", [Coordinator(code=Code.TRANSACTIONAL_ID_NOT_FOUND), Coordinator(state="Dead")])
def test_an_id_that_is_forgotten_is_none(cluster: Coordinator) -> None:
    assert asyncio.run(id_state(cluster, "till")) is None  # type: ignore[arg-type]


def test_a_coordinator_that_cannot_tell_now_is_no_answer() -> None:
    with pytest.raises(Unreachable):
        asyncio.run(id_state(Coordinator(code=Code.NOT_COORDINATOR), "till"))  # type: ignore[arg-type]
