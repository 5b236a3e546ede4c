"""State that all client connections of one router share, and the two interfaces through which they act.

`Backend` is the interface to the router process, `ClientLink` the interface to one client connection. `server` and
`listeners` implement these interfaces, and tests fake them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from kmigrate.model.listener_access import Identity, ListenerAccess
from kmigrate.model.presences import GroupReport
from kmigrate.model.records import ProducerMark, TransactionRecord
from kmigrate.model.routes import RoutingTable
from kmigrate.protocol.frames import TakePiece
from kmigrate.router.settings import RouterSettings
from kmigrate.router.shared.aligning_partitions import AligningPartitions
from kmigrate.router.shared.client_handoff import Handoff
from kmigrate.router.shared.conversation import Conversation, Conversations, Future
from kmigrate.router.shared.deferred_partitions import DeferredPartitions, ProducerIdentity
from kmigrate.router.shared.fallback_routers import FallbackRouters
from kmigrate.router.shared.followers import Followers
from kmigrate.router.shared.forwards import InFlightForwards
from kmigrate.router.shared.gate import FirstWriteGate
from kmigrate.router.shared.kept_out import KeptOutClients
from kmigrate.router.shared.limits import Limits
from kmigrate.router.shared.missing_credentials import MissingCredentials
from kmigrate.router.shared.open_transactions import OpenTransaction, SourceTransactions, TargetTransactions
from kmigrate.router.shared.pending_positions import PendingPositions
from kmigrate.router.shared.read_ahead import Room
from kmigrate.router.shared.served import ServedRequests
from kmigrate.router.shared.session_timeouts import SessionTimeouts
from kmigrate.router.shared.share_members import ShareMembers
from kmigrate.router.shared.time_lookups import Found
from kmigrate.router.shared.trial_results import TrialBook
from kmigrate.router.shared.waiting_groups import WaitingGroups
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.router.wire.topic_ids import TopicIds

__all__ = [
    "TARGET",
    "Backend",
    "BeginsAnswer",
    "Buffer",
    "ClientContext",
    "ClientLink",
    "LogProducer",
    "Outcome",
    "SharedState",
    "StoredBatch",
    "TransactionStore",
    "Waiting",
]

TARGET = ""
"""Name of the target where a link's name stands for the link's source."""
Buffer = bytes | bytearray | memoryview
LogProducer = tuple[str, str, int, int]
"""A producer in a log: link of a source, or TARGET; topic, partition, and the producer's id as that log has it."""
BeginsAnswer = Callable[[], TakePiece | None]
"""Callback at the start of a large answer: returns the receiver of the pieces, or None to collect the whole answer."""


class Outcome(NamedTuple):
    """The result of a forwarded request: an answer, a proof that it was never sent, or an unknown fate."""

    frame: bytearray | None
    sent: bool = True
    refused: str = ""
    """Reason why the source does not accept this client's login; the request was not sent."""


class ClientLink(Protocol):
    """The connection of one client and its upstream connections, as the session uses them. Calls never block."""

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

        `answered` receives the whole answer, except an answer that `begins` takes in pieces. If the connection to the
        target is lost, the client's connection is closed: the order of requests cannot be kept.
        """

    def write_to_target(self, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]) -> None:
        """Send a write that is accounted for to this connection's target broker.

        `done` is called exactly once, also after the client is gone. If the outcome is unknown, the client's connection
        is closed in the same event.
        """

    def to_source(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]
    ) -> None:
        """Send to a source broker; `done` is called exactly once, also after the client is gone."""

    def ask_target(self, parts: Sequence[Buffer], correlation: int) -> Future[bytearray]:
        """Send to this connection's target broker; the response never arrives once the client is gone."""
        answer = Future[bytearray]()
        self.to_target(parts, correlation, answer.set)
        return answer

    def ask_source(self, link: str, node: int, parts: Sequence[Buffer], correlation: int) -> Future[Outcome]:
        """Send to a source broker; the outcome arrives also after the client is gone."""
        outcome = Future[Outcome]()
        self.to_source(link, node, parts, correlation, outcome.set)
        return outcome

    def ask_coordinator(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, *, waits: bool = False
    ) -> Future[Outcome]:
        """Send to a group coordinator of a source; the connection closes with the client's, whatever is in flight.

        `waits`: the answer may wait for other members. Such requests have a connection of their own, because a broker
        reads no further on a connection while an answer is due there.
        """

    def wake_at(self, when: float) -> None:
        """Have the session advance at a moment of `now()`."""

    def advanced(self, *, done: bool) -> None:
        """Note that the session has looked at its requests, so that reading goes on or pauses; `done`: all sent."""

    def close(self, reason: str) -> None:
        """Close the client's connection and log the reason in one line."""

    def part(self) -> None:
        """End writing to the client; requests that want no answer are still taken."""

    def identified(self, identity: Identity) -> None:
        """Note that the target has accepted the client's login, or a renewal, on this connection's upstream."""

    def log_in(self, identity: Identity) -> Future[str]:
        """Replace the upstream with the login that the table of clients has for an identity; return the error or ''."""


