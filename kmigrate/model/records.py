"""The records of the state log, as frozen values: what was decided.

State log (`__kmigrate_state`, compare-and-set, one partition). Keys:

    link/<link>   topic/<link>/<topic>   group/<link>/<group>   barrier/<link>/<topic>/<chunk>
    direct/<link>/<topic>   verified/<link>/<topic>   transaction/<link>/<transactional id>   router/<name>
    late/<link>/<topic>   stray/<name>   lease/<what>   assignment/<link>   misplaced/<link>/<group>

What running processes say of themselves is in `presences`; the JSON of both in `record_json`. Secrets never enter
either; a link keeps cluster names, bootstrap addresses and cluster ids only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.patterns import NamePattern
from kmigrate.model.stops import AcceptedLoss, PartitionStop
from kmigrate.model.words import advised

__all__ = [
    "CLOSED_SIZE",
    "LEAST_READER",
    "SCHEMA",
    "SEALED_SIZE",
    "SIZE_LIMIT",
    "AssignmentRecord",
    "BarrierRecord",
    "Claim",
    "Closed",
    "ClusterRef",
    "ClusterSide",
    "CopyEngine",
    "CopyIdentity",
    "DirectRecord",
    "DirectWriter",
    "GroupRecord",
    "LastEnd",
    "LatePolicy",
    "LateRecord",
    "LateWrites",
    "LeaseRecord",
    "LinkRecord",
    "MisplacedMember",
    "MisplacedRecord",
    "OnLate",
    "PartitionBarrier",
    "ProducerMark",
    "PromoteTerms",
    "PromotedUnit",
    "ProvenTopic",
    "Revoked",
    "RouterRecord",
    "Seal",
    "StrayRecord",
    "TopicRecord",
    "TransactionRecord",
    "VerifiedRange",
    "VerifiedRecord",
    "direct_key",
    "group_key",
    "late_key",
    "link_key",
    "misplaced_key",
    "topic_key",
    "transaction_key",
    "verified_key",
]

SCHEMA = 2
"""Version of the records' shape that this version writes."""
LEAST_READER = 2
"""The lowest version that may act on what this one writes, told in every record; an older one refuses it.

A change of the shape takes two releases: the first reads the new shape and does not write it; the second writes it,
with a higher SCHEMA. LEAST_READER rises to the first of them where a process that does not know a field would do harm
by ignoring it, or by writing the record again without it; where it does none, it stays.
"""

SIZE_LIMIT, SEALED_SIZE = "max.message.bytes", "1"
"""The topic config that a seal is made of, and its value: no batch is so small."""
CLOSED_SIZE = "78"
"""Limit of the source topic after a flip: the size of a transaction marker's batch, which still has to pass."""


def link_key(link: str) -> str:
    return f"link/{link}"


def topic_key(link: str, topic: str) -> str:
    return f"topic/{link}/{topic}"


def group_key(link: str, group: str) -> str:
    return f"group/{link}/{group}"


def misplaced_key(link: str, group: str) -> str:
    return f"misplaced/{link}/{group}"


def verified_key(link: str, topic: str) -> str:
    return f"verified/{link}/{topic}"


def direct_key(link: str, topic: str) -> str:
    return f"direct/{link}/{topic}"


def late_key(link: str, topic: str) -> str:
    return f"late/{link}/{topic}"


def transaction_key(link: str, name: str) -> str:
    return f"transaction/{link}/{name}"


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """A cluster of the configuration; `cluster_id` is empty until a broker has told it."""

    name: str
    bootstrap: str
    cluster_id: str = ""
    brokers: tuple[str, ...] = ()
    """host:port of the brokers at the first contact, the first few of them."""

    def is_same(self, other: ClusterRef) -> bool:
        """Return whether both are one cluster: clones of a cluster have one cluster id, but no address in common.

        One cluster may be configured under two names, with other bootstrap addresses. Then its brokers tell.
        """
        if self.cluster_id != other.cluster_id:
            return False
        return self.name == other.name or not self._addresses.isdisjoint(other._addresses)

    @property
    def _addresses(self) -> frozenset[str]:
        return frozenset((*self.bootstrap.split(","), *self.brokers))


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
    deleting_ms: int = 0
    """Since when its records are being forgotten, one after the other, its own last; 0: they are not."""

    @property
    def key(self) -> str:
        return link_key(self.name)


class OnLate(StrEnum):
    """The treatment of records that the source took at or beyond the barrier."""

    ALARM = "alarm"
    """They are named, and stay where they are."""
    COPY = "copy"
    """They are appended to the target's topic, behind what stands there."""
    QUARANTINE = "quarantine"
    """They are appended to a topic of their own on the target."""


@dataclass(frozen=True, slots=True)
class LatePolicy:
    """The treatment of a promoted topic's source until `link finish`."""

    seal: bool = True
    """True: the source refuses writes to the topic."""
    on_late: OnLate = OnLate.ALARM


