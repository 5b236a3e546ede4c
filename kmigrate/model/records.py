"""Defines the records of the state log, as frozen values: the decisions.

State log (`__kmigrate_state`, compare-and-set, one partition). Keys:

    link/<link>   topic/<link>/<topic>   group/<link>/<group>   barrier/<link>/<topic>/[back/]<chunk>
    direct/<link>/<topic>   verified/<link>/<topic>   transaction/<link>/<transactional id>   router/<name>
    late/<link>/<topic>   stray/<name>   lease/<what>   assignment/<link>   misplaced/<link>/<group>
    report/<link>/<topic|group>/<name>/<time of the request> (`model.reports`)

No record holds a secret: a link keeps only cluster names, bootstrap addresses and cluster ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import (
    AT_TARGET,
    COPIED,
    GROUP_AT_TARGET,
    ROLLING_BACK,
    GroupMode,
    GroupPhase,
    TopicPhase,
)
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.patterns import NamePattern
from kmigrate.model.stops import AcceptedLoss, PartitionStop
from kmigrate.model.words import advised

__all__ = [
    "CLOSED_SIZE",
    "SCHEMA",
    "SEALED_SIZE",
    "SIZE_LIMIT",
    "Action",
    "Asked",
    "AssignmentRecord",
    "BarrierRecord",
    "Claim",
    "Closed",
    "ClusterRef",
    "ClusterSide",
    "CopyEngine",
    "CopyIdentity",
    "DeniedWriters",
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
    "RollbackTerms",
    "RouterRecord",
    "Schedule",
    "Seal",
    "SourceAccess",
    "StrayRecord",
    "TopicRecord",
    "TransactionRecord",
    "VerifiedRange",
    "VerifiedRecord",
    "WayBack",
    "barrier_key",
    "direct_key",
    "group_key",
    "late_key",
    "link_key",
    "misplaced_key",
    "topic_key",
    "transaction_key",
    "verified_key",
]

SCHEMA = 6
"""Version of the record format. Every change of a record's fields raises it.

A version of kmigrate reads the records of its own format alone, and refuses all others by name.
"""

SIZE_LIMIT, SEALED_SIZE = "max.message.bytes", "1"
"""Topic config that a seal consists of, and its value: no batch is so small."""
CLOSED_SIZE = "78"
"""Limit of the source topic after a flip: the size of a transaction marker's batch, which still has to pass."""


def link_key(link: str) -> str:
    return f"link/{link}"


def topic_key(link: str, topic: str) -> str:
    return f"topic/{link}/{topic}"


def barrier_key(link: str, topic: str, chunk: int, *, back: bool = False) -> str:
    return f"barrier/{link}/{topic}/{'back/' if back else ''}{chunk}"


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
    """A cluster of the configuration; `cluster_id` is empty until a broker has reported it."""

    name: str
    bootstrap: str
    cluster_id: str = ""
    brokers: tuple[str, ...] = ()
    """host:port of the brokers at the first contact; the first few of many."""

    def is_same(self, other: ClusterRef) -> bool:
        """Return whether both are the same cluster: equal in cluster id, and in name or an address.

        Clones share the cluster id, but no address. For a cluster with two names, the brokers' addresses decide.
        """
        if self.cluster_id != other.cluster_id:
            return False
        return self.name == other.name or not self._addresses.isdisjoint(other._addresses)

    @property
    def _addresses(self) -> frozenset[str]:
        return frozenset((*self.bootstrap.split(","), *self.brokers))


@dataclass(frozen=True, slots=True)
class CopyIdentity:
    """The producer id of one mirroring era, for data and control markers; never re-initialised.

    On a partition, the owners of the partition raise the epoch (`mirror.copy.markers`).
    """

    data_id: int
    data_epoch: int


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """A link from a source to a target; all other records of the link hang on this record."""

    name: str
    uuid: str
    source: ClusterRef
    target: ClusterRef
    created_ms: int
    copy: CopyIdentity | None = None
    restore_expiration: str | None = None
    """The target's `producer.id.expiration.ms` default before it was raised ('' if it was unset); None: not raised."""
    throttle: int = 0
    """Maximum bytes per second that the mirror reads from the source; 0: no limit."""
    topic_patterns: tuple[NamePattern, ...] = ()
    group_patterns: tuple[NamePattern, ...] = ()
    """Patterns of mirrored names; the mirror picks up names that match later."""
    finished_ms: int = 0
    """Time when the link's clients were told to leave the routers; 0: not told, or taken back."""
    deleting_ms: int = 0
    """Start time of the deletion of the link's records, the link's own record last; 0: no deletion."""
    settings: LinkSettings = field(default_factory=LinkSettings)

    @property
    def key(self) -> str:
        return link_key(self.name)


