"""The documents that commands print with `--json`, as types: dataclasses of the product, and typed dictionaries.

The JSON schema in the docs is made from these types, and tests validate the output of commands against the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from kmigrate.cli.commands.plan import TopicForecast
from kmigrate.mirror.bulk.ranges import CopyRange
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.patterns import NamePattern
from kmigrate.model.presences import ConnectedClient, KeptOutClient, RouterLimits, ServedApi
from kmigrate.model.records import ClusterRef, GroupRecord, RouterRecord, TopicRecord
from kmigrate.model.reports import ReportRecord
from kmigrate.parity.report import PartitionRow, TimeStep, TopicRow
from kmigrate.report.migration import Millis, ParitySummary
from kmigrate.workflow.base.bootstraps import Bootstrap
from kmigrate.workflow.groups.audit import MovedPosition
from kmigrate.workflow.rehearsal.outcome import Rehearsed
from kmigrate.workflow.status.aftermath import Aftermath
from kmigrate.workflow.status.group_detail import MemberDetail, PartitionDetail
from kmigrate.workflow.status.progress import GroupProgress, TopicProgress
from kmigrate.workflow.status.snapshot import GroupStatus, LinkStatus, TopicStatus
from kmigrate.workflow.status.stragglers import Passing
from kmigrate.workflow.verbs.target_lost import GroupAtSource, PartitionAtSource, UnitAtSource

__all__ = [
    "COMMANDS",
    "MERGED",
    "AclCommand",
    "AnsweredCluster",
    "Behind",
    "Bulk",
    "CheckedPlaybook",
    "Compared",
    "ComparedPartition",
    "ControllerFailed",
    "ControllerSnapshot",
    "ControllerStarted",
    "CopyProblem",
    "CopyRound",
    "CopyTimes",
    "Demo",
    "Difference",
    "DifferingPartition",
    "Doctor",
    "Error",
    "Explanation",
    "Explanations",
    "Finding",
    "FollowEnded",
    "Following",
    "Forecast",
    "Forecasts",
    "GroupCheck",
    "GroupList",
    "GroupPartition",
    "GroupPromote",
    "GroupRollback",
    "GroupShow",
    "GroupSnapshot",
    "GroupState",
    "GroupsProgress",
    "Guide",
    "GuidedStep",
    "HandedOver",
    "Init",
    "LateRecords",
    "LinesLeftOut",
    "Link",
    "LinkFinish",
    "LinkList",
    "LinkProgress",
    "LinkShow",
    "Lookup",
    "Lookups",
    "MetricsListening",
    "MirrorEvent",
    "MirrorFailed",
    "MirrorSnapshot",
    "MissingCredential",
    "Moved",
    "NeededRight",
    "NeededRights",
    "NeedsAttention",
    "NotCompared",
    "OneGroup",
    "PageEvent",
    "PageListening",
    "Parity",
    "Patterns",
    "Plan",
    "PlaybookCheck",
    "PlaybookEnded",
    "PlaybookList",
    "PlaybookPlan",
    "Promote",
    "PromoteNotEqual",
    "PromotedTopic",
    "RecordPlace",
    "Rehearsal",
    "RehearsalResult",
    "Report",
    "ReportExport",
    "ReportLine",
    "ReportList",
    "Rollback",
    "RolledBackTopic",
    "RouterListening",
    "RouterReplaced",
    "RouterSnapshot",
    "Sandbox",
    "SandboxCluster",
    "SandboxDown",
    "SandboxServer",
    "SandboxUp",
    "ShippedPlaybook",
    "Snapshot",
    "SourcePartition",
    "StatusProgress",
    "Step",
    "StepEnded",
    "StepProgress",
    "StepStarted",
    "Stopped",
    "Stragglers",
    "TargetLost",
    "TopicList",
    "TopicMirror",
    "TopicShow",
    "TopicSnapshot",
    "TopicState",
    "TopicsProgress",
    "TrafficRolled",
    "TrafficStarted",
    "TrafficStopped",
    "TranslatedPosition",
    "TryFailed",
    "Verify",
    "Wait",
    "WorkerEvent",
]


class Error(TypedDict):
    """The document of a command that failed: the last document, or the only one."""

    error: str
    """reference of the error, in kebab case; the reference does not change between versions"""
    what: str
    """what happened"""
    still_true: str
    """what holds all the same"""
    next: str
    """the next step"""
    exit_code: Literal[1, 2, 3, 4, 5, 130]
    """exit code of the process"""
    findings: NotRequired[list[Finding]]
    """all findings, if guards refuse the call"""


class Explanation(TypedDict):
    """The explanation of an error's reference."""

    reference: str
    area: str
    what: str
    still_true: str
    next: str


