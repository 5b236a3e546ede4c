"""Requests to the coordinator of a transactional id, and the use of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.coordinators import Now, end_as, may_speak_for, now_at, raise_epoch
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code

TILL = ("till", 9, 8)


@dataclass
class Cluster:
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
    cluster = Cluster(Code.PRODUCER_FENCED)
    assert asyncio.run(raise_epoch(cluster, TILL)) == Code.PRODUCER_FENCED  # type: ignore[arg-type]
    (asked,) = cluster.asked
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == TILL


def test_an_end_is_sent_in_the_identitys_name() -> None:
    cluster = Cluster(Code.INVALID_TXN_STATE)
    assert asyncio.run(end_as(cluster, TILL, committed=False)) == Code.INVALID_TXN_STATE  # type: ignore[arg-type]
    (asked,) = cluster.asked
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.committed) == (*TILL, False)


def test_the_right_to_speak_for_an_id_is_asked_for_in_nobodys_name() -> None:
    cluster = Cluster(Code.INVALID_PRODUCER_ID_MAPPING)
    asyncio.run(may_speak_for(cluster, "till"))  # type: ignore[arg-type]
    (asked,) = cluster.asked
    assert (asked.producer_id, asked.producer_epoch, asked.committed) == (-1, -1, False)


@pytest.mark.parametrize("cluster", [Cluster(code=53), Cluster(lost=53)])
def test_a_missing_right_is_named_with_the_id(cluster: Cluster) -> None:
    with pytest.raises(BrokerRefused, match="WRITE transactional id till") as refused:
        asyncio.run(may_speak_for(cluster, "till"))  # type: ignore[arg-type]
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
    now = asyncio.run(now_at(Cluster(state=state), "till"))  # type: ignore[arg-type]
    assert now == Now(9, 8, state)
    assert (now.is_open, now.is_empty, now.aborted) == told


@pytest.mark.parametrize("cluster", [Cluster(code=Code.TRANSACTIONAL_ID_NOT_FOUND), Cluster(state="Dead")])
def test_an_id_that_is_forgotten_is_none(cluster: Cluster) -> None:
    assert asyncio.run(now_at(cluster, "till")) is None  # type: ignore[arg-type]


def test_a_coordinator_that_cannot_tell_now_is_no_answer() -> None:
    with pytest.raises(Unreachable):
        asyncio.run(now_at(Cluster(code=Code.NOT_COORDINATOR), "till"))  # type: ignore[arg-type]