class ClientContext(Protocol):
    """Facts and conversations of one client connection, for the handlers of the client's requests."""

    conversations: Conversations
    """Conversations that end when the client is gone."""
    host: str
    home: str
    """Home router of a client that came here as a fallback (`shared.fallback_routers`); '' for other clients."""
    broker: int | None
    """Target broker whose listener took the connection; None: the bootstrap listener, or a fallback listener."""

    @property
    def knows_brokers(self) -> bool:
        """True if the client knows the brokers' own addresses, which a client learns from its own router alone."""

    @property
    def login_lasts(self) -> bool:
        """True if the client's login goes on for at least a moment."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as a cluster's log names it: translated id, epoch, first sequence."""

    producer_id: int
    epoch: int
    sequence: int


class Backend(Protocol):
    """The router process, as its sessions use it. Calls never block."""

    def source_leader(self, link: str, topic: str, partition: int) -> tuple[int, int]:
        """Return the node id of the leader (−1: unknown) and the highest Produce version that the source speaks."""

    def source_layout(self, link: str) -> object:
        """Return the same object as long as no leader of a source is known to have moved."""

    def source_node(self, link: str) -> int:
        """Return the node id of any broker of a source, preferably of a broker that answers; −1 while unknown."""

    def tells_transactions(self, link: str) -> bool:
        """Return whether a link's source, or TARGET, answers DescribeTransactions (Kafka ≥ 3.0)."""

    def source_version(self, link: str, api_key: int) -> int:
        """Return the highest version of an API that a source speaks; −1 while the version is unknown."""

    def refresh_source(self, link: str, topic: str = "") -> None:
        """Refresh the metadata of a source: its brokers, and the leaders of a topic."""

    def log_ends(
        self, link: str, keys: Collection[tuple[str, int]], seconds: float
    ) -> Future[Mapping[tuple[str, int], int]]:
        """Find the log ends that readers of a source, or of TARGET, see: all that are known within `seconds`."""

    def when_copied(self, link: str, positions: Mapping[tuple[str, int], int], seconds: float) -> Future[bool]:
        """Wait until the target holds all below these positions, up to the source's log end; False after `seconds`."""

    def look_up(
        self, link: str, times: Mapping[tuple[str, int], int], seconds: float, *, read_committed: bool
    ) -> Future[Mapping[tuple[str, int], Found]]:
        """Look up partitions of mirrored or promoted topics by time at a link's source.

        The result lacks topics created anew since their mirroring, and partitions without an answer within `seconds`.
        """

    def refresh_target(self) -> None: ...

    def target_versions(self) -> Any | None:
        """Return the versions that all brokers of the target speak, as an ApiVersions answer; None while unknown."""

    def at_sources(self, topics: frozenset[str]) -> Future[frozenset[str]]:
        """Find which of these topics the sources of unfinished links have; all of them if a source cannot be asked."""

    def new_producer_id(self) -> Future[int]:
        """Get a fresh producer id of the target; −1 if the target gave no id."""

    def producer_mark(self, at: str, topic: str, partition: int, producer_id: int) -> Future[ProducerMark | None]:
        """Find a producer's last sequence in the log of a source or TARGET; −1: no record, None: no answer in time."""

    def source_has(self, link: str, topic: str, partition: int, stored: StoredBatch) -> Future[bool | None]:
        """Find whether a source's log holds a producer's batches up to `stored`; None if the source did not answer."""

    def join_at_target(self, producer: ProducerIdentity, topic: str, partition: int) -> Future[int]:
        """Add a partition, which the caller knows the client may write, to a transaction; return the error code."""

    def find_stored(self, at: str, topic: str, partition: int, stored: StoredBatch) -> Future[int]:
        """Find the base offset of a batch in the log of a source or TARGET; −1 if it is not near the log's end."""

    def drained(self) -> None:
        """Tell the controller at once that the last forward in flight of a fenced topic is resolved."""

    def say(self, line: str) -> None:
        """Write one log line."""

    def warn(self, line: str) -> None:
        """Write one log line about a fault that only the operator of the router can mend."""