class Explanations(TypedDict):
    """The explanations of all references."""

    references: list[Explanation]


# changes


class Finding(TypedDict):
    """A finding of a guard or a check."""

    level: Literal["ok", "warn", "refuse"]
    ref: str
    what: str
    next: str


class Plan(TypedDict):
    """The changes of a verb, and the findings of its guards."""

    verb: str
    applied: bool
    """whether the changes were made"""
    changes: list[str]
    """sentences; empty if nothing was left to do"""
    findings: list[Finding]


class TopicState(TypedDict):
    """A topic's record in the state log."""

    kind: Literal["TopicRecord"]


class GroupState(TypedDict):
    """A group's record in the state log."""

    kind: Literal["GroupRecord"]


class CopyRound(TypedDict):
    """A round of a Spark copy."""

    tasks: int
    partitions: int
    offsets: int
    bytes: int
    seconds: float


class CopyProblem(TypedDict):
    """A partition that Spark could not copy."""

    topic: str
    partition: int
    problem: str


class HandedOver(TypedDict):
    """What Spark left to the mirror processes."""

    offsets_left: int
    to: str


class Bulk(TypedDict):
    """The plan, and the outcome, of a copy by Spark."""

    engine: str
    """the chosen engine"""
    why: str
    """the reason for the choice"""
    speculation: Literal["off", "as Spark is set"]
    """whether Spark may speculate"""
    ranges: list[CopyRange]
    rounds: NotRequired[list[CopyRound]]
    """once Spark has copied"""
    problems: NotRequired[list[CopyProblem]]
    """once Spark has copied; exit code 1"""
    handed_over: NotRequired[HandedOver]
    """once Spark has copied"""


class TopicMirror(Plan):
    """The plan, and the topics once they are mirrored."""

    topics: NotRequired[list[TopicState]]
    bulk: NotRequired[Bulk]
    """with `--engine spark` or `auto`"""


class GroupPromote(Plan):
    """The plan, and the groups once they are promoted."""

    groups: NotRequired[list[GroupState]]


class GroupRollback(Plan):
    """The plan, and the groups once they are rolled back."""

    groups: NotRequired[list[GroupState]]


class PromotedTopic(TopicState):
    """A promoted topic's record, with the times of the promote."""

    fence_to_flip_ms: int
    """time from the fence to the flip"""
    router_hold_ms: Mapping[int, float]
    """longest time that a request was held, by partition"""
    router_hold_max_ms: float | None
    """the longest of these times; null if no request was held"""
    report: str
    """the command that shows the report, two seconds after the flip"""


class Promote(Plan):
    """The plan, and the topics and coupled groups once they are promoted."""

    topics: NotRequired[list[PromotedTopic]]
    groups: NotRequired[list[GroupState]]


class RehearsalResult(TypedDict):
    """The outcome of a rehearsal; `equal`: nothing lost, doubled, reordered, altered, read again or skipped."""

    equal: bool


class Rehearsal(Plan):
    """The plan of a rehearsal, what the promote of the real topics would meet now, and the outcome."""

    real: list[Finding]
    rehearsal: RehearsalResult | None
    """null with --plan"""


class ReportLine(TypedDict):
    """A report of a promote or rollback, in short."""

    link: str
    what: Literal["topic", "group"]
    name: str
    action: Literal["promote", "rollback"]
    outcome: Literal["done", "given-up"]
    asked_ms: int
    """time of the request, which names the report (`--asked`)"""
    asked_by: str
    ended_ms: int
    fence_ms: int
    """time from the fence to the end; -1 without a fence"""
    pause_max_ms: float | None
    """longest time for which a router held a request; null if no router has reported one"""
    reason: str
    """why the request was given up"""


class ReportList(TypedDict):
    """The reports of a link, the newest first."""

    reports: list[ReportLine]


