"""Holes are filled by control markers or by empty transactions.

Behind markers the log end is read at once. A transactional identity is given up when a broker refuses the identity.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.transactions import Identity
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy import holes
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.markers import NOT_SENT, Made
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.settings import HoleFiller
from kmigrate.model.records import CopyIdentity
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code
from tests.unit.mirror.copy.scripted_broker import ScriptedBroker

IDENTITY = CopyIdentity(77, 0)


class Target(ScriptedBroker):
    """A leader and a coordinator; only the newest epoch of each transactional id may write."""

    def __init__(self, *, markers: int = 0) -> None:
        super().__init__()
        self.epochs: dict[str, int] = {}
        self.markers_error = markers
        self.lost: Exception | None = None
        """Error that stands for a lost answer."""

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
        self.log(topic, partition).kinds += "M" * count
        return 0

    @property
    def made(self) -> int:
        return len(self.log("t", 0).kinds)

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        return LogOffset(0, self.made, 0)


@pytest.fixture(autouse=True)
def _target_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holes, "empty_transactions", Target.empty_transactions)


def maker(target: Target, filler: HoleFiller = HoleFiller.TRANSACTIONS) -> HoleMaker:
    return HoleMaker(target.client, IDENTITY, link_uuid="u", filler=filler)


async def make(of: HoleMaker, hole: Hole, term: int = 1, partition: int = 0) -> Made:
    return await of.make("t", partition, hole, term, epoch=1, may_write=lambda: True)


async def hole(of: HoleMaker, target: Target, count: int, term: int = 1) -> int:
    """Prepare the identity, read the log end, make the hole, and return the error code."""
    await of.prepare("t", 0, term)
    start = target.made
    made = await make(of, Hole(start, start + count), term)
    assert made.error or made.end == start + count
    return made.error


def test_the_logs_end_is_asked_for_right_behind_the_markers_on_their_connection() -> None:
    async def scene() -> None:
        target = Target()
        it = maker(target, HoleFiller.MARKERS)
        await it.prepare("t", 0, 1)
        target.requests.clear()
        assert await make(it, Hole(0, 3)) == Made(0, 3, 1)
        assert [kind for kind, _ in target.requests] == ["WRITE_TXN_MARKERS", "LIST_OFFSETS"]
        assert len({connection for _, connection in target.requests}) == 1

    asyncio.run(scene())


def test_no_markers_are_left_to_wait_for_a_connection() -> None:
    """Markers are not sent while their connection is not open.

    Opening a connection, or a new login, takes up to ten seconds. Other processes take over after three silent seconds.
    """

    async def scene() -> None:
        target = Target()
        it = maker(target, HoleFiller.MARKERS)
        assert await make(it, Hole(0, 3)) == NOT_SENT
        assert target.requests == []

    asyncio.run(scene())


def test_markers_that_wait_behind_others_are_not_written_by_a_process_that_owns_the_partition_no_more() -> None:
    async def scene() -> None:
        target, owns = Target(), [True]
        it = maker(target, HoleFiller.MARKERS)
        await it.prepare("t", 0, 1)
        target.holds = True
        first = asyncio.create_task(make(it, Hole(0, 1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = it.make("t", 2, Hole(0, 1), 1, epoch=1, may_write=lambda: owns[0])
        second = asyncio.create_task(later)
        await asyncio.sleep(0)
        owns[0] = target.holds = False
        target.opened["markers-0" if "markers-0" in target.opened else "markers-1"].work()
        assert (await first).end == 1
        assert await second == NOT_SENT
        assert target.log("t", 2).kinds == ""

    asyncio.run(scene())


def test_one_identity_serves_a_term_and_another_one_the_next() -> None:
    target = Target()
    it = maker(target)

    async def scene() -> None:
        assert [await hole(it, target, n, term) for n, term in ((3, 1), (4, 1), (5, 2))] == [0, 0, 0]

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
        assert await hole(it, target, 3) == 0
        name = next(iter(target.epochs))
        if gone == "expired":
            del target.epochs[name]
        else:
            target.epochs[name] += 1
        made = await make(it, Hole(3, 7))
        assert made.error in (Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_PRODUCER_EPOCH)
        assert await hole(it, target, 4) == 0

    asyncio.run(scene())
    assert target.made == 7


def test_where_markers_are_not_allowed_the_hole_is_begun_anew_with_an_identity() -> None:
    """A transactional identity is made before the log end is read, so the first try writes nothing."""

    async def scene() -> None:
        target = Target(markers=Code.CLUSTER_AUTHORIZATION_FAILED)
        it = maker(target, HoleFiller.MARKERS)
        assert await hole(it, target, 3) == Code.CONCURRENT_TRANSACTIONS
        assert (target.made, target.epochs) == (0, {})
        assert await make(it, Hole(0, 3)) == NOT_SENT
        assert await hole(it, target, 3) == 0
        assert target.made == 3
        assert not it.takes_windows(("t", 0))

    asyncio.run(scene())


GONE = Unreachable("no-answer", "the coordinator did not answer")


def test_an_identity_whose_transactions_have_no_known_outcome_is_given_up() -> None:
    target = Target()
    it = maker(target)

    async def scene() -> None:
        assert await hole(it, target, 3) == 0
        target.lost = GONE
        with pytest.raises(Unreachable):
            await hole(it, target, 3)
        target.lost = None
        assert not it.ready("t", 0, 1)
        assert await hole(it, target, 3) == 0

    asyncio.run(scene())
    assert list(target.epochs.values()) == [1]


class Fenced:
    """A hole maker on a target whose markers' coordinator epochs are looked at."""

    def __init__(self, error: int = 0) -> None:
        self.target = Target(markers=error)
        self.holes = maker(self.target, HoleFiller.MARKERS)

    async def asks(self, term: int, *, lost: bool = False, error: int = 0) -> int:
        """Ask for a marker, and return the marker's coordinator epoch; `lost`: the answer does not come."""
        await self.holes.prepare("t", 0, term)
        target = self.target
        target.markers_error = error
        lines = [each for purpose, each in target.opened.items() if purpose != "markers-probe"]
        target.before = lambda key: lines[-1].lose() if lost and key is ApiKey.LIST_OFFSETS else None
        with contextlib.suppress(Unreachable):
            await make(self.holes, Hole(target.made, target.made + 1), term)
        return target.marked[-1][2]


