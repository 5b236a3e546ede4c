"""The records of the state log and of the presence log, as frozen values, and their JSON.

State log (`__kmigrate_state`, compare-and-set, one partition): what was decided. Keys:

    link/<link>   topic/<link>/<topic>   group/<link>/<group>   barrier/<link>/<topic>/<chunk>
    verified/<link>/<topic>   transaction/<link>/<transactional id>   router/<name>   stray/<name>
    lease/<what>   assignment/<link>

Presence log (`__kmigrate_presence`, plain appends): what a running process says of itself. A presence record
names an *instance* (one start of one process), so nobody can speak for another; it expires with the reader's
own clock, never with the writer's.

    mirror/<link>/<instance>   fenced/<link>/<instance>   router/<instance>   controller/<instance>

Secrets never enter either; a link keeps cluster names, bootstrap addresses and cluster ids only.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from kmigrate.errors import StateLogBroken
from kmigrate.model.acls import Acl
from kmigrate.model.lag import UNPACED, Pace
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.patterns import NamePattern
from kmigrate.model.stops import AcceptedLoss, PartitionStop

__all__ = [
    "KINDS",
    "LEAST_READER",
    "SCHEMA",
    "SEALED_SIZE",
    "SIZE_LIMIT",
    "AssignmentRecord",
    "BarrierRecord",
    "Claim",
    "ClusterRef",
    "ConnectedClient",
    "ControllerPresence",
    "CopyEngine",
    "CopyIdentity",
    "EndedClients",
    "FenceAck",
    "FencedProgress",
    "GroupRecord",
    "GroupWord",
    "LeaseRecord",
    "LinkRecord",
    "MirrorPresence",
    "PartitionBarrier",
    "PartitionProgress",
    "ProducerMark",
    "PromoteTerms",
    "PromotedUnit",
    "ProvenTopic",
    "Record",
    "RouterLimits",
    "RouterPresence",
    "RouterRecord",
    "Seal",
    "StrayRecord",
    "TopicRecord",
    "TransactionRecord",
    "Upkept",
    "VerifiedRange",
    "VerifiedRecord",
    "decode_part",
    "decode_record",
    "encode_record",
    "group_key",
    "link_key",
    "mirror_key",
    "plain",
    "topic_key",
    "transaction_key",
    "verified_key",
]

SCHEMA = 1
"""Version of the records' shape that this version writes."""
LEAST_READER = 1
"""The lowest version that may act on what this one writes, told in every record; an older one refuses it.

A change of the shape takes two releases: the first reads the new shape and does not write it; the second writes it,
with a higher SCHEMA. LEAST_READER rises to the first of them where a process that does not know a field would do harm
by ignoring it, or by writing the record again without it; where it does none, it stays.
"""

SIZE_LIMIT, SEALED_SIZE = "max.message.bytes", "1"
"""The topic config that a seal is made of, and its value: no batch is so small."""


def link_key(link: str) -> str:
    return f"link/{link}"


def topic_key(link: str, topic: str) -> str:
    return f"topic/{link}/{topic}"


def group_key(link: str, group: str) -> str:
    return f"group/{link}/{group}"


def verified_key(link: str, topic: str) -> str:
    return f"verified/{link}/{topic}"


def mirror_key(link: str, instance: str) -> str:
    """Of a presence: a process mirrors any number of links, and speaks for each."""
    return f"mirror/{link}/{instance}"


def transaction_key(link: str, name: str) -> str:
    return f"transaction/{link}/{name}"


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """A cluster of the configuration; `cluster_id` is empty until a broker has told it."""

    name: str
    bootstrap: str
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class CopyIdentity:
    """The producer ids of one mirroring era: one for data (never re-initialised), one for markers."""

    data_id: int
    data_epoch: int
    marker_id: int
    marker_epoch: int


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One source → target connection; the root of all other records of the link (AL-11, AL-12)."""

    name: str
    uuid: str
    source: ClusterRef
    target: ClusterRef
    created_ms: int
    copy: CopyIdentity | None = None
    restore_expiration: str | None = None
    """The target's `producer.id.expiration.ms` default before it was raised ('' where it was unset)."""
    throttle: int = 0
    """Most bytes a second that the mirror reads from the source; 0 is no limit."""
    topic_patterns: tuple[NamePattern, ...] = ()
    group_patterns: tuple[NamePattern, ...] = ()
    """What is mirrored by regular expression; names that match later are picked up by the mirror."""
    finished_ms: int = 0
    """When its clients were told to leave the routers; 0: not, or taken back."""

    @property
    def key(self) -> str:
        return link_key(self.name)