class Report(TypedDict):
    """The report of a promote or rollback, with what has become of the topic or group since."""

    fence_ms: int
    """time from the fence to the end; -1 without a fence"""
    now: Aftermath


class ReportExport(TypedDict):
    """The file that a report was written to."""

    link: str
    what: Literal["topic", "group"]
    name: str
    out: str


class RolledBackTopic(TopicState):
    """The record of a topic that was rolled back, with the times of the rollback."""

    fence_to_flip_ms: int
    """time from the fence to the flip"""
    router_hold_ms: Mapping[int, float]
    """longest time that a request was held, by partition"""
    router_hold_max_ms: float | None
    """the longest of these times; null if no request was held"""
    report: str
    """the command that shows the report, two seconds after the flip"""


class Rollback(Plan):
    """The plan, and the topics and coupled groups once they are rolled back."""

    topics: NotRequired[list[RolledBackTopic]]
    groups: NotRequired[list[GroupState]]


class SourcePartition(TypedDict):
    """What the source holds of one partition."""

    complete: bool
    """true if the source is known to lack nothing that the target was known to hold"""


class TargetLost(TypedDict):
    """What the source holds once the target is gone (`rollback --target-lost`)."""

    at_ms: int
    link: str
    source: str
    targets: list[str]
    """the clusters that did not answer"""
    clients_bootstrap: str
    """the addresses that clients get"""
    complete: bool
    """true if each partition is complete"""
    partitions: list[SourcePartition]
    groups: list[GroupAtSource]
    more_groups: int
    """number of further promoted groups that the notes do not name"""
    units: list[UnitAtSource]
    """the topics that are written in transactions"""
    findings: list[Finding]


class LinkFinish(Plan):
    """The plan, and the addresses and clients that are left."""

    bootstraps: NotRequired[list[Bootstrap]]
    """where the clients' addresses lead"""
    told_real_addresses: NotRequired[bool]
    """after the wait; false while another link keeps the clients"""
    on_brokers: NotRequired[int]
    """connections to broker listeners that are left"""
    clients: NotRequired[list[ConnectedClient]]
    routers_may_stop: NotRequired[bool]


# looks


class Link(TypedDict):
    """A link."""

    name: str
    uuid: str
    source: ClusterRef
    target: ClusterRef
    created_ms: int
    throttle: int
    """bytes a second; 0 is no limit"""
    finished_ms: int
    """0: not finished"""
    deleting_ms: int
    """0: not being deleted"""
    settings: LinkSettings
    topic_patterns: list[NamePattern]
    group_patterns: list[NamePattern]


class LinkList(TypedDict):
    """All links."""

    links: list[Link]


class LinkShow(Link):
    """A link, with the phases of its topics and groups."""

    topics: Mapping[str, str]
    """phase by topic"""
    groups: Mapping[str, str]
    """phase by group"""


class TopicList(TypedDict):
    """The topics' records in the state log."""

    topics: list[TopicState]


class GroupList(TypedDict):
    """The groups' records in the state log."""

    groups: list[GroupState]


class Patterns(TypedDict):
    """The expressions by which later topics or groups are picked up."""

    link: str
    patterns: list[NamePattern]


class CopyTimes(TypedDict):
    """The times of the control markers in a topic's copy."""

    marked_ms: int
    """time of the newest marker"""
    began_ms: int
    """time when the copy began"""
    read_again: int
    """offsets that a look-up by time reads again at worst"""
    kept_until_ms: int | None
    """end of the retention of the copied part; null if there is no such figure"""
    longer_ms: int | None
    """longest time for which a record is kept beyond its own; null if there is no such figure"""


class LateRecords(TypedDict):
    """The late records of a partition: records that the source took after the flip."""

    topic: str
    partition: int
    start: int
    """the first late offset"""
    end: int
    """the first offset that is not late"""
    records: int
    """records that readers see"""
    first_ms: int
    """time at which kmigrate found the first late offset"""
    last_ms: int
    """time at which kmigrate found the newest late offset"""
    handled: int
    """records that were copied or quarantined"""
    producers: list[tuple[int, int]]
    """pairs of producer id and epoch"""
    unread: int
    """offsets that were not read yet"""
    missing: bool
    """true if the target may lack a record"""