def test_markers_whose_outcome_is_unknown_are_fenced_by_the_next_ones_and_by_every_later_term() -> None:
    """An unknown outcome raises the coordinator epoch of the next markers.

    The earlier request may wait unread in the broker's memory, and would otherwise be written behind the later request.
    """

    async def scene() -> None:
        it = Fenced()
        first, again = await it.asks(7), await it.asks(7)
        unknown = await it.asks(7, lost=True)
        raised = await it.asks(7)
        refused = await it.asks(7, error=Code.NOT_LEADER_OR_FOLLOWER)
        after = await it.asks(7)
        assert first == again == unknown
        assert raised == refused == after == first + 1
        many = [await it.asks(7, lost=True) for _ in range(1_100)]
        assert many == sorted(many)
        assert many[-1] < await it.asks(8) < 1 << 31

    asyncio.run(scene())


def test_a_process_that_has_raised_its_own_fence_before_comes_over_it() -> None:
    """A new hole maker under the same term raises its coordinator epoch until the broker accepts the epoch.

    A process gets a new hole maker when its lease was not confirmed for a while.
    """

    async def scene() -> None:
        it = Fenced()
        fences = [await it.asks(7, error=Code.TRANSACTION_COORDINATOR_FENCED) for _ in range(3)]
        assert fences == [fences[0] + more for more in range(3)]

    asyncio.run(scene())


def test_a_marker_of_somebody_else_that_stands_behind_ours_raises_the_fence() -> None:
    async def scene() -> None:
        it = Fenced()
        first = await it.asks(7)
        it.target.log("t", 0).kinds += "M"
        assert (await make(it.holes, Hole(1, 2), 7)).end == 3
        assert [fence for *_, fence in it.target.marked] == [first, first]
        assert await it.asks(7) == first + 1

    asyncio.run(scene())


@pytest.mark.parametrize("closes", [True, False])
def test_only_a_broker_that_closes_behind_a_refused_batch_is_sent_windows(closes: bool) -> None:
    async def scene() -> None:
        target = Target()
        target.closes = closes
        it = maker(target, HoleFiller.MARKERS)
        assert not it.takes_windows(("t", 0))
        await it.prepare("t", 0, 1)
        assert it.takes_windows(("t", 0)) == closes
        assert it.slow_brokers == (frozenset() if closes else {1})
        probes = [kind for kind, connection in target.requests if connection == "markers-probe"]
        assert probes.count("PRODUCE") == (2 if closes else 1)
        await it.prepare("t", 0, 1)
        assert len([1 for _, connection in target.requests if connection == "markers-probe"]) == len(probes)
        assert target.made == 0

    asyncio.run(scene())


def test_each_partitions_markers_have_the_producer_id_of_its_copy() -> None:
    async def scene() -> None:
        target = Target()
        it = HoleMaker(
            target.client,
            IDENTITY,
            link_uuid="u",
            filler=HoleFiller.MARKERS,
            producer_of=lambda key: 100 + key[1],
        )
        for partition in (0, 2):
            await it.prepare("t", partition, 1)
        await asyncio.gather(make(it, Hole(0, 1)), make(it, Hole(0, 2), partition=2))
        assert sorted(target.marking_ids) == [(("t", 0), 100), (("t", 2), 102), (("t", 2), 102)]

    asyncio.run(scene())