class TransactionStore(Protocol):
    """Facts on which all routers must agree, in the state log. No call blocks; before an answer, the table has them."""

    def remember(self, record: TransactionRecord, *, begins: bool = False) -> Future[bool]:
        """Merge an id's identities into its record in the log; False: log unreachable, or the record crosses them.

        `begins`: the identity is new, so that it has written nothing before the record.
        """

    def catch_up(self) -> Future[bool]:
        """Read what other processes have written up to now; False if the log could not be read."""


class Waiting(Protocol):
    """A session whose first request waits for something; `advance` looks again."""

    def advance(self) -> None: ...


@dataclass(slots=True)
class SharedState:
    """State shared by all sessions of a router; changed only between two events, never across an await."""

    settings: RouterSettings
    table: RoutingTable
    book: AddressBook
    backend: Backend
    transaction_store: TransactionStore
    fallbacks: FallbackRouters
    gate: FirstWriteGate = field(default_factory=FirstWriteGate)
    forwards: InFlightForwards = field(default_factory=InFlightForwards)
    access: ListenerAccess = field(init=False)
    """Rules for who may connect, and with which identity a client goes on, from the newest usable table of clients."""
    fenced: frozenset[str] = field(init=False)
    """Keys of fenced topics, whose unresolved forwards this router reports."""
    ids: TopicIds = field(init=False)
    """Ids of topics on both clusters, from the newest table."""
    open_at_source: SourceTransactions = field(init=False)
    open_at_target: TargetTransactions = field(default_factory=TargetTransactions)
    followers: Followers = field(default_factory=Followers)
    pending_positions: PendingPositions = field(default_factory=PendingPositions)
    waiting_groups: WaitingGroups = field(default_factory=WaitingGroups)
    session_timeouts: SessionTimeouts = field(default_factory=SessionTimeouts)
    trials: TrialBook = field(default_factory=TrialBook)
    missing_credentials: MissingCredentials = field(default_factory=MissingCredentials)
    failed_logins: Counter[str] = field(default_factory=Counter)
    """Refused logins of clients: by SASL mechanism, by `certificate`, or by anything `other`."""
    certificate_expires_at: Callable[[], float] = lambda: 0.0
    """Time at which the listeners' certificate expires, in seconds since the epoch; 0 without a certificate."""
    share_members: ShareMembers = field(default_factory=ShareMembers)
    deferred: DeferredPartitions = field(default_factory=DeferredPartitions)
    aligning: AligningPartitions = field(default_factory=AligningPartitions)
    waiting: dict[Waiting, None] = field(default_factory=dict)
    """Sessions whose first request is held, in the order in which the requests were held."""
    handoff: Handoff = field(default_factory=Handoff)
    limits: Limits = field(init=False)
    conversations: Conversations = field(default_factory=Conversations)
    """Conversations that go on after the client that began them is gone."""
    room_ahead: Room = field(init=False)
    requests: Counter[int] = field(default_factory=Counter)
    """Requests of clients by API key."""
    own_ids: frozenset[bytes] = frozenset()
    """Ids of kmigrate's own topics at the target, which no client may name."""
    own_refused: Counter[int] = field(default_factory=Counter)
    """Requests of clients that named kmigrate's own topics and were refused, by API key."""
    served: ServedRequests = field(default_factory=ServedRequests)
    kept_out: KeptOutClients = field(default_factory=KeptOutClients)
    log_problem: str = ""
    """Reason why the state log cannot be read, '' while it can; meanwhile the last routing table stays in use."""
    closing: bool = False
    """True while this router stops: every connection is closed as soon as nothing of the connection is in flight."""
    stood_still: Callable[[], bool] = lambda: False
    """True if this process was just paused for so long that other processes may have declared it dead."""

    def __post_init__(self) -> None:
        self.access = self.settings.access
        self.fenced = _fenced(self.table)
        self.ids = TopicIds(self.table.topics)
        self.open_at_source = SourceTransactions(self.forwards)
        self.aligning.follow(self.table, 0.0)
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
        """Take a newer table, which decides everything from this moment. Call `wake` afterwards."""
        self.ids = self.ids.following(table)
        self.table = table
        self.fenced = _fenced(table)
        self.aligning.follow(table, now)
        self.gate.load(table)
        self.forwards.follow(table)
        self.pending_positions.keep(table.followed)
        self.open_at_target.groups_moved(self.followers.follow(table, now), table.transactions.values(), now)
        for (link, name), entry in list(self.open_at_source.entries.items()):
            known = table.transactions.get(name, {}).get(link)
            if known is None or known.epoch > entry.epoch:
                self.ended(link, name)  # another router has asked for the next epoch, which ended the transaction
            elif not known.in_force and known.epoch == entry.epoch:
                # the identity was revoked: nothing was open at that time, or the open transaction was cut off
                self.ended(link, name)
        self.handoff.follow(table, closing=self.closing)

    def wake(self) -> None:
        """Let every held session look again, in the order in which the sessions were held."""
        for session in list(self.waiting):
            session.advance()

    def hidden(self) -> frozenset[str]:
        """Return the topics that clients do not see yet."""
        return self.table.routes.hidden

    def mirrored(self) -> Mapping[str, str]:
        """Return the topics that are not promoted, with their ids at the target."""
        return self.table.routes.mirrored

    def ended(self, link: str, name: str, entry: OpenTransaction | None = None) -> None:
        """Note that a source's transaction is over; `entry`: which, if an answer may be about an earlier one."""
        if entry is not None and self.open_at_source.entries.get((link, name)) is not entry:
            return
        for key in self.open_at_source.end(link, name):
            self.resolved(key)
        if any(route.frozen for route in self.table.followed.values()):
            self.backend.drained()

    def group_reports(self, now: float) -> dict[str, GroupReport]:
        """Return this router's report on each group that follows, including open transactions."""
        open_: Counter[str] = Counter()
        for (link, name), entry in self.open_at_source.entries.items():
            record = self.table.transactions.get(name, {}).get(link)
            open_.update(entry.groups.union(record.groups if record is not None else ()))
        reports = self.followers.reports(self.table, open_, self.ids, now)
        for group, trials in self.trials.unanswered.items():
            if group in reports:
                reports[group] = replace(reports[group], trials=trials)
        return reports

    def has_written(self, topic: str, partition: int, producer_id: int) -> Conversation[bool | None]:
        """Find whether the target holds a producer's records; if so, never defer there; None: see `producer_mark`."""
        mark = yield from self.backend.producer_mark(TARGET, topic, partition, producer_id)
        if mark is None:
            return None
        if mark.last_sequence >= 0:
            self.deferred.has_records(topic, partition, producer_id)
        return mark.last_sequence >= 0

    def entered(self, keys: Iterable[str]) -> None:
        """Count requests that put partitions of topics into transactions at the target as resolved."""
        for key in keys:
            self.forwards.entering[key] -= 1
            if not self.forwards.entering[key]:
                del self.forwards.entering[key]
                route = self.table.route_of(key)
                if route is not None and route.fenced:
                    self.backend.drained()

    def resolved(self, key: str, count: int = 1) -> None:
        """Count forwards of a topic as resolved; tell the controller about the last forward under a fence."""
        if self.forwards.resolved(key, count) and key in self.fenced:
            self.backend.drained()


def _fenced(table: RoutingTable) -> frozenset[str]:
    return frozenset(route.key for route in table.routes.fenced.values() if not route.closing)
