"""Defines the records of the presence log, as frozen values: the reports of running processes about themselves.

Presence log (`__kmigrate_presence`, plain appends). A record names an *instance* (one start of one process), so that no
process can report for another. A record expires by the reader's own clock, never by the writer's clock. Keys:

    mirror/<link>/<instance>   fenced/<link>/<instance>   router/<instance>   controller/<instance>
    rehearsal/<link>/<instance>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmigrate.model.lag import UNPACED, Pace
from kmigrate.model.records import CopyEngine, ProducerMark

__all__ = [
    "DUTY",
    "PRESENCE_KEYS",
    "ClientWithoutCredential",
    "ConnectedClient",
    "ControllerPresence",
    "DiskUse",
    "EndedClients",
    "FenceAck",
    "FencedProgress",
    "GroupReport",
    "JoinTerms",
    "KeptOutClient",
    "MirrorPresence",
    "PartitionProgress",
    "RefusedMember",
    "RehearsalPresence",
    "RouterLimits",
    "RouterPresence",
    "ServedApi",
    "Upkept",
    "Withheld",
    "mirror_key",
]


def mirror_key(link: str, instance: str) -> str:
    """Return the key of a mirror's presence: a process reports separately on each link that it mirrors."""
    return f"mirror/{link}/{instance}"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The progress of one mirrored partition, as its copier reports it."""

    position: int
    """Next offset to append on the target (of a copy back: on the source): everything below is acknowledged there."""
    source_end: int = -1
    """Last known end (high watermark) of the log that is copied: the source's, or of a copy back the target's."""
    stable_end: int = -1
    problem: str = ""
    """Reason why the partition has stopped, or ''."""
    at_barrier: int = -1
    """Barrier offset at which the copier has stopped, or −1."""
    direct_id: int = -2
    """Producer id of the newest batch that came through no router; −1: a batch without an id; −2: no such batch."""
    direct_epoch: int = -1
    """Producer epoch of that batch."""
    direct_offset: int = -1
    direct_ms: int = 0
    """Time at which that batch was read, ms since the epoch by the clock of this process; 0: no such batch."""
    trouble: str = ""
    """Reason why the copier retries or waits, without a person's help; or ''."""
    target_position: int = -1
    """Target offset at `position`, for a mapped partition."""
    runs: int = 0
    """Number of runs in a mapped partition's offset map."""
    pace: Pace = UNPACED


@dataclass(frozen=True, slots=True)
class Upkept:
    """The mirror's report that it compared a topic's partitions, configs and ACLs with the source."""

    since_ms: int
    """`since_ms` of the compared record: a promote waits for a comparison made after the promote was requested."""
    problem: str = ""
    """Reason why the target does not follow the source, or ''."""
    gone_s: float | None = None
    """Seconds for which every look-up has found no source broker that knows the topic; None if a broker does."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The room that a link's topics take on the target."""

    bytes: int = -1
    """Bytes of all replicas together; −1 if unknown."""
    per_hour: int | None = None
    """Growth over the last hour, or since the mirror began to look; None if unknown."""


@dataclass(frozen=True, slots=True)
class MirrorPresence:
    """The report of a mirror process about one link."""

    instance: str
    link: str
    applied: int
    active: bool
    """True if this instance holds the link's lease: the instance looks after topics and assigns the partitions."""
    interval_ms: int
    topics: Mapping[str, Mapping[int, PartitionProgress]] = field(default_factory=dict)
    """Partitions that this instance copies, and partitions that the instance is letting go of."""
    upkeep: Mapping[str, Upkept] = field(default_factory=dict)
    """Comparisons of topics that are being promoted or have a problem."""
    notes: tuple[str, ...] = ()
    """Problems of no mirrored topic: names that match and cannot be mirrored, ACLs that cannot be read."""
    shares: bool = False
    """True if partitions may be assigned to this instance; False while the instance starts or leaves."""
    generation: int = -1
    """Generation of the newest assignment that this instance has acted on."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Reasons why whole topics make no progress, by topic; only the lease's holder reports them."""
    engine: CopyEngine = CopyEngine.DAEMON
    """Copy engine; Spark: an attempt of a Spark task, which does not belong to the link's mirror processes."""
    said_ms: int = 0
    """Time of this report, ms since the epoch; ages are by the same clock, not the reader's."""
    let_go: int = -1
    """Epoch of the newest state known here; −1 while this instance works on a topic or group being forgotten."""
    disk: DiskUse | None = None
    """Room that the link's topics take on the target; reported by the lease's holder."""
    disk_low: str = ""
    """Target's log directories whose low space makes this process hold copies back, and what to do; or ''."""
    writes_as: str = ""
    """Name of this process's principal at the source, as far as the configuration tells."""

    @property
    def key(self) -> str:
        return mirror_key(self.link, self.instance)

    @property
    def partitions(self) -> int:
        """Number of reported partitions."""
        return sum(map(len, self.topics.values()))


