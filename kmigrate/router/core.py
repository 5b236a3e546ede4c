"""What all client connections of one router share, and the two doors through which they act.

`Core` is decided state: the routing table, the gate, the account of forwards, the address book. `Outside` is what
the router as a whole can be asked to do, `Edge` what one client connection can; `server` and `listeners`
implement them, tests fake them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from kmigrate.model.door import Door, Identity
from kmigrate.model.presences import GroupWord
from kmigrate.model.records import ProducerMark, TransactionRecord
from kmigrate.model.routes import RoutingTable, Serve
from kmigrate.protocol.frames import TakePiece
from kmigrate.router.begun import AtTarget, Begun, Entry
from kmigrate.router.followers import Followers
from kmigrate.router.forwards import Forwards
from kmigrate.router.gate import Gate
from kmigrate.router.held import HeldGroups
from kmigrate.router.join_terms import JoinBook
from kmigrate.router.late import Holder, Late
from kmigrate.router.leaving import Farewell
from kmigrate.router.limits import Limits
from kmigrate.router.nodeids import AddressBook
from kmigrate.router.read_ahead import Room
from kmigrate.router.settings import RouterSettings
from kmigrate.router.share_members import ShareMembers
from kmigrate.router.stand_ins import StandIns
from kmigrate.router.times import Found
from kmigrate.router.topic_ids import TopicIds
from kmigrate.router.trial_book import TrialBook
from kmigrate.router.unready import Unready
from kmigrate.router.untold import Untold

__all__ = ["TARGET", "BeginsAnswer", "Buffer", "Core", "Edge", "Memory", "Outcome", "Outside", "StoredBatch", "Waiting"]

TARGET = ""
"""The target, where else a link stands for its source."""
Buffer = bytes | bytearray | memoryview
BeginsAnswer = Callable[[], TakePiece | None]
"""Asked when a large answer begins to come: who passes it on in pieces; None: it is awaited whole."""


class Outcome(NamedTuple):
    """What came of a forwarded request: its answer, or that it was never sent, or that nobody knows."""

    frame: bytearray | None
    sent: bool = True
    refused: str = ""
    """Why the source will not take it from this client; it was not sent."""


class Edge(Protocol):
    """One client connection and its upstreams, as the session uses them. Calls never block."""

    def now(self) -> float: ...

    def reply(self, parts: Sequence[Buffer]) -> None: ...

    def to_target(
        self,
        parts: Sequence[Buffer],
        correlation: int,
        answered: Callable[[bytearray], None] | None,
        begins: BeginsAnswer | None = None,
    ) -> None:
        """Send to this connection's target broker; without `answered` no answer is due (acks=0).

        `answered` is given the answer whole, but for one that `begins` takes in pieces.

        When that upstream is lost, the client's connection is closed: its order cannot be kept.
        """

    def to_source(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]
    ) -> None:
        """Send to a source broker; `done` is called exactly once, also after the client is gone."""

    def to_coordinator(
        self,
        link: str,
        node: int,
        parts: Sequence[Buffer],
        correlation: int,
        done: Callable[[Outcome], None],
        *,
        waits: bool = False,
    ) -> None:
        """Send to a group coordinator of a source; the connection ends with the client's, whatever is under way.

        `waits`: the coordinator may hold the answer until other members have come. Such requests have a connection of
        their own, because a broker reads no further on a connection while an answer on that connection is due.
        """

    def wake_at(self, when: float) -> None:
        """Have the session advance at a moment of `now()`."""

    def advanced(self, *, done: bool) -> None:
        """The session has looked at its requests: reading may go on or pause; `done`: nothing is left to send."""

    def close(self, reason: str) -> None:
        """Close the client's connection; said in one log line."""

    def part(self) -> None:
        """Say that nothing more is answered here; what comes without asking for an answer is still taken."""

    def identified(self, identity: Identity) -> None:
        """The target has accepted the client's login, or its renewal, on this connection's upstream."""

    def log_in(self, identity: Identity, arrived: Callable[[str], None]) -> None:
        """Go to the target as the table says, in place of the upstream so far; `arrived` is told what failed, or ''."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as the source's log names it: translated id, epoch, first sequence."""

    producer_id: int
    epoch: int
    sequence: int