class NeedsAttention(TypedDict):
    """What needs attention in a topic or group."""

    need: Literal["person", "waits", "promoting", "copying", "steady", "done"]
    reason: str


class TopicSnapshot(TypedDict):
    """A topic in the snapshot, with the sums of its partitions."""

    late: list[LateRecords]
    lag: int
    """records to be copied"""
    lag_bytes: int
    """about as many bytes"""
    lag_seconds: float
    """age of the next record to be copied, at most"""
    unverified: int
    """offsets left to verify"""
    attention: NotRequired[NeedsAttention]
    """in `status`"""


class MissingCredential(TypedDict):
    """A principal as whom the routers cannot log in to a link's source, so that requests of its clients are refused."""

    link: str
    cluster: str
    """the source's name in the routers' configuration"""
    principal: str
    clients: list[str]
    """client ids with their hosts"""
    writes: bool
    """whether writes are refused"""
    groups: list[str]
    """groups whose requests are refused"""
    refusal: str
    """the source's refusal of the known credential, or empty"""
    lines: list[str]
    """lines for the routers' table of clients, without the values"""


class GroupSnapshot(TypedDict):
    """A group in the snapshot."""

    without_credential: list[MissingCredential]
    attention: NeedsAttention


class LinkProgress(TypedDict):
    """The progress of a link."""

    name: str


class TopicsProgress(TypedDict):
    """The progress of a topic."""

    link: str
    topic: str


class GroupsProgress(TypedDict):
    """The progress of a group."""

    link: str
    group: str


class StatusProgress(TypedDict):
    """Rates, copied parts and times left; an unknown figure is -1."""

    window_s: float
    """seconds over which rates are the mean"""
    links: list[LinkProgress]
    topics: list[TopicsProgress]
    groups: list[GroupsProgress]


class TopicShow(TopicState):
    """A topic's record, the control markers and times of its copy, and its part of the snapshot."""

    control_markers: bool | None
    """whether the topic's copy holds any control marker; null if the target does not show markers"""
    copy_times: CopyTimes | None
    """null if the copy has no markers"""
    status: TopicSnapshot


class GroupPartition(TypedDict):
    """A partition that a group reads."""

    lag: int


class OneGroup(TypedDict):
    """A group's part of the snapshot, with members and partitions."""

    members: list[MemberDetail]
    partitions: list[GroupPartition]
    trouble: str
    """reason why a cluster could not be asked, or empty"""


class GroupShow(TypedDict):
    """The group, for each link."""

    groups: list[OneGroup]


class RouterSnapshot(TypedDict):
    """A router, and the clients that are connected to the router."""

    alive: bool
    """whether the router was heard of lately"""
    on_brokers: int
    """connections to the router's broker listeners"""
    clients: list[ConnectedClient]
    more_clients: int
    """number of clients left out"""
    connections: int
    """all connections, -1 if the router is silent"""
    limits: RouterLimits | None
    """null if the router is silent"""
    served: list[ServedApi]
    """answers of the last 30 to 60 s by API: APIs with errors or held requests, then the busiest; empty if silent"""
    kept_out: list[KeptOutClient]
    """clients that the router disconnects for a request that the router does not take"""


class MirrorSnapshot(TypedDict):
    """A mirror process."""

    instance: str
    link: str
    active: bool
    """whether the process holds the link's lease"""
    partitions: int
    """number of partitions that the process copies"""


class ControllerSnapshot(TypedDict):
    """A controller process."""

    instance: str
    active: bool


class Snapshot(TypedDict):
    """The state of all links, topics, groups and processes at a moment."""

    at_ms: int
    """time of the snapshot"""
    epoch: int
    """offset of the state log"""
    links: list[LinkStatus]
    topics: list[TopicSnapshot]
    groups: list[GroupSnapshot]
    routers: list[RouterSnapshot]
    mirrors: list[MirrorSnapshot]
    controllers: list[ControllerSnapshot]
    progress: StatusProgress
    without_credential: list[MissingCredential]
    warnings: list[str]
    """facts about no single link"""


class Forecast(TypedDict):
    """What a topic would get, or what is left of its copy; -1 is an unknown figure."""

    disk: int
    """bytes of the copy on the target, with all replicas"""
    disk_growth: int
    """bytes by which the copy grows in an hour, with all replicas"""