class OnLate(StrEnum):
    """The treatment of records that the source took at or beyond the barrier."""

    ALARM = "alarm"
    """The records are reported and stay where they are."""
    COPY = "copy"
    """The records are appended to the target's topic, behind its end."""
    QUARANTINE = "quarantine"
    """The records are appended to a topic of their own on the target."""


@dataclass(frozen=True, slots=True)
class LatePolicy:
    """The treatment of a promoted topic's source until `link finish`."""

    seal: bool = True
    """True if the source refuses writes to the topic."""
    on_late: OnLate = OnLate.ALARM


class Action(StrEnum):
    """A change of the cluster that serves a topic or group."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Asked:
    """The newest request to promote a topic or group, or to roll it back; stays in the record after the request's end.

    The controller leaves one report per request (`workflow.promote.evidence`); a verb writes this field for the report.
    """

    action: Action
    at_ms: int
    """Time of the request by the state log's clock, which also tells the requests of a topic or group apart."""
    by: str = ""
    """User and host, or `controller`; '' if unknown."""


@dataclass(frozen=True, slots=True)
class PromoteTerms:
    """The terms of a promote request, in seconds and records."""

    asked_ms: int
    lag_threshold: int = 1000
    pending_timeout_s: float = 120.0
    fence_timeout_s: float = 10.0
    accept_direct: bool = False
    """True if a person has said that direct writers do not matter."""
    late: LatePolicy = LatePolicy()
    way_back: bool = False
    """True if the flip opens a way back; the guards of the promote have found that the source allows the copy."""
    asked_by: str = ""
    """User and host of the request; '' if unknown."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A promote that the controller asks for later; the topic is mirrored meanwhile.

    Times are by the state log's clock, ms since the epoch.
    """

    asked_ms: int
    """Time of the request, which the topics of one request share: the controller asks for these topics together."""
    asked_by: str
    terms: PromoteTerms
    not_before_ms: int = 0
    """Time before which the promote is not asked for; 0: at once."""
    postponed: bool = False
    """True until a person or the release file releases the promote."""
    release_file: str = ""
    """File of the controller's machine that releases the promote by its existence; '' for none."""
    deadline_ms: int = 0
    """Time until which the promote is asked for again, after a refusal or a promote given up; 0: asked for once."""
    accept_misplaced: bool = False
    """True if a person accepts members of promoted groups at the source."""


@dataclass(frozen=True, slots=True)
class PartitionBarrier:
    """The source's log end after the drain, with the leader epoch under which it was read."""

    offset: int
    leader_epoch: int


class CopyEngine(StrEnum):
    """The engine that copies a topic while the topic is mirrored; from the promote on always the daemon."""

    DAEMON = "daemon"
    """The mirror processes of the link."""
    SPARK = "spark"
    """Tasks of a Spark job, until the job hands the topic over."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The attempt of a Spark task that alone may do operations without compare-and-set on a partition, and its term."""

    instance: str
    term: int


@dataclass(frozen=True, slots=True)
class Seal:
    """A source broker's fence: topic `max.message.bytes=1` refuses appends (V4); recorded before, until writes pass."""

    before: str
    """The topic's own `max.message.bytes` before the seal; '' if the topic had none."""
    routers: Mapping[str, str]
    """Names of routers that did not acknowledge the fence, by instance; the seal stays until all are accounted for."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The seal of a source topic from the flip on; the record has the seal before the broker gets the limit."""

    before: str
    """The topic's own `max.message.bytes` before the seal; '' if the topic had none."""
    proven: bool = False
    """True once the leaders have shown that the seal is in force."""
    denied: str = ""
    """The source's reason for not letting kmigrate close the topic, which stays open; or ''."""


class SourceAccess(StrEnum):
    """The state of a promoted topic's source topic: whether the source takes writes to the topic."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    OPENING = "opening"


@dataclass(frozen=True, slots=True)
class ProvenTopic:
    """The facts that the flip of a topic needs, proven while the topic stands at its barrier."""

    fence_epoch: int
    """Epoch of the fence under which the topic was proven."""
    target_ends: Mapping[int, int] = field(default_factory=dict)
    """The target's log ends at the barrier, for a mapped topic."""