@dataclass(frozen=True, slots=True)
class FencedProgress:
    """A mirror process's progress in the topics whose writers wait, reported between two of its presence records.

    Presence records have up to thousands of partitions and many readers. Older readers wait for the next of them.
    """

    instance: str
    link: str
    applied: int
    topics: Mapping[str, Mapping[int, PartitionProgress]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"fenced/{self.link}/{self.instance}"

    @property
    def presence_key(self) -> str:
        """Key of the presence record that this record supplements."""
        return mirror_key(self.link, self.instance)


@dataclass(frozen=True, slots=True)
class FenceAck:
    """A router's report on a fenced topic: unresolved forwards, and the sequences that the router saw acknowledged."""

    epoch: int
    in_flight: int
    producers: Mapping[int, tuple[ProducerMark, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Withheld:
    """A topic, not to be read at the target, that the source assigned to members (KIP-848) and a router hides."""

    topic_id: str
    """The topic's id at the source."""
    members: int
    topic: str = ""
    """The topic's name; '' if no link knows the topic."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A router's report on a group that follows; members are named by their marks (`kmigrate.model.members`)."""

    in_flight: int = 0
    """Number of commits on their way to the source, and of open transactions that may hold commits."""
    members: tuple[str, ...] = ()
    """Members of the source's group that speak through this router."""
    joined: tuple[str, ...] = ()
    """Members whose JoinGroup is held here during the group's promote, or that own nothing any more (KIP-848)."""
    withheld: tuple[Withheld, ...] = ()
    """Topics that nobody reads, although the source assigned them to members here; the first few of many."""
    more_withheld: int = 0
    """Number of topics that `withheld` leaves out."""
    trials: int = 0
    """Number of members' trial joins that the target has not answered yet."""


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """The session timeout that members with a given client id request (JoinGroup)."""

    client_id: str
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class RefusedMember:
    """A member that the target refuses: in a trial join before the group's promote, or in a join after the promote."""

    client_id: str
    host: str
    member_id: str
    """Member id at the source; '' while the member has no id."""
    error: str
    """Kafka's name of the error."""


@dataclass(frozen=True, slots=True, order=True)
class KeptOutClient:
    """A client that a router disconnects, because the router does not take one of the client's requests."""

    client_id: str
    host: str
    software: str
    """Name and version of the client's library, named by the client or known by the client id; '' if unknown."""
    why: str
    """What the client sends, and what the router takes."""

    @property
    def text(self) -> str:
        """The client and the reason, in words."""
        software = f" ({self.software})" if self.software else ""
        return f"{self.client_id or 'a client without a name'} at {self.host}{software} is kept out: {self.why}"


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """The connections of one client to a router, by client id, host, principal and client software."""

    client_id: str
    host: str
    principal: str = ""
    """Principal of the client; '' if the router asked for none."""
    software: str = ""
    """Name and version of the client's library; '' if the library is too old to report them."""
    brokers: int = 0
    """Number of connections to broker listeners; these connections end when the links are finished."""
    bootstrap: int = 0
    """Number of connections to the bootstrap listener, which goes on answering."""

    @property
    def text(self) -> str:
        """The client in words: client id, host, principal and software."""
        who = f" as {self.principal}" if self.principal else ""
        software = f" ({self.software})" if self.software else ""
        return f"{self.client_id or 'a client without a name'} at {self.host}{who}{software}"


@dataclass(frozen=True, slots=True)
class ClientWithoutCredential:
    """A client as whom a router cannot log in to a source, so that requests of the client are refused."""

    principal: str
    client_id: str
    host: str
    link: str
    cluster: str
    """The source's name in the router's configuration."""
    refusal: str = ""
    """The source's refusal of the known credential; '' if the router knows no credential."""
    asks_password: bool = True
    """True if the source identifies clients by SASL, False if by certificates alone."""
    writes: bool = False
    """True if writes were refused."""
    groups: tuple[str, ...] = ()
    """Groups that follow and whose requests were refused; the first few of many."""

    @property
    def text(self) -> str:
        """The client in words: client id, host and principal."""
        who = f" as {self.principal}" if self.principal else ""
        return f"{self.client_id or 'a client without a name'} at {self.host}{who}"


@dataclass(frozen=True, slots=True)
class EndedClients:
    """The client connections that a router has closed because of one of its limits."""

    count: int
    last: str
    """Client or host of the connection that was closed last."""


@dataclass(frozen=True, slots=True)
class ServedApi:
    """A router's answers to the requests of one API in the last 30 to 60 s."""

    api: str
    answers: int
    slowest_s: float
    """Bound that 99 % of the answers did not exceed, from the request's arrival; −1: more than 30 s."""
    held: int
    """Number of requests that had to wait before the router carried them out."""
    held_s: float
    """Seconds for which these requests waited, together."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors by Kafka's name; of Produce and Fetch, partitions with the error."""


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """A router's limits, and how much of them its clients use; an upper bound of 0 means no limit."""

    most_connections: int
    of_one_host: int
    """Number of connections of the host with the most connections."""
    most_of_one_host: int
    buffered: int
    """Bytes kept for all clients together."""
    most_buffered: int
    ended: Mapping[str, EndedClients] = field(default_factory=dict)
    """Closed connections by limit: connections, address, login, memory, idle."""


@dataclass(frozen=True, slots=True)
class RouterPresence:
    """The report of a router process."""

    instance: str
    name: str
    applied: int
    """Offset of the newest state record that this router has acted on."""
    interval_ms: int
    fences: Mapping[str, FenceAck] = field(default_factory=dict)
    """Reports on fenced topics, by topic key (topic/<link>/<topic>)."""
    holds_ms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Longest time for which a request was held at the last fence, by topic key and partition."""
    connections: int = 0
    forwarded: int = 0
    on_brokers: int = 0
    """Number of client connections to broker listeners."""
    clients: tuple[ConnectedClient, ...] = ()
    """Connected clients; the first few of many."""
    more_clients: int = 0
    """Number of clients that `clients` leaves out."""
    protocol: str = ""
    """`security.protocol` of the router's listeners."""
    maps_clients: bool = False
    """True if the router's own table identifies clients, False if the target identifies them."""
    groups: Mapping[str, GroupReport] = field(default_factory=dict)
    """Reports on groups that follow, by group."""
    bootstrap: str = ""
    """host:port of the router's bootstrap listener."""
    listeners: Mapping[int, str] = field(default_factory=dict)
    """host:port of the router's listener for each target broker."""
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """host:port where this router receives another router's clients, by the other router's `bootstrap`."""
    limits: RouterLimits | None = None
    """Use of the router's limits; None: not reported."""
    waiting: tuple[str, ...] | None = ()
    """Groups whose members wait here for the promote, or did a moment ago; None: missing, and `trouble` says why."""
    trouble: str = ""
    """Reason why fences, groups and clients are missing here: the whole report is too large for the presence topic."""
    staying: tuple[int, ...] = ()
    """Clients, each as a number, that stay after the finish: this router told them facts that hold only through it."""
    log_problem: str = ""
    """Reason why this router cannot read the state log and keeps its last routing table; '' if reading works."""

    joins: Mapping[str, tuple[JoinTerms, ...]] = field(default_factory=dict)
    """Session timeouts requested by members of groups that hold or follow, by group."""
    refused: Mapping[str, tuple[RefusedMember, ...]] = field(default_factory=dict)
    """Members that the target refuses, by group; the first few of each group."""
    kept_out: tuple[KeptOutClient, ...] = ()
    """Clients that this router has kept out lately; the first few of many."""
    served: tuple[ServedApi, ...] = ()
    """Answers of the last 30 to 60 s by API: APIs with errors or held requests, then the busiest."""

    without_credential: tuple[ClientWithoutCredential, ...] = ()
    """Clients as whom this router cannot log in to a source; the first few of many."""

    @property
    def key(self) -> str:
        return f"router/{self.instance}"


DUTY = "duty/"
"""Prefix of the keys in a controller's `waits` that concern work on all links."""


@dataclass(frozen=True, slots=True)
class ControllerPresence:
    """The report of a controller process."""

    instance: str
    applied: int
    active: bool
    interval_ms: int
    waits: Mapping[str, str] = field(default_factory=dict)
    """Reasons for waiting or trying again, by key.

    - by record of a topic or group: why its promote waits or is tried again
    - by record of a link: why the link's sources are not watched
    - by `DUTY` and a name: the error that ended a duty
    """

    @property
    def key(self) -> str:
        return f"controller/{self.instance}"


@dataclass(frozen=True, slots=True)
class RehearsalPresence:
    """The report of a call of `rehearse` that goes on: nobody else may remove what belongs to the call's link."""

    instance: str
    link: str
    applied: int
    interval_ms: int

    @property
    def key(self) -> str:
        return f"rehearsal/{self.link}/{self.instance}"


PRESENCE_KEYS: Mapping[type, tuple[str, ...]] = {
    MirrorPresence: ("mirror/", "fenced/"),
    RouterPresence: ("router/",),
    ControllerPresence: ("controller/",),
    RehearsalPresence: ("rehearsal/",),
}
"""Beginnings of the keys of each kind's presences; a mirror's progress behind a fence counts as its presence."""