class Forecasts(TypedDict):
    """The forecast of each topic, and the findings about the clusters."""

    link: str
    topics: list[Forecast]
    acls: list[str]
    source_defaults: list[str]
    broker_settings: list[str]
    rights: list[str]


class NeededRight(TypedDict):
    """An operation that kmigrate's principal needs on a cluster."""

    cluster: str
    side: Literal["source", "target"]
    principal: str
    resource: Literal["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"]
    names: list[str]
    """`*`: all topics, or all groups"""
    prefixed: bool
    """true: all names that begin with the given names"""
    operation: str
    why: str
    without: str
    """effect of the missing right; empty where no migration can do without the right"""


class AclCommand(TypedDict):
    """A command for `kafka-acls.sh`."""

    cluster: str
    optional: bool
    command: str


class NeededRights(TypedDict):
    """All rights that kmigrate needs, and the commands that give them (`--print-acls`)."""

    rights: list[NeededRight]
    commands: list[AclCommand]


class Doctor(TypedDict):
    """Findings by part: machine, configuration, cluster NAME, settings NAME → TARGET, rights NAME, routers."""

    ok: bool


class TranslatedPosition(TypedDict):
    """An offset, and its place on the other cluster."""

    offset: int
    to: int | None
    """null if the offset is not copied yet, or is beyond the barrier of a promoted topic"""
    record: bool
    """false: the next record's place"""


OffsetsTranslate = TypedDict(
    "OffsetsTranslate",
    {
        "topic": str,
        "partition": int,
        "from": str,
        "offsets": Literal["identical", "mapped"],
        "runs": int,
        "positions": list[TranslatedPosition],
    },
)
OffsetsExport = TypedDict("OffsetsExport", {"from": str, "out": str, "topics": list[str], "positions": int})


class Wait(TypedDict):
    """A condition that holds."""

    condition: str
    seconds: float
    """time until the condition held"""


# verify


class Lookup(TypedDict):
    """The outcome of a partition's look-ups by time, with the worst answer."""

    topic: str
    partition: int
    compared: int
    early: int
    late: int
    time: int
    source: int
    target: int


class Lookups(TypedDict):
    """Look-ups by time on both sides."""

    compared: int
    early: int
    """answers before the right offset: a reader reads records again"""
    late: int
    """answers behind the right offset: a reader skips records"""
    by_partition: list[Lookup]
    """the partitions that differ"""


class Stragglers(TypedDict):
    """The clients that pass the routers by."""

    at_ms: int
    stragglers: list[Passing]
    troubles: dict[str, str]
    """links whose clusters could not be asked, with the reason"""


class RecordPlace(TypedDict):
    """A record's place on a side."""

    partition: int
    offset: int


class Difference(TypedDict):
    """An example of an anomaly."""

    kind: str
    topic: str
    source: RecordPlace | None
    target: RecordPlace | None
    parts: NotRequired[list[str]]
    """the parts that differ"""
    records: NotRequired[int]
    """the number of moved records"""


class Parity(TypedDict):
    """The outcome of a comparison of source and target."""

    equal: bool
    topics: int
    records: int
    verified_before: int
    """offsets that an earlier check found equal"""
    mismatches: int
    anomalies: Mapping[str, int]
    """count by name"""
    unexamined_buckets: int
    """buckets that differ, beyond the limit of examined buckets"""
    unnamed_buckets: int
    """buckets that differ without a named anomaly"""
    by_topic: list[TopicRow]
    by_partition: list[PartitionRow]
    by_time: list[TimeStep]
    """at most 60 steps"""
    time_lookups: Lookups
    examples: list[Difference]
    seconds: Mapping[str, float]
    """duration of each stage"""


class GroupCheck(TypedDict):
    """The committed offsets of a promoted group."""

    group: str
    positions: int
    """number of compared positions"""
    findings: list[MovedPosition]
    sound: bool


class Verify(Parity):
    """The outcome of `verify`."""

    link: str
    groups: list[GroupCheck]
    late: list[LateRecords]
    files: Mapping[str, str]
    """reports by kind"""