@dataclass(frozen=True, slots=True)
class PromoteTerms:
    """What a promote was asked with; seconds and records."""

    asked_ms: int
    lag_threshold: int = 1000
    pending_timeout_s: float = 120.0
    fence_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PartitionBarrier:
    """The source's log end after the drain, with the leader epoch it was read under."""

    offset: int
    leader_epoch: int


class CopyEngine(StrEnum):
    """Who copies a topic while it is mirrored; from its promote on it is always the daemon."""

    DAEMON = "daemon"
    """The mirror processes of the link."""
    SPARK = "spark"
    """Tasks of a Spark job, until it hands the topic over."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The one try of a Spark task that may do on a partition what is not compare-and-set, and under which term."""

    instance: str
    term: int


@dataclass(frozen=True, slots=True)
class Seal:
    """A fence that the source broker holds: `max.message.bytes=1` on the source topic, which refuses every append (V4).

    It is in the record before it is on the broker, and leaves the record only when the broker takes writes again.
    """

    before: str
    """The topic's own `max.message.bytes` before, '' where it had none."""
    routers: Mapping[str, str]
    """Names of the routers that did not acknowledge the fence, by instance: it stays on until each is accounted for."""


@dataclass(frozen=True, slots=True)
class ProvenTopic:
    """What the flip of a topic needs that stands at its barrier and was proven there."""

    fence_epoch: int
    """The fence that it was proven under."""
    target_ends: Mapping[int, int] = field(default_factory=dict)
    """The target's log ends at the barrier, of a mapped topic."""