class Outside(Protocol):
    """What the router does for its sessions. Calls never block; `then` is called later."""

    def source_leader(self, link: str, topic: str, partition: int) -> tuple[int, int]:
        """Node id of the known leader (−1: unknown) and the highest Produce version the source speaks."""

    def source_layout(self, link: str) -> object:
        """The same one for as long as no leader of a source is known to have moved."""

    def source_node(self, link: str) -> int:
        """Node id of any broker of a source, of one that answers where that is known; −1 while none is known."""

    def tells_transactions(self, link: str) -> bool:
        """Whether a link's source, or TARGET, answers DescribeTransactions (Kafka ≥ 3.0)."""

    def source_version(self, link: str, api_key: int) -> int:
        """The highest version of an API that a source speaks, −1 while that is not known."""

    def refresh_source(self, link: str, topic: str = "") -> None:
        """Learn a source's brokers anew, and who leads a topic."""

    def ends(
        self,
        link: str,
        keys: Collection[tuple[str, int]],
        seconds: float,
        then: Callable[[Mapping[tuple[str, int], int]], None],
    ) -> None:
        """Where readers of a source, or of TARGET, find the ends of partitions: of those that it tells in that time."""

    def when_copied(
        self, link: str, positions: Mapping[tuple[str, int], int], seconds: float, then: Callable[[bool], None]
    ) -> None:
        """Tell when the target holds everything below these positions; False where it does not within that time.

        A position beyond the source's log is nobody's to wait for.
        """

    def look_up(
        self,
        link: str,
        times: Mapping[tuple[str, int], int],
        seconds: float,
        then: Callable[[Mapping[tuple[str, int], Found]], None],
        *,
        read_committed: bool,
    ) -> None:
        """Look partitions of mirrored or promoted topics up by time at a link's source.

        What is not told in that time is missing, and so are topics that were made anew since they were mirrored.
        """

    def refresh_target(self) -> None: ...

    def target_versions(self) -> Any | None:
        """Return what all brokers of the target speak, as an ApiVersions answer; None while that is not known."""

    def at_sources(self, topics: frozenset[str], then: Callable[[frozenset[str]], None]) -> None:
        """Which of these topics the sources of unfinished links have; all of them where a source cannot be asked."""

    def new_producer_id(self, then: Callable[[int], None]) -> None:
        """A fresh id of the target; −1 where none could be had."""

    def ask_target(
        self, topic: str, partition: int, producer_id: int, then: Callable[[ProducerMark | None], None]
    ) -> None:
        """Up to where the target's log of a partition holds a producer's records, sequence −1 where it holds none.

        None where it has not told in time.
        """

    def ask_source(
        self, link: str, topic: str, partition: int, stored: StoredBatch, then: Callable[[bool | None], None]
    ) -> None:
        """Whether a source's log holds a producer's batches up to this one; None where it has not told."""

    def join_at_target(self, holder: Holder, topic: str, partition: int, then: Callable[[int], None]) -> None:
        """Put a partition into a holder's transaction for a client that may write both; `then` is told the code."""

    def find_on_source(
        self, link: str, topic: str, partition: int, stored: StoredBatch, then: Callable[[int], None]
    ) -> None:
        """Base offset of a batch in the source's log; −1 where it is not found near its end."""

    def drained(self) -> None:
        """A fenced topic's last forward in flight was resolved: tell the controller at once."""

    def say(self, line: str) -> None:
        """One log line."""

    def warn(self, line: str) -> None:
        """One log line on what only somebody who runs the router can mend."""


class Memory(Protocol):
    """What all routers must agree on, in the state log. Calls never block; by `then` the table has it already."""

    def remember(self, record: TransactionRecord, then: Callable[[bool], None]) -> None:
        """Write down a transactional id's identities, merged with what stands; False where it is not written.

        That is where the log is away, and where what stands crosses them.
        """

    def catch_up(self, then: Callable[[bool], None]) -> None:
        """Read what others have written up to now; False where it could not be read."""


class Waiting(Protocol):
    """A session whose head request waits for something; `advance` looks again."""

    def advance(self) -> None: ...


