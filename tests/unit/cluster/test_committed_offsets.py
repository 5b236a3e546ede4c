"""Committed offsets: written while the coordinator is not ready, read while a transaction has offsets pending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kmigrate.cluster import committed_offsets
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import CommittedOffset, read_positions, write_positions
from kmigrate.errors import BrokerRefused, Refused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.net import retry
from kmigrate.protocol.api import answer_type, blank, element_type
from kmigrate.protocol.codes import Code


@dataclass
class Coordinator(ClusterClient):
    """A coordinator that answers each request with the next code, for the only partition."""

    codes: list[int]
    asked: list[Any] = field(default_factory=list)
    opened: int = 0
    lost: bool = True

    def __post_init__(self) -> None:
        super().__init__(ClusterSettings("target", ()))

    async def find_coordinator(self, key: str, *, kind: int = 0) -> int:
        return 1

    async def connection(self, node: int, purpose: str = "control") -> Any:
        self.opened += self.lost
        self.lost = False
        return None

    def is_open(self, node: int, purpose: str) -> bool:
        return not self.lost

    async def call(self, request: Any, node: int | None = None, *, purpose: str = "control") -> Any:
        self.asked.append(request)
        kind = answer_type(type(request))
        topic_type = element_type(kind, "topics")
        part_type = element_type(topic_type, "partitions")
        part = blank(part_type, partition_index=0, error_code=self.codes.pop(0), committed_offset=5, metadata="m")
        return blank(kind, topics=(blank(topic_type, name="t", partitions=(part,)),))


async def fine() -> None: ...


def write(client: ClusterClient, allowed: Callable[[], Awaitable[None]] = fine) -> dict[tuple[str, int], str]:
    return asyncio.run(write_positions(client, "g", {("t", 0): CommittedOffset(5, "AgAA\u00e9")}, allowed))


@pytest.mark.parametrize(
    "code", [Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE]
)
def test_a_coordinator_that_moves_or_loads_is_asked_again(code: int) -> None:
    client = Coordinator([code, code, 0])
    assert write(client) == {}
    assert client.codes == []


def test_before_each_try_it_is_asked_whether_positions_may_be_written_still() -> None:
    """The coordinator may take long, and a controller that took over may open the group meanwhile."""
    client = Coordinator([Code.NOT_COORDINATOR, 0])

    async def until_tried() -> None:
        if client.asked:
            raise Refused("changed-meanwhile", "opened by somebody else")

    with pytest.raises(Refused, match="opened by somebody else"):
        write(client, until_tried)
    assert len(client.asked) == 1


def test_a_word_that_has_grown_old_while_this_process_stood_still_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(committed_offsets, "monotonic", lambda: now[0])
    client, asked = Coordinator([0]), list[float]()

    async def stands_still_behind_it_once() -> None:
        assert not client.asked
        asked.append(now[0])
        now[0] += 20 if len(asked) == 1 else 0.1

    assert write(client, stands_still_behind_it_once) == {}
    assert (asked, len(client.asked)) == ([100.0, 120.0], 1)


def test_a_connection_that_is_lost_behind_the_word_is_opened_before_it_is_asked_for_again() -> None:
    """Opening may take long, with TLS, a login, or brokers that are away; permission from before would be too old."""
    client, asked = Coordinator([0]), list[int]()

    async def lost_meanwhile() -> None:
        asked.append(client.opened)
        client.lost = len(asked) == 1

    assert write(client, lost_meanwhile) == {}
    assert (asked, client.opened, len(client.asked)) == ([1, 2], 2, 1)


def test_a_connection_that_is_lost_again_and_again_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    for module in (committed_offsets, retry):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    client = Coordinator([0])

    async def lost_each_time() -> None:
        client.lost = True
        now[0] += 1

    with pytest.raises(Unreachable, match="group g"):
        write(client, lost_each_time)
    assert not client.asked


def test_any_other_refusal_is_told_at_once() -> None:
    assert write(Coordinator([Code.UNKNOWN_MEMBER_ID])) == {("t", 0): "UNKNOWN_MEMBER_ID"}


def test_a_position_is_written_without_an_epoch_and_with_its_metadata_as_it_is() -> None:
    client = Coordinator([0])
    write(client)
    (part,) = client.asked[0].topics[0].partitions
    assert (part.committed_offset, part.committed_leader_epoch, part.committed_metadata) == (5, -1, "AgAA\u00e9")


def test_positions_are_read_when_no_transaction_has_any_pending() -> None:
    client = Coordinator([Code.UNSTABLE_OFFSET_COMMIT, 0])
    assert asyncio.run(read_positions(client, "g", 10.0)) == {("t", 0): CommittedOffset(5, "m")}
    assert client.asked[0].require_stable


def test_positions_that_stay_pending_are_an_error_in_the_end() -> None:
    with pytest.raises(BrokerRefused) as refused:
        asyncio.run(read_positions(Coordinator([Code.UNSTABLE_OFFSET_COMMIT]), "g", -1.0))
    assert refused.value.code == Code.UNSTABLE_OFFSET_COMMIT