@dataclass(frozen=True, slots=True)
class PromotedUnit:
    """What transactions couple with a topic, and what is promoted with it: its flip decides for all of them."""

    topics: Mapping[str, ProvenTopic] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    """Groups whose positions stood on the target: they open."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One mirrored topic. Phase changes obey `kmigrate.model.lifecycle`."""

    link: str
    topic: str
    phase: TopicPhase
    since_ms: int
    start: str = "earliest"
    """earliest, latest, or a timestamp in ms as a number (AL-20)."""
    offsets: str = "auto"
    """As asked for: auto, identical or mapped."""
    partitions: int = 0
    source_topic_id: str = ""
    target_topic_id: str = ""
    starts: Mapping[int, int] = field(default_factory=dict)
    """First mirrored offset by partition; also the target's log start after aligning."""
    restore_configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own configs that promote puts back on the target."""
    drop_configs: tuple[str, ...] = ()
    """Configs set only for mirroring, removed at promote."""
    generation: int = 0
    """Route generation, part of the translated producer ids."""
    reason: str = ""
    """Why the last promote was given up, or what the phase waits for."""
    terms: PromoteTerms | None = None
    fence_epoch: int = -1
    """The epoch of this topic's newest fence, which routers acknowledge; each fence has a higher one."""
    barrier: Mapping[int, PartitionBarrier] = field(default_factory=dict)
    fenced_ms: int = 0
    promoted_ms: int = 0
    paused: bool = False
    """A person holds the copy back; all else goes on."""
    stops: Mapping[int, PartitionStop] = field(default_factory=dict)
    """Partitions that the mirror has stopped; only `topic resume` takes one out."""
    losses: Mapping[int, tuple[AcceptedLoss, ...]] = field(default_factory=dict)
    compacted: bool = False
    """A log cleaner works on the source topic, by its own policy or by its cluster's default."""
    granted_acls: tuple[Acl, ...] = ()
    """Rules that kmigrate put on the target, written before they are put there; no other rule is ever removed."""
    promote_acls: tuple[Acl, ...] = ()
    """The topic's rules from its promote on: writing is held back until then (MM-31)."""
    unsettled: bool = False
    """Promoted, and its configs and rules are not yet what they shall be from now on."""
    mapped: bool = False
    """Whether the target's offsets are its own, told by an exact map; decided when the target topic was prepared."""
    target_starts: Mapping[int, int] = field(default_factory=dict)
    """Where the mirror's records begin on the target, by partition of a mapped topic."""
    target_ends: Mapping[int, int] = field(default_factory=dict)
    """Where they end: the target's log ends at the flip of a mapped topic."""
    engine: CopyEngine = CopyEngine.DAEMON
    claims: Mapping[int, Claim] = field(default_factory=dict)
    """Of Spark tasks, by partition; each takes its own back when it ends."""
    claimed_term: int = 0
    """The highest term of a claim so far; assignments count on from it (V3)."""
    seal: Seal | None = None
    """What the source broker holds in place of routers that nobody hears of."""
    unit: PromotedUnit = PromotedUnit()
    """Of the topic of a unit that was flipped first: nothing that it names has a way back any more."""
    forgotten_ms: int = 0
    """When it was taken out of its link; 0: it was not. The record tells what is to be put back on the target, and
    goes when that is done."""

    @property
    def key(self) -> str:
        return topic_key(self.link, self.topic)

    @property
    def hindrance(self) -> str:
        """What keeps it from getting on, as far as its record knows."""
        return f"being forgotten: kmigrate topic forget {self.topic} ends it" if self.forgotten_ms else self.reason


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One mirrored consumer group; `written` holds the offsets put on the target at promote."""

    link: str
    group: str
    phase: GroupPhase
    since_ms: int
    reason: str = ""
    force: bool = False
    asked_ms: int = 0
    written: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unread: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Records that it had not read when it was promoted, and that were never copied: the mirror began behind them."""
    read_again: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Records that it had read on the target before its promote, beyond the positions that were carried over."""
    promoted_ms: int = 0
    granted_acls: tuple[Acl, ...] = ()
    """Rules that kmigrate put on the target."""
    mode: GroupMode = GroupMode.HOLD
    frozen: bool = False
    """Of a group that follows and is promoted: no word of its members reaches the source any more."""
    staged: bool = False
    """Frozen, and its positions stand on the target: it opens when the topics that its transactions write are there."""
    forgotten_ms: int = 0
    """When it was taken out of its link, as of a topic."""

    @property
    def key(self) -> str:
        return group_key(self.link, self.group)

    @property
    def hindrance(self) -> str:
        """What keeps it from getting on, as far as its record knows."""
        return f"being forgotten: kmigrate group forget {self.group} ends it" if self.forgotten_ms else self.reason


@dataclass(frozen=True, slots=True)
class ProducerMark:
    """The last sequence that a producer has on the source side of a barrier; id as the client knows it."""

    producer_id: int
    epoch: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class BarrierRecord:
    """A chunk of a topic's producers at the barrier, by partition: what the gate for first writes needs.

    Chunks of an earlier fence stay in the log and are told apart by `fence_epoch`.
    """

    link: str
    topic: str
    chunk: int
    fence_epoch: int
    producers: Mapping[int, tuple[ProducerMark, ...]]

    @property
    def key(self) -> str:
        return f"barrier/{self.link}/{self.topic}/{self.chunk}"


@dataclass(frozen=True, slots=True)
class VerifiedRange:
    """Source offsets start (included) to end (excluded) of one partition that `verify` found equal on the target."""

    start: int
    end: int
    at_ms: int
    """When the newest part of it was found equal."""
    first: int
    """Where the mirror of this partition begins, and how many losses were accepted: of another copy it says nothing."""
    losses: int


@dataclass(frozen=True, slots=True)
class VerifiedRecord:
    """How far one topic is verified, and which copy of it; `kmigrate.model.verified` says what of it still holds."""

    link: str
    topic: str
    link_uuid: str
    source_topic_id: str
    target_topic_id: str
    digest: str
    ranges: Mapping[int, VerifiedRange]

    @property
    def key(self) -> str:
        return verified_key(self.link, self.topic)


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A transactional id that routed producers use: whom the target takes its holder for, and whom the source does.

    Both clusters raise their epoch at each InitProducerId, so the newest of the one belongs to the newest of the other.
    """

    link: str
    name: str
    """The transactional id, the same on both clusters."""
    producer_id: int
    epoch: int
    """As the target gave them, and as the client knows them."""
    source_id: int
    source_epoch: int
    topics: tuple[str, ...] = ()
    """Mirrored topics that its source lets this id write in transactions: they are coupled, and promoted together."""
    groups: tuple[str, ...] = ()
    """Groups for which its source lets it commit positions in transactions: they are promoted with those topics."""

    @property
    def key(self) -> str:
        return transaction_key(self.link, self.name)

    def merged(self, newer: TransactionRecord) -> TransactionRecord:
        """What stands once two routers have told the same id's identities, where these do not cross."""
        topics = tuple(sorted({*self.topics, *newer.topics}))
        groups = tuple(sorted({*self.groups, *newer.groups}))
        if (self.producer_id, self.source_id) != (newer.producer_id, newer.source_id):
            return dataclasses.replace(newer, topics=topics, groups=groups)
        epoch, source_epoch = max(self.epoch, newer.epoch), max(self.source_epoch, newer.source_epoch)
        return dataclasses.replace(newer, epoch=epoch, source_epoch=source_epoch, topics=topics, groups=groups)

    def later_at_source(self, other: TransactionRecord) -> bool:
        """Whether the source has given the id to this one's holder after the other's."""
        return self.source_id == other.source_id and self.source_epoch > other.source_epoch

    def crosses(self, newer: TransactionRecord) -> bool:
        """Whether the target has given the id to the newer one's holder last, and the source to this one's.

        This holder may have begun there what the other would go on with, so the other has to ask both once more.
        """
        last_at_target = self.producer_id != newer.producer_id or self.epoch < newer.epoch
        return last_at_target and self.later_at_source(newer)


