"""Fakes of the backend and of the client's edge that a session acts through, with a clock that only the test moves."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmigrate.model.listener_access import OPEN_ACCESS, Identity, ListenerAccess
from kmigrate.model.records import ProducerMark, TransactionRecord
from kmigrate.model.routes import DIRECT_LIMIT, GroupRoute, RoutingTable, Serve, TopicRoute, WriteEra
from kmigrate.protocol.api import Message, frame_request
from kmigrate.records.build import one_record_batch
from kmigrate.router.session.session import Session
from kmigrate.router.settings import RouterSettings
from kmigrate.router.shared.conversation import Future
from kmigrate.router.shared.deferred_partitions import ProducerIdentity
from kmigrate.router.shared.fallback_routers import FallbackRouters
from kmigrate.router.shared.state import TARGET, BeginsAnswer, Buffer, ClientLink, Outcome, SharedState, StoredBatch
from kmigrate.router.shared.time_lookups import Found
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.router.wire.produce import (
    PartitionAnswer,
    ProducePart,
    ProduceRequest,
    encode_answer,
    encode_request,
    parse_answer,
    parse_request,
)

SHIFT = 7 << 40


def route(
    topic: str,
    serve: Serve,
    *,
    fence_epoch: int = -1,
    gate: Mapping[int, tuple[ProducerMark, ...]] | None = None,
    link: str = "l",
    generation: int = 0,
    copied_back: bool = False,
    rolling_back: bool = False,
    closing: bool = False,
    turned_epoch: int = -1,
) -> TopicRoute:
    """Return a route; `generation` counts the topic's rollbacks."""
    shift, before = SHIFT + generation * DIRECT_LIMIT, SHIFT + (generation - 1) * DIRECT_LIMIT
    eras = (WriteEra(True, before if generation > 1 else 0), WriteEra(False, before)) if generation else ()
    if serve is Serve.LOCAL or rolling_back:
        eras = (WriteEra(False, shift), *eras[:1])
    return TopicRoute(
        f"topic/{link}/{topic}",
        link,
        topic,
        serve,
        shift,
        fence_epoch,
        2,
        gate or {},
        rolling_back=rolling_back,
        target_shift=shift if generation else 0,
        copied_back=copied_back,
        former_eras=eras,
        closing=closing,
        turned_epoch=turned_epoch,
    )


def table(
    *routes: TopicRoute, epoch: int = 1, held: Sequence[str] = (), ids: Sequence[TransactionRecord] = ()
) -> RoutingTable:
    named = {name: {one.link: one for one in ids if one.name == name} for name in {one.name for one in ids}}
    mirroring = tuple(sorted({one.link for one in routes if not one.at_target}))
    siblings = dict.fromkeys(mirroring, mirroring)  # All mirroring links have the same source cluster.
    sources = tuple(sorted({one.link for one in routes}))[:1]
    return RoutingTable(
        epoch, {one.topic: one for one in routes}, frozenset(held), named, mirroring, siblings, sources=sources
    )


@dataclass
class Sent:
    """An upstream request: the destination, the bytes, and a way to answer the request."""

    where: str
    frame: bytearray
    done: Callable[[Outcome], None] | None
    begins: BeginsAnswer | None = None

    @property
    def request(self) -> ProduceRequest:
        _, version = struct.unpack_from(">hh", self.frame, 4)
        (length,) = struct.unpack_from(">h", self.frame, 12)
        return parse_request(self.frame, version, 14 + max(0, length) + (1 if version >= 9 else 0))

    def answered_with(self, frame: bytearray) -> None:
        """Answer with the given bytes."""
        assert self.done is not None
        self.done(Outcome(frame))

    def answer(self, *errors: int, base: int = 100) -> None:
        """Answer every partition with the given errors, in order."""
        request = self.request
        told = [
            PartitionAnswer(p.topic, p.partition, error, base if not error else -1)
            for p, error in zip(request.parts, errors or [0] * len(request.parts), strict=True)
        ]
        (correlation,) = struct.unpack_from(">i", self.frame, 8)
        assert self.done is not None
        self.done(Outcome(bytearray(encode_answer(told, version=request.version, correlation=correlation))))


@dataclass
class FakeClientLink(ClientLink):
    clock: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    replies: list[bytearray] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)
    logins: list[tuple[Identity, Callable[[str], None]]] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    parted: int = 0

    def now(self) -> float:
        return self.clock

    def reply(self, parts: Sequence[Buffer]) -> None:
        self.replies += [bytearray(part) for part in parts]

    def to_target(
        self,
        parts: Sequence[Buffer],
        correlation: int,
        answered: Callable[[bytearray], None] | None,
        begins: BeginsAnswer | None = None,
    ) -> None:
        def done(outcome: Outcome) -> None:
            assert answered is not None and outcome.frame is not None
            answered(outcome.frame)

        self.sent.append(Sent("target", bytearray(b"".join(parts)), done if answered else None, begins))

    def write_to_target(self, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]) -> None:
        self.sent.append(Sent("target", bytearray(b"".join(parts)), done))

    def to_source(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]
    ) -> None:
        self.sent.append(Sent(f"source {node}", bytearray(b"".join(parts)), done))

    def ask_coordinator(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, *, waits: bool = False
    ) -> Future[Outcome]:
        outcome = Future[Outcome]()
        self.sent.append(Sent(f"coordinator {node}", bytearray(b"".join(parts)), outcome.set))
        return outcome

    def wake_at(self, when: float) -> None:
        self.wakes.append(when)

    def advanced(self, *, done: bool) -> None:
        pass

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def part(self) -> None:
        self.parted += 1

    def identified(self, identity: Identity) -> None:
        self.identities.append(identity)

    def log_in(self, identity: Identity) -> Future[str]:
        arrived = Future[str]()
        self.logins.append((identity, arrived.set))
        return arrived