@dataclass(frozen=True, slots=True)
class PromoteTerms:
    """What a promote was asked with; seconds and records."""

    asked_ms: int
    lag_threshold: int = 1000
    pending_timeout_s: float = 120.0
    fence_timeout_s: float = 10.0
    accept_direct: bool = False
    """A person's word that direct writers do not matter."""
    late: LatePolicy = LatePolicy()


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
class Closed:
    """The seal of a source topic from the flip on: in the record before the broker gets the limit."""

    before: str
    """The topic's own `max.message.bytes` before; '': the topic had none."""
    proven: bool = False
    """True once the leaders have shown that the seal is in force."""
    denied: str = ""
    """The source's reason for not letting kmigrate close the topic, which stays open; or ''."""


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
    began: Mapping[int, int] = field(default_factory=dict)
    """Log ends of the source when the mirror began, by partition: batches beyond were written during the link."""
    began_ms: int = 0
    """When the mirror began the topic; 0: not known."""
    restore_configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own configs that promote puts back on the target."""
    drop_configs: tuple[str, ...] = ()
    """Configs set only for mirroring, removed at promote."""
    generation: int = 0
    """Route generation, part of the translated producer ids."""
    reason: str = ""
    """Why the last promote was given up, or what the phase waits for."""
    way_on: str = ""
    """Advice against `reason`, from the error of a promote."""
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
    cleaned_to: Mapping[int, int] = field(default_factory=dict)
    """Where the source's logs ended when that was over: a cleaner has worked below, while or after it was copied."""
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
    closed: Closed | None = None
    """The seal of the source topic from the flip on; None: none, or not yet."""
    unit: PromotedUnit = PromotedUnit()
    """Of the topic of a unit that was flipped first: nothing that it names has a way back any more."""
    forgotten_ms: int = 0
    """When it was taken out of its link; 0: it was not. The record tells what is to be put back on the target, and
    goes when that is done."""
    aligning: tuple[int, ...] = ()
    """Added partitions that the mirror fills up to their starts; routers let nobody read these partitions."""
    recreate: bool = False
    """An empty topic of this name at the target is deleted and created anew instead of being adopted."""

    @property
    def key(self) -> str:
        return topic_key(self.link, self.topic)

    @property
    def fills(self) -> bool:
        """True while the mirror may be writing filler records."""
        begins_late = not self.mapped and any(self.starts.values())
        return bool(self.aligning) or (self.phase is TopicPhase.ALIGNING and begins_late)

    @property
    def late(self) -> LatePolicy:
        """The treatment of the source after the flip."""
        return self.terms.late if self.terms is not None else LatePolicy()

    @property
    def on_late(self) -> OnLate:
        return self.late.on_late

    @property
    def hindrance(self) -> str:
        """What keeps it from getting on, as far as its record knows."""
        ends = f"{advised('topic forget', self.link, self.topic)} ends it"
        return f"being forgotten: {ends}" if self.forgotten_ms else self.reason


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One mirrored consumer group; `written` holds the offsets put on the target at promote."""

    link: str
    group: str
    phase: GroupPhase
    since_ms: int
    reason: str = ""
    way_on: str = ""
    """Advice against `reason`, from the error of a promote."""
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
    left_at: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Committed positions on the source at the promote; a later commit there moves a position away from these."""
    former: tuple[str, ...] = ()
    """Marks of the members at routers at the promote: the source may list them until their sessions end."""

    @property
    def key(self) -> str:
        return group_key(self.link, self.group)

    @property
    def hindrance(self) -> str:
        """What keeps it from getting on, as far as its record knows."""
        ends = f"{advised('group forget', self.link, self.group)} ends it"
        return f"being forgotten: {ends}" if self.forgotten_ms else self.reason


class ClusterSide(StrEnum):
    """One of the two clusters of a link."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class MisplacedMember:
    """A group member at the cluster that does not serve the group: the target before the promote, the source after."""

    cluster: ClusterSide
    member_id: str
    client_id: str
    host: str
    first_ms: int
    """Time of the first sighting, ms since the epoch."""
    last_ms: int
    """Time of the newest recorded sighting."""


@dataclass(frozen=True, slots=True)
class MisplacedRecord:
    """Members of one group that were seen at the wrong cluster, and commits on the source after the promote."""

    link: str
    group: str
    members: tuple[MisplacedMember, ...] = ()
    """The newest sightings."""
    more_members: int = 0
    """Number of earlier sightings that `members` leaves out."""
    commits: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Positions that were committed on the source after the promote, by topic and partition."""
    commits_ms: int = 0
    """Time when the newest of these commits was found."""

    @property
    def key(self) -> str:
        return misplaced_key(self.link, self.group)


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
class DirectWriter:
    """A producer that wrote to a partition of the source without a router while the link mirrored the topic.

    Times are ms since the epoch by the state log's clock: when the mirror read the batches, whatever time these bear.
    """

    producer_id: int
    """−1: a producer without an id."""
    epoch: int
    partition: int
    records: int
    offset: int
    """Base offset of the newest batch."""
    first_ms: int
    last_ms: int
    slowest_ms: int = -1
    """Longest interval between two batches; −1: none is known."""