@dataclass(frozen=True, slots=True)
class PromotedUnit:
    """The topics and groups that transactions couple with a topic: the topic's flip decides for all of them."""

    topics: Mapping[str, ProvenTopic] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    """Groups whose positions stood on the target: these groups open."""


@dataclass(frozen=True, slots=True)
class RollbackTerms:
    """The terms of a rollback request, in seconds and records."""

    asked_ms: int
    lag_threshold: int = 1000
    pending_timeout_s: float = 120.0
    fence_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class WayBack:
    """The copy of a promoted topic from the target back to the source, and the rollback that the copy allows."""

    starts: Mapping[int, int]
    """Offsets where the copy begins, by partition: the barrier of the promote, where both logs ended at the flip."""
    copy: CopyIdentity | None = None
    """Producer id of the copy at the source, used for nothing else; None: the mirror has not got the id yet."""
    stops: Mapping[int, PartitionStop] = field(default_factory=dict)
    """Partitions whose copy to the source the mirror has stopped."""
    ended: str = ""
    """Reason why the way back has ended for good; '' while the way back is open."""
    ended_ms: int = 0
    ended_at: Mapping[int, int] = field(default_factory=dict)
    """Offsets that the copy had reached at its end, by partition: behind them the source's records are late writes."""
    terms: RollbackTerms | None = None
    """Terms of the rollback that is under way; None: no rollback is asked for."""
    reason: str = ""
    """Reason why the last rollback was given up."""
    way_on: str = ""
    """Advice against `reason`, from the error of a rollback."""
    closing: bool = False
    """True while a rollback, before its fence, lets no transaction begin on the topic and waits for the open ones."""
    fence_epoch: int = -1
    """Epoch of the newest rollback's fence, or of the record since which no transaction begins (`closing`)."""
    fenced_ms: int = 0
    barrier: Mapping[int, PartitionBarrier] = field(default_factory=dict)
    """The target's log ends after the drain of the rollback."""
    barrier_ms: int = 0
    """Time when that barrier was read."""

    @property
    def open(self) -> bool:
        """True while the topic is copied to the source."""
        return not self.ended