@dataclass(frozen=True, slots=True)
class RouterRecord:
    """A router that must acknowledge every fence; a restart under the same name replaces its instance."""

    name: str
    instance: str
    host: str
    bootstrap: str
    """host:port of the bootstrap listener, what clients are given."""
    since_ms: int

    @property
    def key(self) -> str:
        return f"router/{self.name}"


_MOST_STRAYS = 100
"""Instances of one name; a seal names them all, too."""


@dataclass(frozen=True, slots=True)
class StrayRecord:
    """Instances of a router that left without a word: each may live, or bytes of it be under way (V2).

    One that was replaced by another of its name, or forgotten by a person. A fence is sealed for them, until they
    take themselves off or a person says that they are dead.
    """

    name: str
    host: str
    instances: tuple[str, ...]
    """The oldest of very many are not named: the record's own key stands for them, which no instance takes off."""

    @property
    def key(self) -> str:
        return f"stray/{self.name}"

    def joined(self, instance: str) -> StrayRecord:
        """With one more, and no larger than a record may be where a router dies again and again."""
        known = tuple(dict.fromkeys((*self.instances, instance)))
        if len(known) > _MOST_STRAYS:
            known = (self.key, *known[1 - _MOST_STRAYS :])
        return dataclasses.replace(self, instances=known)

    def without(self, instance: str) -> StrayRecord | None:
        """What is left once an instance has ended with a word; None where nothing is."""
        left = tuple(each for each in self.instances if each != instance)
        return dataclasses.replace(self, instances=left) if left else None


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Who does a work that one process at a time must do; a new holder raises the term."""

    what: str
    holder: str
    term: int

    @property
    def key(self) -> str:
        return f"lease/{self.what}"


@dataclass(frozen=True, slots=True)
class AssignmentRecord:
    """Which process of a link copies which partition; the lease's holder alone writes it."""

    link: str
    generation: int
    """Above that of every earlier assignment and every term of the lease before it: what an owner may do once only
    (holes) carries it, so that a former owner is refused (V3)."""
    members: tuple[str, ...]
    """Instances that own something or may be given it."""
    owners: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By topic, for each partition from 0 on: its owner's place among `members`; where it is moving, ~place of the
    member that lets go of it."""

    @property
    def key(self) -> str:
        return f"assignment/{self.link}"


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
    direct_offset: int = -1
    direct_ms: int = 0
    """When that batch was seen, ms since the epoch by the clock of who says so; 0: it was there at the start."""
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
class GroupWord:
    """A router's word on one group that follows; members by their marks (`kmigrate.model.members`)."""

    in_flight: int = 0
    """Commits on their way to the source, and open transactions that may hold some."""
    members: tuple[str, ...] = ()
    """Who speaks to the source's group through this router."""
    joined: tuple[str, ...] = ()
    """Those of them whose JoinGroup is held here while the group is promoted."""


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
    """By limit: connections, address, memory, idle."""


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
    staying: tuple[int, ...] = ()
    """Once the links are finished: clients that it has told what is so only through it, each as a number."""

    @property
    def key(self) -> str:
        return f"router/{self.instance}"