@dataclass(frozen=True, slots=True)
class DirectRecord:
    """The direct writers of a topic that mirror processes have seen during the link, or the newest of very many."""

    link: str
    topic: str
    writers: tuple[DirectWriter, ...] = ()
    more: int = 0
    """Number of writers that `writers` leaves out."""

    @property
    def key(self) -> str:
        return direct_key(self.link, self.topic)


@dataclass(frozen=True, slots=True)
class LateWrites:
    """The late writes of one partition of the source: at or beyond the barrier."""

    start: int
    """The barrier: the first late offset."""
    end: int
    """The source's log end: every offset from `start` to here is late."""
    records: int
    """Late records below `read_to` that readers see: transaction markers and aborted records are none."""
    read_to: int
    first_ms: int
    """Time of the look that saw the first late offset, by the state log's clock."""
    last_ms: int
    """Time of the look that saw the newest late offset."""
    handled: int = 0
    """Records that were copied or quarantined."""
    handled_to: int = -1
    """They are those below this offset."""
    producers: tuple[tuple[int, int], ...] = ()
    """Producer ids and epochs of late batches, the first few."""

    @property
    def lost(self) -> int:
        """Late records that are on the source alone, as far as they are read."""
        return self.records - self.handled

    @property
    def unread(self) -> int:
        """Late offsets that are not read yet, or belong to an open transaction."""
        return self.end - self.read_to

    def with_handled(self, end: int, records: int) -> LateWrites:
        """Return the same with more records copied or quarantined."""
        return replace(self, handled=self.handled + records, handled_to=end)

    def is_beyond(self, other: LateWrites) -> bool:
        """Return whether this is newer in any way."""
        mine, theirs = (self.end, self.read_to, self.handled_to), (other.end, other.read_to, other.handled_to)
        return any(one > two for one, two in zip(mine, theirs, strict=True))


@dataclass(frozen=True, slots=True)
class LateRecord:
    """The late writes of a promoted topic's source, by partition."""

    link: str
    topic: str
    partitions: Mapping[int, LateWrites] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return late_key(self.link, self.topic)


class LastEnd(StrEnum):
    """How the last transaction of an identity ended at the source."""

    COMMITTED = "committed"
    """Or there was none."""
    ABORTED = "aborted"
    CUT_OFF = "cut-off"
    """Aborted while its client may believe that it goes on: nothing of it may be written anywhere any more."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """An identity that the source takes no word of any more, in place of routers that nobody hears of (decision 10)."""

    last_end: LastEnd
    """What the source has forgotten with it."""
    proven: bool = False
    """Whether the source refuses it by now: until then a late word may still be taken, and end otherwise."""


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
    revoked: Revoked | None = None
    """Of the identity at the source: its holder has to be given another one before it writes there again."""

    @property
    def key(self) -> str:
        return transaction_key(self.link, self.name)

    @property
    def in_force(self) -> bool:
        """Whether the source may still take a word of its identity there."""
        return self.revoked is None or not self.revoked.proven

    @property
    def cut_off(self) -> bool:
        """Whether the holder's last transaction is gone and he may not know it."""
        return self.revoked is not None and self.revoked.last_end is LastEnd.CUT_OFF

    def merged(self, newer: TransactionRecord) -> TransactionRecord:
        """What stands once two routers have told the same id's identities, where these do not cross."""
        topics = tuple(sorted({*self.topics, *newer.topics}))
        groups = tuple(sorted({*self.groups, *newer.groups}))
        if (self.producer_id, self.source_id) != (newer.producer_id, newer.source_id):
            return replace(newer, topics=topics, groups=groups)
        epoch, source_epoch = max(self.epoch, newer.epoch), max(self.source_epoch, newer.source_epoch)
        # Only a controller revokes an identity, and nobody gives it back.
        revoked = self.revoked if source_epoch == self.source_epoch else newer.revoked
        return replace(
            newer, epoch=epoch, source_epoch=source_epoch, topics=topics, groups=groups, revoked=revoked
        )

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
    machine: str = ""
    pid: int = 0
    process: str = ""
    """Name of the process for other processes of the same machine (`net.process`); '' where the system tells none."""

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
    bootstrap: str = ""
    """host:port of the newest one's bootstrap listener; '' where it was written by a version that did not say."""

    @property
    def key(self) -> str:
        return f"stray/{self.name}"

    def joined(self, instance: str) -> StrayRecord:
        """With one more, and no larger than a record may be where a router dies again and again."""
        known = tuple(dict.fromkeys((*self.instances, instance)))
        if len(known) > _MOST_STRAYS:
            known = (self.key, *known[1 - _MOST_STRAYS :])
        return replace(self, instances=known)

    def without(self, instance: str) -> StrayRecord | None:
        """What is left once an instance has ended with a word; None where nothing is."""
        left = tuple(each for each in self.instances if each != instance)
        return replace(self, instances=left) if left else None


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
