"""The records of the presence log, as frozen values: what a running process says of itself.

Presence log (`__kmigrate_presence`, plain appends). A record names an *instance* (one start of one process), so nobody
can speak for another; it expires with the reader's own clock, never with the writer's. Keys:

    mirror/<link>/<instance>   fenced/<link>/<instance>   router/<instance>   controller/<instance>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmigrate.model.lag import UNPACED, Pace
from kmigrate.model.records import CopyEngine, ProducerMark

__all__ = [
    "DUTY",
    "ConnectedClient",
    "ControllerPresence",
    "DiskUse",
    "EndedClients",
    "FenceAck",
    "FencedProgress",
    "GroupWord",
    "JoinTerms",
    "MirrorPresence",
    "PartitionProgress",
    "RefusedMember",
    "RouterLimits",
    "RouterPresence",
    "Upkept",
    "Withheld",
    "mirror_key",
]

def mirror_key(link: str, instance: str) -> str:
    """Of a presence: a process mirrors any number of links, and speaks for each."""
    return f"mirror/{link}/{instance}"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One mirrored partition as its copier sees it."""

    position: int
    """Next offset to be appended on the target: everything below is acknowledged there."""
    source_end: int = -1
    """Last known end of the source log (high watermark)."""
    stable_end: int = -1
    problem: str = ""
    """What stopped this partition, or ''."""
    at_barrier: int = -1
    """The barrier offset that the copier has stopped at, or −1."""
    direct_id: int = -2
    """Producer id of the last batch seen that came through no router (−1: without id; −2: none seen)."""
    direct_epoch: int = -1
    """Producer epoch of that batch."""
    direct_offset: int = -1
    direct_ms: int = 0
    """Time at which that batch was read, ms since the epoch by the clock of this process; 0: none was."""
    trouble: str = ""
    """What is being tried again, or waited for, without anybody's help; or ''."""
    target_position: int = -1
    """The target's offset at `position`, of a mapped partition."""
    runs: int = 0
    """Runs of a mapped partition's offset map."""
    pace: Pace = UNPACED


@dataclass(frozen=True, slots=True)
class Upkept:
    """The mirror's word that it compared a topic's partitions, configs and rules with the source."""

    since_ms: int
    """`since_ms` of the record it did so for: a promote waits for the word on its own asking."""
    problem: str = ""
    """What keeps the target from following the source, or ''."""
    gone_s: float | None = None
    """How long no broker of the source has known the topic, each time that it was looked for; None where one does."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Room that a link's topics take on the target."""

    bytes: int = -1
    """With all replicas; −1 where unknown."""
    per_hour: int | None = None
    """Growth over the last hour, or since the mirror began to look; None where unknown."""


@dataclass(frozen=True, slots=True)
class MirrorPresence:
    instance: str
    link: str
    applied: int
    active: bool
    """Whether this instance holds the link's lease: it looks after topics and shares the partitions out."""
    interval_ms: int
    topics: Mapping[str, Mapping[int, PartitionProgress]] = field(default_factory=dict)
    """The partitions that this instance copies, and those it is letting go of."""
    upkeep: Mapping[str, Upkept] = field(default_factory=dict)
    """Of topics that are being promoted or have a problem."""
    notes: tuple[str, ...] = ()
    """What concerns no mirrored topic: names that match and cannot be mirrored, rules that cannot be read."""
    shares: bool = False
    """Whether partitions may be given to this instance: not while it starts or leaves."""
    generation: int = -1
    """Of the newest assignment that this instance has acted on."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Of the lease's holder: what keeps a whole topic from getting on, by topic."""
    engine: CopyEngine = CopyEngine.DAEMON
    """Spark: one try of a Spark task, which is no member of the link's processes."""
    said_ms: int = 0
    """The clock of who says this, ms since the epoch: how long ago anything was is told by it, not by the reader's.

    0: said by a version that does not tell.
    """
    let_go: int = -1
    """Newest state known here, where nothing is done any more for what it calls forgotten; else −1."""
    disk: DiskUse | None = None
    """Of the lease's holder: what the link's topics take on the target."""
    disk_low: str = ""
    """Log directories of the target for whose sake this process holds copies back, and what to do; or ''."""

    @property
    def key(self) -> str:
        return mirror_key(self.link, self.instance)