@dataclass(frozen=True, slots=True)
class ControllerPresence:
    instance: str
    applied: int
    active: bool
    interval_ms: int
    waits: Mapping[str, str] = field(default_factory=dict)
    """What promotes of topics and groups wait for, or are tried again for, by record."""

    @property
    def key(self) -> str:
        return f"controller/{self.instance}"


Record = (
    LinkRecord
    | TopicRecord
    | GroupRecord
    | BarrierRecord
    | VerifiedRecord
    | TransactionRecord
    | RouterRecord
    | StrayRecord
    | LeaseRecord
    | AssignmentRecord
    | MirrorPresence
    | FencedProgress
    | RouterPresence
    | ControllerPresence
)

KINDS: dict[str, type[Record]] = {
    kind.__name__: kind
    for kind in (
        LinkRecord,
        TopicRecord,
        GroupRecord,
        BarrierRecord,
        VerifiedRecord,
        TransactionRecord,
        RouterRecord,
        StrayRecord,
        LeaseRecord,
        AssignmentRecord,
        MirrorPresence,
        FencedProgress,
        RouterPresence,
        ControllerPresence,
    )
}

_R = TypeVar("_R")


def encode_record(record: Record) -> dict[str, Any]:
    """JSON shape of a record, with its kind."""
    return {"kind": type(record).__name__, **plain(record)}


_Part = typing.TypeVar("_Part")
_SCALARS = frozenset({int, str, float, bool, type(None)})


@cache
def _named_defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """A record's fields, each with the value that may be left out: none but in a partition's progress.

    A presence record must fit into one message with thousands of partitions.
    """
    nothing = object()
    sparse = kind is PartitionProgress
    return tuple((f.name, f.default if sparse else nothing) for f in dataclasses.fields(kind))


def plain(value: Any) -> Any:
    """JSON shape of a part of a record."""
    kind = type(value)
    if kind in _SCALARS:  # nearly everything there is, and a mirror says it of each partition twice a second
        return value
    if dataclasses.is_dataclass(kind):
        return {
            name: given if type(given) in _SCALARS else plain(given)
            for name, default in _named_defaults(kind)
            if (given := getattr(value, name)) != default
        }
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return value


def decode_record(data: Mapping[str, Any]) -> Record:
    """The record of a JSON shape; unknown kinds and missing fields are refused, unknown fields ignored."""
    kind = KINDS.get(str(data.get("kind")))
    if kind is None:
        raise StateLogBroken(
            "unknown-record",
            f"the state log holds a record of kind {data.get('kind')!r}, which this version does not know",
            still_true="nothing was changed",
            next_step="use the version of kmigrate that wrote it",
        )
    return decode_part(kind, data)


def decode_part(kind: type[_Part], data: Any) -> _Part:
    """A record, or a part of one, from its JSON shape; raises StateLogBroken where it is none."""
    try:
        return typing.cast("_Part", _value(kind, data))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateLogBroken(
            "malformed-record", f"a {kind.__name__} of the state log cannot be read: {error!r}"
        ) from error


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(kind: Any, data: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast("Any", kind))
        known = {f.name for f in dataclasses.fields(kind)}
        return typing.cast("type[Any]", kind)(**{k: _value(hints[k], v) for k, v in data.items() if k in known})
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        inner = [a for a in typing.get_args(kind) if a is not type(None)]
        return _value(inner[0], data)
    if origin is tuple:
        return tuple(_value(typing.get_args(kind)[0], v) for v in data)
    if origin is not None and issubclass(origin, Mapping):
        of_key, of_value = typing.get_args(kind)
        return {of_key(k): _value(of_value, v) for k, v in data.items()}
    if kind is float:
        return float(data)
    if isinstance(kind, type) and not isinstance(data, kind):
        return kind(data) if issubclass(kind, StrEnum) else _mistyped(kind, data)
    return data


def _mistyped(kind: type[Any], data: Any) -> Any:
    raise TypeError(f"expected {kind.__name__}, found {data!r}")
