"""Holes are filled by control markers or by empty transactions.

Behind markers the log end is read at once. A transactional identity is given up when a broker refuses the identity.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import LATEST, LOG_END, ClusterClient, LogOffset
from kmigrate.cluster.transactions import Identity
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy import holes
from kmigrate.mirror.copy.holes import HoleMaker, Made
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.settings import HoleFiller
from kmigrate.model.records import CopyIdentity
from kmigrate.protocol.codes import Code

IDENTITY = CopyIdentity(77, 0, 78, 0)


class Target:
    """A leader and a coordinator; only the newest epoch of each transactional id may write."""

    settings = SimpleNamespace(request_timeout_s=5.0)

    def __init__(self, *, markers: int = 0) -> None:
        self.epochs: dict[str, int] = {}
        self.made = 0
        self.markers = markers
        self.asked: list[tuple[str, str]] = []
        """Requests, and the connection of each."""
        self.goes_at_once = True
        self.fences: list[int] = []
        """Coordinator epochs of the requests for markers, in order."""
        self.lost: Exception | None = None
        """Error that stands for a lost answer."""

    def leader(self, topic: str, partition: int) -> int:
        return 1

    async def init_producer_id(self, transactional_id: str) -> tuple[int, int]:
        self.epochs[transactional_id] = self.epochs.get(transactional_id, -1) + 1
        return 5, self.epochs[transactional_id]

    async def empty_transactions(self, identity: Identity, topic: str, partition: int, count: int) -> int:
        name, _, epoch = identity
        if name not in self.epochs:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if epoch != self.epochs[name]:
            return Code.INVALID_PRODUCER_EPOCH
        if self.lost is not None:
            raise self.lost
        self.made += count
        return 0

    async def write_markers(
        self, node: int, topic: str, partition: int, count: int, *, purpose: str, coordinator_epoch: int, **_: Any
    ) -> int:
        self.asked.append(("markers", purpose))
        self.fences.append(coordinator_epoch)
        if self.lost is not None:
            raise self.lost
        if not self.markers:
            self.made += count
        return self.markers

    async def list_offsets(
        self, wanted: Mapping[tuple[str, int], int], *, replica_id: int, purpose: str
    ) -> dict[tuple[str, int], LogOffset]:
        assert (*wanted.values(), replica_id) == (LATEST, LOG_END)
        self.asked.append(("end", purpose))
        return dict.fromkeys(wanted, LogOffset(0, self.made, 0))

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        return LogOffset(0, self.made, 0)

    def is_open(self, node: int, purpose: str) -> bool:
        return self.goes_at_once

    async def connection(self, node: int, purpose: str) -> None:
        self.asked.append(("connection", purpose))


@pytest.fixture(autouse=True)
def _target_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holes, "empty_transactions", Target.empty_transactions)


def maker(target: Target, filler: HoleFiller = HoleFiller.TRANSACTIONS) -> HoleMaker:
    return HoleMaker(cast("ClusterClient", target), IDENTITY, link_uuid="u", filler=filler)


async def hole(of: HoleMaker, count: int, term: int = 1) -> int:
    """Prepare the identity, read the log end, make the hole, and return the error code."""
    await of.prepare("t", 0, term)
    start = cast("Target", of._target).made
    made = await of.make("t", 0, Hole(start, start + count), term)
    assert made.error or made.end == start + count
    return made.error


def test_the_logs_end_is_asked_for_right_behind_the_markers_on_their_connection() -> None:
    target = Target()
    it = maker(target, HoleFiller.MARKERS)

    async def scene() -> None:
        await it.prepare("t", 0, 1)
        assert await it.make("t", 0, Hole(0, 3), 1) == Made(0, 3)

    asyncio.run(scene())
    what, connections = zip(*target.asked, strict=True)
    assert what == ("connection", "markers", "end")
    assert len(set(connections)) == 1


def test_no_markers_are_left_to_wait_for_a_connection() -> None:
    """Markers are not sent while their connection is not open.

    Opening a connection, or a new login, takes up to ten seconds. Other processes take over after three silent seconds.
    """
    target = Target()
    it = maker(target, HoleFiller.MARKERS)
    target.goes_at_once = False
    assert asyncio.run(it.make("t", 0, Hole(0, 3), 1)) == Made(Code.CONCURRENT_TRANSACTIONS)
    assert target.asked == []


def test_partitions_whose_markers_wait_for_replicas_go_over_different_connections() -> None:
    target = Target()
    it = maker(target, HoleFiller.MARKERS)

    async def scene() -> None:
        for partition in range(8):
            await it.make("t", partition, Hole(partition, partition + 1), 1)

    asyncio.run(scene())
    assert len(dict(target.asked)) == 2 and len(set(target.asked)) == 16


def test_one_identity_serves_a_term_and_another_one_the_next() -> None:
    target = Target()
    it = maker(target)

    async def scene() -> None:
        assert [await hole(it, 3), await hole(it, 4), await hole(it, 5, term=2)] == [0, 0, 0]

    asyncio.run(scene())
    assert target.made == 12
    assert list(target.epochs.values()) == [1]


@pytest.mark.parametrize("gone", ["expired", "fenced"])
def test_an_identity_that_is_refused_is_given_up_and_the_next_try_has_another(gone: str) -> None:
    """The next try uses another transactional identity when a broker has refused the present identity.

    A coordinator forgets a transactional id after an idle week. The coordinator or another owner may fence the id.
    """
    target = Target()
    it = maker(target)

    async def scene() -> None:
        assert await hole(it, 3) == 0
        name = next(iter(target.epochs))
        if gone == "expired":
            del target.epochs[name]
        else:
            target.epochs[name] += 1
        made = await it.make("t", 0, Hole(3, 7), 1)
        assert made.error in (Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_PRODUCER_EPOCH)
        assert await hole(it, 4) == 0

    asyncio.run(scene())
    assert target.made == 7


def test_where_markers_are_not_allowed_the_hole_is_begun_anew_with_an_identity() -> None:
    """A transactional identity is made before the log end is read, so the first try writes nothing."""
    target = Target(markers=Code.CLUSTER_AUTHORIZATION_FAILED)
    it = maker(target, HoleFiller.MARKERS)

    async def scene() -> None:
        assert await hole(it, 3) == Code.CONCURRENT_TRANSACTIONS
        assert (target.made, target.epochs) == (0, {})
        assert await it.make("t", 0, Hole(0, 3), 1) == Made(Code.CONCURRENT_TRANSACTIONS)
        assert await hole(it, 3) == 0

    asyncio.run(scene())
    assert target.made == 3


GONE = Unreachable("no-answer", "it did not answer")


def test_markers_whose_outcome_is_unknown_are_fenced_by_the_next_ones_and_by_every_later_term() -> None:
    """An unknown outcome raises the coordinator epoch of the next markers.

    The earlier request may wait unread in the broker's memory, and would otherwise be written behind the later request.
    """
    target = Target()
    it = maker(target, HoleFiller.MARKERS)

    async def asks(term: int, *, lost: Exception | None = None, error: int = 0) -> None:
        target.lost, target.markers = lost, error
        with contextlib.suppress(Unreachable):
            await it.make("t", 0, Hole(target.made, target.made + 1), term)

    async def scene() -> None:
        await asks(7)
        await asks(7)
        await asks(7, lost=GONE)
        await asks(7)
        await asks(7, error=Code.NOT_LEADER_OR_FOLLOWER)
        await asks(7)
        for _ in range(2_000):
            await asks(7, lost=GONE)
        await asks(8)

    asyncio.run(scene())
    first, again, unknown, raised, refused, after, *many, newer = target.fences
    assert first == again == unknown
    assert raised == refused == after == first + 1
    assert many == sorted(many)
    assert many[-1] < newer < 1 << 31


def test_a_process_that_has_raised_its_own_fence_before_comes_over_it() -> None:
    """A new hole maker under the same term raises its coordinator epoch until the broker accepts the epoch.

    A process gets a new hole maker when its lease was not confirmed for a while.
    """
    target = Target(markers=Code.TRANSACTION_COORDINATOR_FENCED)
    it = maker(target, HoleFiller.MARKERS)

    async def scene() -> None:
        for _ in range(3):
            assert (await it.make("t", 0, Hole(0, 1), 7)).error == Code.TRANSACTION_COORDINATOR_FENCED

    asyncio.run(scene())
    assert target.fences == [target.fences[0] + more for more in range(3)]


def test_a_marker_of_somebody_else_that_stands_behind_ours_raises_the_fence() -> None:
    target = Target()
    it = maker(target, HoleFiller.MARKERS)

    async def scene() -> None:
        assert (await it.make("t", 0, Hole(0, 1), 7)).end == 1
        target.made += 1
        assert (await it.make("t", 0, Hole(1, 2), 7)).end == 3
        await it.make("t", 0, Hole(3, 4), 7)

    asyncio.run(scene())
    assert target.fences[1:] == [target.fences[0], target.fences[0] + 1]


def test_an_identity_whose_transactions_have_no_known_outcome_is_given_up() -> None:
    target = Target()
    it = maker(target)

    async def scene() -> None:
        assert await hole(it, 3) == 0
        target.lost = GONE
        with pytest.raises(Unreachable):
            await hole(it, 3)
        target.lost = None
        assert not it.ready("t", 0, 1)
        assert await hole(it, 3) == 0

    asyncio.run(scene())
    assert list(target.epochs.values()) == [1]