@dataclass(frozen=True, slots=True)
class FencedProgress:
    """What a mirror process says between two words of its own: where it stands in the topics that writers wait for.

    Its presence tells of all of its partitions, of thousands at times, and everybody reads it. Who does not know this
    record waits for the next presence.
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
        """Of the presence that it goes on with."""
        return mirror_key(self.link, self.instance)


@dataclass(frozen=True, slots=True)
class FenceAck:
    """A router's word on one fenced topic: forwards that are not resolved yet, and what it saw acknowledged."""

    epoch: int
    in_flight: int
    producers: Mapping[int, tuple[ProducerMark, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Withheld:
    """A topic that the source has assigned members of the new protocol (KIP-848), and that a router tells them nothing
    of, because it must not be read there."""

    topic_id: str
    """Its id at the source."""
    members: int
    topic: str = ""
    """Its name; '' where no link knows it."""


@dataclass(frozen=True, slots=True)
class GroupWord:
    """A router's word on one group that follows; members by their marks (`kmigrate.model.members`)."""

    in_flight: int = 0
    """Commits on their way to the source, and open transactions that may hold some."""
    members: tuple[str, ...] = ()
    """Who speaks to the source's group through this router."""
    joined: tuple[str, ...] = ()
    """Those of them whose JoinGroup is held here while the group is promoted, or who own nothing any more (KIP-848)."""
    withheld: tuple[Withheld, ...] = ()
    """What nobody reads, though the source has members here that it is assigned to; the first few where it is much."""
    more_withheld: int = 0
    """How many topics `withheld` leaves out."""
    trials: int = 0
    """Trial joins of members that the target has not answered yet."""


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """The session timeout that members with one client id ask for (JoinGroup)."""

    client_id: str
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class RefusedMember:
    """A member that the target refuses: in a trial join before the group's promote, or in a join after the promote."""

    client_id: str
    host: str
    member_id: str
    """The member id at the source; '' while the member has none."""
    error: str
    """Kafka's name of the error."""


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """Connections of one client to a router: by the name it gives itself, its host, its principal, its software."""

    client_id: str
    host: str
    principal: str = ""
    """'' where it was asked for no name."""
    software: str = ""
    """Name and version of its library, '' where it is too old to tell."""
    brokers: int = 0
    """Connections to listeners of brokers: these end when its link is finished."""
    bootstrap: int = 0
    """Connections to the bootstrap listener, which goes on answering."""

    @property
    def text(self) -> str:
        """The client in words: what it calls itself, where and who it is, and what it runs."""
        who = f" as {self.principal}" if self.principal else ""
        software = f" ({self.software})" if self.software else ""
        return f"{self.client_id or 'a client without a name'} at {self.host}{who}{software}"


@dataclass(frozen=True, slots=True)
class EndedClients:
    """Client connections that a router has closed for one of its limits."""

    count: int
    last: str
    """Whose the last one was."""


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """How near a router's clients are to what they may cost it; 0 of an upper bound is none."""

    most_connections: int
    of_one_host: int
    """Connections of the host that has most."""
    most_of_one_host: int
    buffered: int
    """Bytes that are kept for all clients together."""
    most_buffered: int
    ended: Mapping[str, EndedClients] = field(default_factory=dict)
    """By limit: connections, address, login, memory, idle."""


@dataclass(frozen=True, slots=True)
class RouterPresence:
    instance: str
    name: str
    applied: int
    """Offset of the newest state record this router has acted on."""
    interval_ms: int
    fences: Mapping[str, FenceAck] = field(default_factory=dict)
    """By topic key (topic/<link>/<topic>)."""
    holds_ms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Longest time a request was held at the last fence, by topic key and partition."""
    connections: int = 0
    forwarded: int = 0
    on_brokers: int = -1
    """Client connections to listeners of brokers; −1: said by a version that cannot finish a link."""
    clients: tuple[ConnectedClient, ...] = ()
    """Who is connected; the first few of them where there are many."""
    more_clients: int = 0
    """How many clients `clients` leaves out."""
    protocol: str = ""
    """`security.protocol` of its listeners."""
    maps_clients: bool = False
    """Whether clients are known by the router's own table, instead of by the target."""
    groups: Mapping[str, GroupWord] = field(default_factory=dict)
    """Of groups that follow, by name."""
    bootstrap: str = ""
    """host:port of its bootstrap listener; '' of a version that knows no stand-ins."""
    listeners: Mapping[int, str] = field(default_factory=dict)
    """host:port of its listener for each target broker."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """host:port where it receives clients of another router, by that one's `bootstrap`."""
    limits: RouterLimits | None = None
    """None: said by a version that does not tell."""
    waiting: tuple[str, ...] | None = None
    """Groups of which somebody waits here for the promote, or did a moment ago; None: said by a version that does not
    tell."""
    trouble: str = ""
    """Why the router does not tell of fences, groups and clients: the whole word is more than the topic takes."""
    staying: tuple[int, ...] = ()
    """Once the links are finished: clients that it has told what is so only through it, each as a number."""
    deaf: str = ""
    """Reason why this router cannot read the state log and keeps the last routing table; '' where all is well."""

    joins: Mapping[str, tuple[JoinTerms, ...]] = field(default_factory=dict)
    """Session timeouts of members of groups that hold or follow, by group."""
    refused: Mapping[str, tuple[RefusedMember, ...]] = field(default_factory=dict)
    """Members that the target refuses, by group; the first few of each group."""

    @property
    def key(self) -> str:
        return f"router/{self.instance}"


DUTY = "duty/"
"""Prefix of the keys in a controller's `waits` that concern work on all links."""


@dataclass(frozen=True, slots=True)
class ControllerPresence:
    instance: str
    applied: int
    active: bool
    interval_ms: int
    waits: Mapping[str, str] = field(default_factory=dict)
    """What promotes of topics and groups wait for, or are tried again for, by record; the reason why a link's sources
    are not watched, by the link's record; and what ended a duty (`DUTY`)."""

    @property
    def key(self) -> str:
        return f"controller/{self.instance}"