class PromoteNotEqual(TypedDict):
    """The document of `promote --verify` if the copy differs: nothing was promoted."""

    link: str
    topics: list[str]
    parity: Parity


class Following(TypedDict):
    """The first line of `verify --follow`."""

    event: Literal["following"]
    link: str


class ComparedPartition(TypedDict):
    """A partition's range in a round."""

    topic: str
    partition: int
    start: int
    end: int
    equal: bool


class Compared(TypedDict):
    """A round of `verify --follow`."""

    event: Literal["compared"]
    at_ms: int
    link: str
    equal: bool
    records: int
    mismatches: int
    anomalies: Mapping[str, int]
    unexamined_buckets: int
    unnamed_buckets: int
    examples: list[Difference]
    partitions: list[ComparedPartition]
    seconds: float


class NotCompared(Error):
    """A round of `verify --follow` that failed; the round is tried again."""

    event: Literal["not-compared"]


class DifferingPartition(TypedDict):
    """A partition with a difference."""

    topic: str
    partition: int


class FollowEnded(TypedDict):
    """The last line of `verify --follow`."""

    event: Literal["ended"]
    link: str
    equal: bool
    rounds: int
    records: int
    mismatches: int
    differing: list[DifferingPartition]


# init and guide


class AnsweredCluster(TypedDict):
    """A cluster of a new configuration."""

    name: str
    bootstrap: str
    answer: Mapping[str, Any] | None
    """cluster_id, brokers, version and topics; null if the cluster was not asked"""
    left_out: list[str]
    """properties that the configuration does not take"""


class Init(TypedDict):
    """A new configuration."""

    config: str
    """the file"""
    written: list[str]
    """the written files; empty with `--plan`"""
    clusters: Mapping[str, AnsweredCluster]
    """source and target"""
    router: Mapping[str, Any]
    link: str
    text: str
    """text of the file; user names are hidden"""
    next: list[str]
    """commands"""


class GuidedStep(TypedDict):
    """A step of the guide."""

    step: int
    title: str
    command: str
    does: Mapping[str, Any]
    """the keys of the step in a playbook"""
    result: NotRequired[Mapping[str, Any]]
    """once the step has run"""


class Guide(TypedDict):
    """What the guide found; later parts are there as far as the guide came."""

    standing: Mapping[str, Any]
    """where the migration stands"""
    next: Mapping[str, Any]
    """stage, what, command"""
    source: NotRequired[Mapping[str, Any]]
    """topics and groups of the source"""
    doctor: NotRequired[Doctor]
    plan: NotRequired[Forecasts]
    steps: NotRequired[list[GuidedStep]]
    playbook: NotRequired[str | None]
    """the written file"""


# playbooks


class Step(TypedDict):
    """A step of a playbook."""

    step: int
    """number of the step"""
    kind: Literal["run", "exec", "wait", "approve"]
    what: str
    """what the step does, and under which conditions"""
    title: str
    after_failure: NotRequired[Literal[True]]
    """true of the steps of `on_failure`, which have numbers of their own"""


class PlaybookPlan(TypedDict):
    """The steps of a playbook."""

    file: str
    title: str
    variables: Mapping[str, str | float | bool | list[str]]
    """values by variable; *** stands for a secret"""
    steps: list[Step]
    on_failure: list[Step]


class CheckedPlaybook(TypedDict):
    """A playbook without a mistake."""

    file: str
    title: str
    steps: int


class PlaybookCheck(TypedDict):
    """The checked playbooks."""

    playbooks: list[CheckedPlaybook]


class ShippedPlaybook(TypedDict):
    """A playbook that comes with kmigrate."""

    name: str
    title: str
    file: str


class PlaybookList(TypedDict):
    """The playbooks that come with kmigrate."""

    playbooks: list[ShippedPlaybook]


class StepStarted(Step):
    """A step begins."""

    event: Literal["step-started"]


class StepProgress(TypedDict):
    """What a step waits for, at most once a second."""

    event: Literal["progress"]
    step: int
    text: str


class TryFailed(Step):
    """A step failed and is tried again."""

    event: Literal["try-failed"]
    error: str
    """reference of the error"""
    left: int
    """tries that are left"""