@dataclass
class FakeBackend:
    leaders: dict[tuple[str, int], int] = field(default_factory=dict)
    produce_version: int = 11
    refreshed: list[str] = field(default_factory=list)
    ids: list[Callable[[int], None]] = field(default_factory=list)
    asked: list[tuple[str, int, int, Callable[[ProducerMark | None], None]]] = field(default_factory=list)
    """Requests for a producer's newest batch in the target's log."""
    asked_source: list[tuple[str, int, int, Callable[[ProducerMark | None], None]]] = field(default_factory=list)
    found: list[tuple[str, str, int, StoredBatch]] = field(default_factory=list)
    sought: list[tuple[str, str, int, StoredBatch, Callable[[bool | None], None]]] = field(default_factory=list)
    joins: list[tuple[ProducerIdentity, str, int, Callable[[int], None]]] = field(default_factory=list)
    stands_at: int = -1
    drains: int = 0
    said: list[str] = field(default_factory=list)
    tells: bool = False
    source_topics: frozenset[str] = frozenset()
    told_versions: object | None = None
    versions: dict[int, int] = field(default_factory=dict)
    awaited: list[tuple[dict[tuple[str, int], int], Callable[[bool], None]]] = field(default_factory=list)
    """Source positions that the target's copy must reach before the router answers with the positions."""
    asked_ends: list[tuple[str, frozenset[tuple[str, int]], Callable[[Mapping[tuple[str, int], int]], None]]] = field(
        default_factory=list
    )
    """Requests for log ends, in order: the source or the target, the partitions, and the callback."""
    looked_up: list[tuple[str, dict[tuple[str, int], int], bool, Callable[[Mapping[tuple[str, int], Found]], None]]] = (
        field(default_factory=list)
    )
    """Look-ups of offsets by time that a source was asked for."""
    _layout: dict[tuple[str, int], int] = field(default_factory=dict)

    def source_leader(self, link: str, topic: str, partition: int) -> tuple[int, int]:
        return self.leaders.get((topic, partition), 1), self.produce_version

    def source_layout(self, link: str) -> object:
        if self._layout != self.leaders:
            self._layout = dict(self.leaders)
        return self._layout

    def source_node(self, link: str) -> int:
        return 7

    def tells_transactions(self, link: str) -> bool:
        return self.tells

    def target_versions(self) -> object | None:
        return self.told_versions

    def source_version(self, link: str, api_key: int) -> int:
        return self.versions.get(api_key, 9)

    def log_ends(
        self, link: str, keys: Collection[tuple[str, int]], seconds: float
    ) -> Future[Mapping[tuple[str, int], int]]:
        ends = Future[Mapping[tuple[str, int], int]]()
        self.asked_ends.append((link, frozenset(keys), ends.set))
        return ends

    def when_copied(self, link: str, positions: Mapping[tuple[str, int], int], seconds: float) -> Future[bool]:
        copied = Future[bool]()
        self.awaited.append((dict(positions), copied.set))
        return copied

    def look_up(
        self, link: str, times: Mapping[tuple[str, int], int], seconds: float, *, read_committed: bool
    ) -> Future[Mapping[tuple[str, int], Found]]:
        found = Future[Mapping[tuple[str, int], Found]]()
        self.looked_up.append((link, dict(times), read_committed, found.set))
        return found

    def refresh_source(self, link: str, topic: str = "") -> None:
        self.refreshed.append(topic)

    def refresh_target(self) -> None:
        self.refreshed.append("(target)")

    def at_sources(self, topics: frozenset[str]) -> Future[frozenset[str]]:
        return Future(topics & self.source_topics)

    def new_producer_id(self) -> Future[int]:
        given = Future[int]()
        self.ids.append(given.set)
        return given

    def producer_mark(self, at: str, topic: str, partition: int, producer_id: int) -> Future[ProducerMark | None]:
        mark = Future[ProducerMark | None]()
        if at == TARGET:
            self.asked.append((topic, partition, producer_id, mark.set))
        else:
            self.asked_source.append((topic, partition, producer_id, mark.set))
        return mark

    def source_has(self, link: str, topic: str, partition: int, stored: StoredBatch) -> Future[bool | None]:
        there = Future[bool | None]()
        self.sought.append((link, topic, partition, stored, there.set))
        return there

    def join_at_target(self, producer: ProducerIdentity, topic: str, partition: int) -> Future[int]:
        code = Future[int]()
        self.joins.append((producer, topic, partition, code.set))
        return code

    def find_stored(self, at: str, topic: str, partition: int, stored: StoredBatch) -> Future[int]:
        self.found.append((at, topic, partition, stored))
        return Future(self.stands_at)

    def drained(self) -> None:
        self.drains += 1

    def say(self, line: str) -> None:
        self.said.append(line)

    def warn(self, line: str) -> None:
        self.said.append(line)