@dataclass(frozen=True, slots=True)
class DeniedWriters:
    """Deny entries that keep other writers out of a source topic while the topic is copied back (decision 21)."""

    entries: tuple[Acl, ...] = ()
    """ACLs that kmigrate puts on the source, recorded before they are created; no other ACL is ever removed there."""
    in_force: bool = False
    """True once every broker of the source has been seen with the entries."""
    lifted_ms: int = 0
    """Time at which no broker of the source had an entry any more, by the state log's clock; 0: not lifted."""
    open: str = ""
    """Reason why other writers are not kept out; then there are no entries."""

    @property
    def names(self) -> str:
        """The denied principals, as a person reads them."""
        return ", ".join(sorted({entry.principal for entry in self.entries}))

    @property
    def may_exist(self) -> bool:
        """True while a broker of the source may have an entry."""
        return bool(self.entries) and not self.lifted_ms

    @property
    def arriving(self) -> bool:
        """True while the entries are created, and may be missing at a broker."""
        return self.may_exist and not self.in_force


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A mirrored topic; phase changes obey `kmigrate.model.lifecycle`."""

    link: str
    topic: str
    phase: TopicPhase
    since_ms: int
    start: str = "earliest"
    """Requested start: earliest, latest, or a timestamp in ms as a number."""
    offsets: str = "auto"
    """Requested offsets mode: auto, identical or mapped."""
    partitions: int = 0
    source_topic_id: str = ""
    target_topic_id: str = ""
    starts: Mapping[int, int] = field(default_factory=dict)
    """First mirrored offset by partition; also the target's log start after aligning."""
    began: Mapping[int, int] = field(default_factory=dict)
    """The source's log ends when the mirror began, by partition: batches beyond were written during the link."""
    began_ms: int = 0
    """Time when the mirror began the topic; 0: unknown."""
    restore_configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own configs, which the promote restores on the target."""
    drop_configs: tuple[str, ...] = ()
    """Configs set only for mirroring, which the promote removes."""
    generation: int = 0
    """Route generation, part of the translated producer ids."""
    reason: str = ""
    """Reason why the last promote was given up, or why the phase waits."""
    way_on: str = ""
    """Advice against `reason`, from the error of a promote."""
    terms: PromoteTerms | None = None
    asked: Asked | None = None
    """Newest request to promote the topic or to roll it back."""
    schedule: Schedule | None = None
    """Promote that the controller asks for later, or again; None: no promote is scheduled."""
    fence_epoch: int = -1
    """Epoch of the topic's newest fence, or of the record since which no transaction begins (`closing`).

    Routers acknowledge the epoch. Each fence has a higher epoch.
    """
    closing: bool = False
    """True from shortly before a promote's fence: no transaction begins on the topic, and open transactions end."""
    barrier: Mapping[int, PartitionBarrier] = field(default_factory=dict)
    fenced_ms: int = 0
    barrier_ms: int = 0
    """Time when the newest barrier was read; like `fenced_ms` and `promoted_ms` by the state log's clock."""
    promoted_ms: int = 0
    paused: bool = False
    """True if a person has paused the copy; everything else goes on."""
    stops: Mapping[int, PartitionStop] = field(default_factory=dict)
    """Partitions that the mirror has stopped; only `topic resume` removes a stop."""
    losses: Mapping[int, tuple[AcceptedLoss, ...]] = field(default_factory=dict)
    compacted: bool = False
    """True if a log cleaner works on the source topic, by the topic's own policy or by its cluster's default."""
    cleaned_to: Mapping[int, int] = field(default_factory=dict)
    """The source's log ends when the topic was no longer compacted, by partition: below, a log cleaner has worked."""
    granted_acls: tuple[Acl, ...] = ()
    """ACLs that kmigrate puts on the target, recorded before they are created; no other ACL is ever removed."""
    promote_acls: tuple[Acl, ...] = ()
    """The topic's ACLs from its promote on; the right to write is held back until then."""
    unsettled: bool = False
    """True if the topic is promoted and its final configs and ACLs are not yet in force."""
    mapped: bool = False
    """True if the target has offsets of its own, with an exact map; decided when the target topic was prepared."""
    target_starts: Mapping[int, int] = field(default_factory=dict)
    """Target offsets where the mirror's records begin, by partition of a mapped topic."""
    target_ends: Mapping[int, int] = field(default_factory=dict)
    """Target offsets where the mirror's records end: the target's log ends at the flip of a mapped topic."""
    engine: CopyEngine = CopyEngine.DAEMON
    claims: Mapping[int, Claim] = field(default_factory=dict)
    """Claims of Spark tasks, by partition; each task removes its own claim when the task ends."""
    claimed_term: int = 0
    """Highest term of any claim so far; assignments count on from this term (V3)."""
    seal: Seal | None = None
    """Seal that the source broker holds in place of silent routers."""
    closed: Closed | None = None
    """Seal of the source topic from the flip on; None: no seal, or not yet."""
    unit: PromotedUnit = PromotedUnit()
    """Rest of the unit, in the record of the topic that is flipped first: nothing named here has a way back."""
    forgotten_ms: int = 0
    """Time when the topic left its link; the record stays until the target is restored; 0: it was not taken out."""
    aligning: tuple[int, ...] = ()
    """Added partitions that the mirror fills up to their starts; routers let nobody read these partitions."""
    recreate: bool = False
    """True if an empty target topic of this name is deleted and created anew instead of being adopted."""
    way_back: WayBack | None = None
    """The copy back to the source since the flip; None: the topic is not promoted, or without a way back."""
    copy: CopyIdentity | None = None
    """Producer id of the copy to the target since the last rollback; None: the link's, or not given yet (`resumed`)."""
    resumed: Mapping[int, int] = field(default_factory=dict)
    """Offsets where the copy to the target goes on since the last rollback, by partition; empty before a rollback."""
    rolled_back_epoch: int = -1
    """Epoch of the last rollback's fence, whose barrier table guards first writes to the source; −1: no rollback."""
    rolled_back_ms: int = 0
    """Time of the last rollback's flip, by the state log's clock; 0: no rollback."""
    former_copies: tuple[int, ...] = ()
    """Producer ids of the former copies of this topic at the source: these producers are no direct writers."""
    former_copies_at_target: tuple[int, ...] = ()
    """Producer ids of the former copies of this topic at the target: their markers are not those of transactions."""
    turned_epoch: int = -1
    """Epoch of the topic's newest flip, from the first rollback on; −1 before: older identities end there."""
    denied: DeniedWriters | None = None
    """Deny entries at the source since the newest promote; None: none yet."""

    @property
    def key(self) -> str:
        return topic_key(self.link, self.topic)

    @property
    def topic_partitions(self) -> list[tuple[str, int]]:
        return [(self.topic, partition) for partition in range(self.partitions)]

    @property
    def at_target(self) -> bool:
        """True from the flip of a promote to the flip of a rollback."""
        return self.phase in AT_TARGET

    @property
    def copied_back(self) -> bool:
        """True while a mirror copies the topic from the target to the source."""
        return self.at_target and self.way_back is not None and self.way_back.open

    @property
    def copied(self) -> bool:
        """True while a mirror copies the topic, in either direction."""
        return self.phase in COPIED or self.copied_back

    @property
    def newest_fence(self) -> int:
        """Epoch of the newest fence that routers acknowledge: the promote's, or during a rollback the rollback's."""
        return self.way_back.fence_epoch if self.way_back and self.phase in ROLLING_BACK else self.fence_epoch

    @property
    def newest_barrier(self) -> Mapping[int, PartitionBarrier]:
        """The barrier of the newest fence: the promote's, or during a rollback the rollback's."""
        return self.way_back.barrier if self.way_back and self.phase in ROLLING_BACK else self.barrier

    @property
    def late_starts(self) -> Mapping[int, int]:
        """Offsets from which records at the source are late writes: behind the barrier, and behind an ended copy."""
        reached = self.way_back.ended_at if self.way_back is not None else {}
        return {p: max(barrier.offset, reached.get(p, 0)) for p, barrier in self.barrier.items()}

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
    def source_access(self) -> SourceAccess | None:
        """The state of the source topic after the promote; None before the promote."""
        if not self.at_target:
            return None
        if self.closed is None and self.copied_back:
            return SourceAccess.OPEN
        if self.closed is None:
            return SourceAccess.CLOSING if self.late.seal else SourceAccess.OPEN
        if not self.late.seal:
            return SourceAccess.OPENING
        if self.closed.denied:
            return SourceAccess.OPEN
        return SourceAccess.CLOSED if self.closed.proven else SourceAccess.CLOSING

    @property
    def hindrance(self) -> str:
        """Reason why the topic makes no progress, as far as its record tells."""
        ends = f"{advised('topic forget', self.link, self.topic)} ends it"
        return f"being forgotten: {ends}" if self.forgotten_ms else self.reason


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A mirrored consumer group; `written`: offsets that the newest promote or rollback put on the other cluster."""

    link: str
    group: str
    phase: GroupPhase
    since_ms: int
    reason: str = ""
    way_on: str = ""
    """Advice against `reason`, from the error of a promote."""
    asked_ms: int = 0
    written: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unread: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Numbers of records, never copied (the mirror began behind them), that the group had not read at its promote."""
    read_again: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Numbers of records that the group had read on the target before its promote, beyond the carried positions."""
    promoted_ms: int = 0
    granted_acls: tuple[Acl, ...] = ()
    """ACLs that kmigrate put on the target."""
    mode: GroupMode = GroupMode.HOLD
    gathering: bool = False
    """True once the members of a group that is rolled back must join anew: routers have named all of them."""
    frozen: bool = False
    """True before the offsets go over: no request of the members reaches the cluster that the group leaves.

    A group that follows is frozen in its promote, and every group in its rollback.
    """
    staged: bool = False
    """True if the group is frozen, its positions on the other cluster; it opens with the topics of its transactions."""
    forgotten_ms: int = 0
    """Time when the group was taken out of its link; 0: it was not."""
    left_at: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Committed offsets on the source at the promote; a later commit there differs from these."""
    former: tuple[str, ...] = ()
    """Marks of the members at routers at the promote or rollback; the cluster that they left may list them longer."""
    auto: bool = False
    """True if the controller asks for the promote by itself once no direct member is left."""
    asked_automatically: bool = False
    """True if the controller asked for the newest promote by itself."""
    asked: Asked | None = None
    """Newest request to promote the group or to roll it back."""

    @property
    def key(self) -> str:
        return group_key(self.link, self.group)

    @property
    def at_target(self) -> bool:
        """True from the opening of a promote to the opening of a rollback."""
        return self.phase in GROUP_AT_TARGET

    @property
    def hindrance(self) -> str:
        """Reason why the group makes no progress, as far as its record tells."""
        ends = f"{advised('group forget', self.link, self.group)} ends it"
        return f"being forgotten: {ends}" if self.forgotten_ms else self.reason