class StepEnded(Step):
    """A step ended."""

    event: Literal["step-ended"]
    outcome: Literal["done", "nothing to do", "skipped"]
    seconds: float
    result: Mapping[str, Any]
    """the verb's own document"""


class PlaybookEnded(TypedDict):
    """The last line of a playbook that ran to its end."""

    event: Literal["playbook-ended"]
    file: str
    steps: int
    seconds: float


# processes


class MetricsListening(TypedDict):
    """The metrics can be read."""

    event: Literal["metrics-listening"]
    url: str


class RouterListening(TypedDict):
    """Clients can connect to the router."""

    event: Literal["router-listening"]
    name: str
    bootstrap: str


class RouterReplaced(Error):
    """Another process took the router's name."""

    event: Literal["router-replaced"]
    name: str


class MirrorEvent(TypedDict):
    """The mirror of a link began, or ended because the link is gone."""

    event: Literal["mirror-started", "mirror-dropped"]
    link: str


class MirrorFailed(Error):
    """The mirror of a link failed, and is started again."""

    event: Literal["mirror-failed"]
    link: str


class ControllerStarted(TypedDict):
    """The controller began."""

    event: Literal["controller-started"]


class ControllerFailed(Error):
    """The controller failed, and is started again."""

    event: Literal["controller-failed"]


class WorkerEvent(TypedDict):
    """A worker of a router began or ended."""

    event: Literal["worker-started", "worker-ended"]
    worker: int
    pid: int
    code: NotRequired[int | None]
    """exit code of a worker that ended"""


class PageListening(TypedDict):
    """The web page can be read."""

    event: Literal["page-listening"]
    url: str


class PageEvent(TypedDict):
    """The process of the web page began or ended."""

    event: Literal["page-started", "page-ended"]
    pid: int
    code: NotRequired[int | None]
    """exit code of a process that ended"""


class LinesLeftOut(TypedDict):
    """Lines were left out, because nobody read them."""

    event: Literal["not-told"]
    lines: int


class Stopped(TypedDict):
    """The process ended."""

    event: Literal["stopped"]


# sandbox


class SandboxServer(TypedDict):
    """A broker's process, or the ZooKeeper's."""

    node: int
    port: int
    pid: int | None
    alive: bool


class SandboxCluster(TypedDict):
    """A cluster of the sandbox."""

    name: str
    version: str
    bootstrap: str
    cluster_id: str
    brokers: list[SandboxServer]
    zookeeper: SandboxServer | None
    """null if the version needs no ZooKeeper"""


class Sandbox(TypedDict):
    """The processes of the sandbox."""

    state: Literal["running", "partly", "ended"]
    folder: str
    clusters: list[SandboxCluster]


class SandboxUp(Sandbox):
    """The sandbox, and its configuration."""

    router: str
    """host:port at which the router will listen"""
    config: str
    next: str


class SandboxDown(TypedDict):
    """The sandbox is gone."""

    state: Literal["down"]
    ended_clients: list[str]


class TrafficStarted(TypedDict):
    """The started clients."""

    started: list[str]
    bootstrap: str


class TrafficRolled(TypedDict):
    """The restarted clients."""

    rolled: list[str]
    bootstrap: str


class Behind(TypedDict):
    """A partition that a group had not read to its end."""

    group: str
    topic: str
    partition: int
    offsets: int


class TrafficStopped(TypedDict):
    """What the readers had not read, and the joined history once all clients have stopped."""

    behind: list[Behind]
    events: NotRequired[int]
    history: NotRequired[str]


class Moved(TypedDict):
    """The figures of a topic that the demo moved."""

    partitions: int
    phase: str
    offsets: str
    target_offsets: int


class Demo(TypedDict):
    """The report of the demo."""

    clean: bool
    """true if no anomaly but `group_rereads` was found, all offsets are identical, and the check found no mismatch"""
    missed: list[str]
    """with `--families`: limits of the producers' wait that the run reached; exit code 1"""
    acked: int
    """acknowledged records of live producers"""
    preloaded: int
    """records from before the start"""
    examples: Mapping[str, list[str]]
    """examples by anomaly"""
    offsets_identical: bool
    """whether every offset is the same on both clusters"""
    producer_pause_ms: Millis
    router_hold_ms: Millis
    baseline_ack_ms: Millis
    consumer_gap_ms: Millis
    consumer_gap_live_ms: Millis
    """gaps of consumers in topics that producers wrote to all the time"""
    group_gap_ms: Mapping[str, float]
    """the longest such gap by group"""
    transaction_pause_ms: Millis | None
    baseline_transaction_ms: Millis
    parity: ParitySummary
    moved: Mapping[str, Moved]
    """figures by topic"""
    seconds: float