@dataclass
class FakeTransactionStore:
    """A state log that answers at once; `records` is the content, `reach` tells whether the log can be reached."""

    changed: Callable[[], None] = lambda: None
    records: dict[tuple[str, str], TransactionRecord] = field(default_factory=dict)
    reach: bool = True
    epoch: int = 0
    """Epoch of the state; an identity that begins is in use from the next epoch on."""

    def remember(self, record: TransactionRecord, *, begins: bool = False) -> Future[bool]:
        record = replace(record, since=self.epoch + 1) if begins else record
        key = (record.link, record.name)
        standing = self.records.get(key)
        kept = self.reach and not (standing is not None and standing.crosses(record))
        if kept:
            self.records[key] = standing.merged(record) if standing is not None else record
            self.changed()
        return Future(kept)

    def catch_up(self) -> Future[bool]:
        if self.reach:
            self.changed()
        return Future(self.reach)


class Stage:
    """A client connection on a core: the test writes Produce requests and plays every broker."""

    def __init__(self, *routes: TopicRoute, held: Sequence[str] = (), access: ListenerAccess = OPEN_ACCESS) -> None:
        self.backend = FakeBackend()
        book = AddressBook(1_000_000, {1: ("router", 9001)})
        self.transaction_store = FakeTransactionStore(self._follow)
        self.asked: list[tuple[str, Callable[[bool], None]]] = []
        fallbacks = FallbackRouters(book, self._reach)
        self.shared = SharedState(
            RouterSettings(access=access), table(held=held), book, self.backend, self.transaction_store, fallbacks
        )
        self.shared.handoff.heard = ()  # No other router exists.
        self._routes, self._held = routes, held
        self._followed: dict[str, GroupRoute] = {}
        self.shared.swap(table(*routes, held=held), 0.0)
        self.edge = FakeClientLink()
        self.session = Session(self.shared, self.edge)
        self.session.broker = 1
        self._correlation = 0

    def _reach(self, home: str) -> Future[bool]:
        answers = Future[bool]()
        self.asked.append((home, answers.set))
        return answers

    def swap(self, *routes: TopicRoute) -> None:
        self._routes, self._held = routes, ()
        self._follow()
        self.shared.wake()

    def turn(self, **groups: GroupRoute) -> None:
        """Swap in the next table: these groups follow, and the frozen groups are held."""
        self._followed = groups
        self._follow()
        self.shared.wake()

    def _follow(self) -> None:
        ids, held = tuple(self.transaction_store.records.values()), list(self._held)
        held += [name for name, group in self._followed.items() if group.frozen]
        made = table(*self._routes, epoch=self.shared.table.epoch + 1, held=held, ids=ids)
        self.shared.swap(replace(made, followed=self._followed), self.edge.clock)

    def produce(
        self, *batches: tuple[str, int, bytearray], version: int = 9, acks: int = -1, timeout_ms: int = 30_000
    ) -> int:
        self._correlation += 1
        parts = tuple(ProducePart(topic, part, memoryview(batch)) for topic, part, batch in batches)
        request = ProduceRequest(version, None, acks, timeout_ms, parts)
        frame = encode_request(request, parts, version=version, acks=acks, correlation=self._correlation, client_id="c")
        self.session.frame(bytearray(b"".join(frame)))
        return self._correlation

    def request(self, message: Message) -> None:
        """Let the client send a request."""
        self.session.frame(bytearray(frame_request(message, 7, "c")))

    def told(self, version: int = 9) -> list[tuple[int, list[tuple[str, int, int]]]]:
        """Return the replies so far: correlation id, then (topic, partition, error)."""
        out = []
        for frame in self.edge.replies:
            answers, _, _ = parse_answer(frame, version)
            (correlation,) = struct.unpack_from(">i", frame, 4)
            out.append((correlation, [(a.topic, a.partition, a.error) for a in answers]))
        return out


def held(last: int, producer: int = 5, epoch: int = 0) -> ProducerMark:
    """Return the target's answer: the last sequence of a producer in the log, −1 for no batch."""
    return ProducerMark(producer, epoch if last >= 0 else -1, last)


def batch(producer: int = 5, epoch: int = 0, sequence: int = 0) -> bytearray:
    return one_record_batch(
        b"k", b"v", timestamp=1, producer_id=producer, epoch=epoch if producer >= 0 else -1, sequence=sequence
    )