class ClusterSide(StrEnum):
    """A cluster of a link: the source or the target."""

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
    """The members of a group that were seen at the wrong cluster, and commits on the source after the promote."""

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
    """The last sequence of a producer below a barrier on the source; the producer id is as the client knows it."""

    producer_id: int
    epoch: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class BarrierRecord:
    """A chunk of a topic's producers at the barrier, for the gate; `fence_epoch` tells old fences' chunks apart."""

    link: str
    topic: str
    chunk: int
    fence_epoch: int
    producers: Mapping[int, tuple[ProducerMark, ...]]
    back: bool = False
    """True if the chunk belongs to a rollback: the producers were read from the target."""

    @property
    def key(self) -> str:
        return barrier_key(self.link, self.topic, self.chunk, back=self.back)


@dataclass(frozen=True, slots=True)
class VerifiedRange:
    """Source offsets start (included) to end (excluded) of a partition that `verify` found equal on the target."""

    start: int
    end: int
    at_ms: int
    """Time when the newest part of the range was found equal."""
    first: int
    """First mirrored offset of the partition: the range says nothing about a copy with another first offset."""
    losses: int
    """Number of accepted losses: the range says nothing about a copy with another number."""


@dataclass(frozen=True, slots=True)
class VerifiedRecord:
    """The verified ranges of a topic, and the copy that they are about; see `kmigrate.model.verified`."""

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

    Times are when the mirror read the batches, ms since the epoch by the state log's clock, not batch timestamps.
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
    """Longest interval between two batches; −1: unknown."""


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
    """The late writes of a source partition: records at or beyond the barrier."""

    start: int
    """The barrier: the first late offset."""
    end: int
    """The source's log end: every offset from `start` to `end` is late."""
    records: int
    """Number of late records below `read_to` that readers see; transaction markers and aborted records do not count."""
    read_to: int
    first_ms: int
    """Time of the look that saw the first late offset, by the state log's clock."""
    last_ms: int
    """Time of the look that saw the newest late offset."""
    handled: int = 0
    """Number of late records that were copied or quarantined."""
    handled_to: int = -1
    """Offset below which the handled records lie."""
    producers: tuple[tuple[int, int], ...] = ()
    """Producer ids and epochs of late batches; the first few of many."""

    @property
    def lost(self) -> int:
        """Number of late records that are on the source alone, as far as late records are read."""
        return self.records - self.handled

    @property
    def unread(self) -> int:
        """Number of late offsets that are not read yet, or belong to an open transaction."""
        return self.end - self.read_to

    def with_handled(self, end: int, records: int) -> LateWrites:
        """Return these late writes with more records counted as copied or quarantined."""
        return replace(self, handled=self.handled + records, handled_to=end)

    def is_beyond(self, other: LateWrites) -> bool:
        """Return whether this value is newer than the other in any way."""
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
    """The end of an identity's last transaction at the source."""

    COMMITTED = "committed"
    """Committed, or there was no transaction."""
    ABORTED = "aborted"
    CUT_OFF = "cut-off"
    """Aborted while the client may believe that the transaction goes on: nothing more of it may be written anywhere."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The revocation of an identity, in place of silent routers: the source takes no request of it (decision 10)."""

    last_end: LastEnd
    """End of the identity's last transaction, which the source has forgotten with the identity."""
    proven: bool = False
    """True once the source refuses the identity; before, a late request may change how the last transaction ends."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A transactional id of routed producers, with its producer ids and epochs at the target and at the source.

    InitProducerId raises both epochs, so the newest identity at one cluster belongs to the newest at the other.
    """

    link: str
    name: str
    """Transactional id, the same on both clusters."""
    producer_id: int
    epoch: int
    """Producer epoch; the target gave `producer_id` and `epoch`, and the client knows them."""
    source_id: int
    """Producer id at the source; −1 for an id that has written at the target alone."""
    source_epoch: int
    topics: tuple[str, ...] = ()
    """Topics that this id writes in transactions: coupled, promoted together, and rolled back together.

    These are mirrored topics that the source lets the id write, and what the id writes at the target together with a
    topic that can be rolled back.
    """
    groups: tuple[str, ...] = ()
    """Groups for which this id commits positions in transactions with those topics."""
    revoked: Revoked | None = None
    """Revocation of the identity at the source: the holder needs a new identity before it writes there again."""
    since: int = -1
    """Epoch of the record since which the identity is in use; −1: unknown, from before the link or at the target."""

    @property
    def key(self) -> str:
        return transaction_key(self.link, self.name)

    @property
    def at_source(self) -> bool:
        """True if the source has given the id to the holder."""
        return self.source_id >= 0

    @property
    def in_force(self) -> bool:
        """True if the source may still take a request of its identity there."""
        return self.revoked is None or not self.revoked.proven

    @property
    def cut_off(self) -> bool:
        """True if the holder's last transaction is gone and the holder may not know it."""
        return self.revoked is not None and self.revoked.last_end is LastEnd.CUT_OFF

    def merged(self, newer: TransactionRecord) -> TransactionRecord:
        """Return the record after two routers have reported identities of the same id, if these do not cross."""
        topics = tuple(sorted({*self.topics, *newer.topics}))
        groups = tuple(sorted({*self.groups, *newer.groups}))
        if self.at_source and not newer.at_source:
            return replace(self, topics=topics, groups=groups)
        if (self.producer_id, self.source_id) != (newer.producer_id, newer.source_id):
            return replace(newer, topics=topics, groups=groups)
        epoch, source_epoch = max(self.epoch, newer.epoch), max(self.source_epoch, newer.source_epoch)
        # Only a controller revokes an identity, and nobody takes a revocation back.
        revoked = self.revoked if source_epoch == self.source_epoch else newer.revoked
        since = self.since if (epoch, source_epoch) == (self.epoch, self.source_epoch) else newer.since
        merged = replace(newer, epoch=epoch, source_epoch=source_epoch, topics=topics, groups=groups)
        return replace(merged, revoked=revoked, since=since)

    def later_at_source(self, other: TransactionRecord) -> bool:
        """Return whether the source gave the id to this record's holder after the other record's holder."""
        return self.source_id == other.source_id and self.source_epoch > other.source_epoch

    def crosses(self, newer: TransactionRecord) -> bool:
        """Return whether the newer holder is the last at the target, and this record's holder the last at the source.

        The newer holder would go on with this holder's transaction at the source, so it must ask both clusters again.
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
    """host:port of the bootstrap listener, which clients are given."""
    since_ms: int
    machine: str = ""
    pid: int = 0
    process: str = ""
    """Name of the process for other processes of the same machine (`net.process`); '' if the system tells none."""

    @property
    def key(self) -> str:
        return f"router/{self.name}"


_MOST_STRAYS = 100
"""Maximum number of instances under a name; a seal names all of them, too."""


@dataclass(frozen=True, slots=True)
class StrayRecord:
    """Instances of a router that left without notice: each may live, or its bytes may be under way (V2).

    Each was replaced, or forgotten by a person; fences are sealed until it leaves the record or a person calls it dead.
    """

    name: str
    host: str
    instances: tuple[str, ...]
    """Instances; the record's own key, which no instance takes off, stands for the oldest of very many."""
    bootstrap: str = ""
    """host:port of the newest instance's bootstrap listener."""

    @property
    def key(self) -> str:
        return f"stray/{self.name}"

    def joined(self, instance: str) -> StrayRecord:
        """Return the record with one more instance, of bounded size even if a router dies again and again."""
        known = tuple(dict.fromkeys((*self.instances, instance)))
        if len(known) > _MOST_STRAYS:
            known = (self.key, *known[1 - _MOST_STRAYS :])
        return replace(self, instances=known)

    def without(self, instance: str) -> StrayRecord | None:
        """Return the record without an instance that has ended properly; None if no instance is left."""
        left = tuple(each for each in self.instances if each != instance)
        return replace(self, instances=left) if left else None


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The lease of work that only one process at a time may do; a new holder raises the term."""

    what: str
    holder: str
    term: int

    @property
    def key(self) -> str:
        return f"lease/{self.what}"


@dataclass(frozen=True, slots=True)
class AssignmentRecord:
    """The assignment of a link's partitions to its mirror processes; only the lease's holder writes it."""

    link: str
    generation: int
    """Above all former generations and lease terms; holes (no compare-and-set) carry it to fence former owners (V3)."""
    members: tuple[str, ...]
    """Instances that own partitions or may be given partitions."""
    owners: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Place of each partition's owner in `members`, by topic, from partition 0; ~place of a member that lets go."""

    @property
    def key(self) -> str:
        return f"assignment/{self.link}"