_CHANGES: tuple[type, ...] = (Plan,)
_PROCESS: tuple[type, ...] = (
    MetricsListening,
    RouterListening,
    RouterReplaced,
    MirrorEvent,
    MirrorFailed,
    ControllerStarted,
    ControllerFailed,
    WorkerEvent,
    PageListening,
    PageEvent,
    LinesLeftOut,
    Stopped,
)

COMMANDS: Mapping[str, tuple[type, ...]] = {
    "init": (Init,),
    "guide": (Guide, GuidedStep),
    "doctor": (Doctor, NeededRights),
    "plan": (Forecasts, NeededRights),
    "link create": _CHANGES,
    "link alter": _CHANGES,
    "link list": (LinkList,),
    "link show": (LinkShow,),
    "link check": _CHANGES,
    "link throttle": _CHANGES,
    "link delete": _CHANGES,
    "link finish": (LinkFinish,),
    "topic mirror": (TopicMirror,),
    "topic pause": _CHANGES,
    "topic resume": _CHANGES,
    "topic forget": _CHANGES,
    "topic list": (TopicList,),
    "topic show": (TopicShow,),
    "topic patterns": (Patterns, Plan),
    "group mirror": _CHANGES,
    "group promote": (GroupPromote,),
    "group rollback": (GroupRollback,),
    "group forget": _CHANGES,
    "group list": (GroupList,),
    "group show": (GroupShow,),
    "group patterns": (Patterns, Plan),
    "promote": (Promote, PromoteNotEqual),
    "report list": (ReportList,),
    "report show": (Report,),
    "report export": (ReportExport,),
    "rollback": (Rollback, TargetLost),
    "rehearse": (Plan, Rehearsal, NeededRights),
    "status": (Snapshot,),
    "stragglers": (Stragglers,),
    "wait": (Wait,),
    "verify": (Verify, Following, Compared, NotCompared, FollowEnded),
    "offsets translate": (OffsetsTranslate,),
    "offsets export": (OffsetsExport,),
    "playbook check": (PlaybookCheck,),
    "playbook list": (PlaybookList,),
    "playbook plan": (PlaybookPlan,),
    "playbook run": (PlaybookPlan, StepStarted, StepProgress, TryFailed, StepEnded, PlaybookEnded),
    "explain": (Explanation, Explanations),
    "run": _PROCESS,
    "mirror run": _PROCESS,
    "router run": _PROCESS,
    "router forget": _CHANGES,
    "controller run": _PROCESS,
    "sandbox up": (SandboxUp,),
    "sandbox status": (Sandbox,),
    "sandbox down": (SandboxDown,),
    "sandbox demo": (Demo,),
    "sandbox traffic start": (TrafficStarted,),
    "sandbox traffic roll": (TrafficRolled,),
    "sandbox traffic stop": (TrafficStopped,),
}
"""The documents of each command; a command that prints a line per event has several."""

MERGED: Mapping[type, tuple[type, ...]] = {
    TopicState: (TopicRecord,),
    PromotedTopic: (TopicRecord,),
    RolledBackTopic: (TopicRecord,),
    TopicShow: (TopicRecord,),
    GroupState: (GroupRecord,),
    TopicSnapshot: (TopicStatus,),
    RouterSnapshot: (RouterRecord,),
    GroupSnapshot: (GroupStatus,),
    OneGroup: (GroupStatus,),
    GroupPartition: (PartitionDetail,),
    StatusProgress: (TopicProgress,),
    LinkProgress: (TopicProgress,),
    TopicsProgress: (TopicProgress,),
    GroupsProgress: (GroupProgress,),
    Forecast: (TopicForecast,),
    Report: (ReportRecord,),
    RehearsalResult: (Rehearsed,),
    SourcePartition: (PartitionAtSource,),
}
"""Dataclasses whose fields a document has beside its own."""