@dataclass(slots=True)
class Core:
    """Shared by all sessions of a router; changed only between two events, under no await."""

    settings: RouterSettings
    table: RoutingTable
    book: AddressBook
    outside: Outside
    memory: Memory
    stand_ins: StandIns
    gate: Gate = field(default_factory=Gate)
    forwards: Forwards = field(default_factory=Forwards)
    door: Door = field(init=False)
    """Who may come, and as whom each goes on: of the newest table that could be used."""
    fenced: frozenset[str] = field(init=False)
    """Keys of the topics of which is told what is not resolved."""
    ids: TopicIds = field(init=False)
    """Ids of topics on both clusters, of the newest table."""
    begun: Begun = field(init=False)
    at_target: AtTarget = field(default_factory=AtTarget)
    followers: Followers = field(default_factory=Followers)
    untold: Untold = field(default_factory=Untold)
    held: HeldGroups = field(default_factory=HeldGroups)
    join_book: JoinBook = field(default_factory=JoinBook)
    trials: TrialBook = field(default_factory=TrialBook)
    share_members: ShareMembers = field(default_factory=ShareMembers)
    late: Late = field(default_factory=Late)
    unready: Unready = field(default_factory=Unready)
    waiting: dict[Waiting, None] = field(default_factory=dict)
    """Sessions with a held head, in the order in which they were held."""
    farewell: Farewell = field(default_factory=Farewell)
    limits: Limits = field(init=False)
    room_ahead: Room = field(init=False)
    requests: Counter[int] = field(default_factory=Counter)
    """Clients' requests by API key."""
    own_ids: frozenset[bytes] = frozenset()
    """Ids of kmigrate's own topics at the target, which no client may name."""
    own_refused: Counter[int] = field(default_factory=Counter)
    """Clients' requests that named kmigrate's own topics and were refused, by API key."""
    deaf: str = ""
    """Reason why the state log cannot be read, '' where all is well: the last routing table goes on."""
    closing: bool = False
    """Whether this router is being stopped: every connection is ended as soon as nothing of it is under way."""
    stood_still: Callable[[], bool] = lambda: False
    """Whether this process has just stood still for so long that others may have taken it for dead."""
    _hidden: frozenset[str] | None = None
    _mirrored: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.door = self.settings.door
        self.fenced = _fenced(self.table)
        self.ids = TopicIds(self.table.topics)
        self.begun = Begun(self.forwards)
        self.unready.follow(self.table, 0.0)
        bounds = self.settings
        self.room_ahead = Room(min(bounds.read_ahead, bounds.max_buffered // 8))
        self.limits = Limits(
            bounds.max_connections,
            bounds.max_per_address,
            bounds.max_buffered,
            bounds.max_idle_s,
            bounds.max_before_login,
        )

    def swap(self, table: RoutingTable, now: float) -> None:
        """Take a newer table: from this moment every decision is the new one's. Call `wake` after it."""
        self.table = table
        self.fenced = _fenced(table)
        self.ids = TopicIds(table.topics)
        self.unready.follow(table, now)
        self._hidden = self._mirrored = None
        self.gate.load(table)
        self.forwards.follow(table)
        self.untold.keep(table.followed)
        self.at_target.opened(self.followers.follow(table, now), table.transactions.values(), now)
        for (link, name), entry in list(self.begun.entries.items()):
            known = table.transactions.get(name, {}).get(link)
            if known is None or known.epoch > entry.epoch:
                self.ended(link, name)  # another router has asked for the next epoch, which ended it
            elif not known.in_force and known.epoch == entry.epoch:
                self.ended(link, name)  # nothing was open when the source was made to refuse it, or it was cut off
        self.farewell.follow(table, closing=self.closing)

    def wake(self) -> None:
        """Let every held session look again, first held first."""
        for session in list(self.waiting):
            session.advance()

    def hidden(self) -> frozenset[str]:
        """Return the topics that clients do not see yet; looked for once in each table."""
        if self._hidden is None:
            self._hidden = frozenset(t for t, r in self.table.topics.items() if r.serve is Serve.HIDDEN)
        return self._hidden

    def mirrored(self) -> Mapping[str, str]:
        """Return the topics that are not promoted, with their ids at the target; looked for once in each table."""
        if self._mirrored is None:
            self._mirrored = {t: r.target_id for t, r in self.table.topics.items() if r.serve is not Serve.LOCAL}
        return self._mirrored

    def ended(self, link: str, name: str, entry: Entry | None = None) -> None:
        """A transaction at a source is over; `entry`: this one, where an answer may be about one before."""
        if entry is not None and self.begun.entries.get((link, name)) is not entry:
            return
        for key in self.begun.end(link, name):
            self.resolved(key)
        if any(route.frozen for route in self.table.followed.values()):
            self.outside.drained()

    def group_words(self, now: float) -> dict[str, GroupWord]:
        """This router's word on each group that follows; an open transaction may still commit its group's positions."""
        open_: Counter[str] = Counter()
        for (link, name), entry in self.begun.entries.items():
            record = self.table.transactions.get(name, {}).get(link)
            open_.update(entry.groups.union(record.groups if record is not None else ()))
        words = self.followers.words(self.table, open_, self.ids, now)
        return {group: replace(word, trials=self.trials.trials(group)) for group, word in words.items()}

    def ask_written(self, topic: str, partition: int, producer_id: int, then: Callable[[bool | None], None]) -> None:
        """Whether the target holds records of a producer, which then is never late again; None as in `ask_target`."""

        def told(held: ProducerMark | None) -> None:
            written = held is not None and held.last_sequence >= 0
            if written:
                self.late.holds((topic, partition, producer_id))
            then(None if held is None else written)

        self.outside.ask_target(topic, partition, producer_id, told)

    def resolved(self, key: str, count: int = 1) -> None:
        """Forwards of a topic are resolved; the last one under a fence is announced."""
        if self.forwards.resolved(key, count) and key in self.fenced:
            self.outside.drained()


def _fenced(table: RoutingTable) -> frozenset[str]:
    return frozenset(route.key for route in table.topics.values() if route.fenced)
