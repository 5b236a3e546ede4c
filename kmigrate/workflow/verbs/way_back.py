"""The way back that a promote opens: what must hold for the copy to the source, and the end of a way back.

A topic that lacks something is promoted all the same, without a way back, and the plan says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.rights import read_rights
from kmigrate.cluster.transactions import (
    id_state,
    listed_ids,
    may_write_markers,
    refuse_unwritable_id,
    tells_transactions,
)
from kmigrate.errors import BrokerRefused, KmigrateError
from kmigrate.model.coupling import coupled_topics
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import SIZE_LIMIT, LinkRecord, PromoteTerms, TopicRecord
from kmigrate.model.rights import Rights, Standing
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.model.words import advised, as_words
from kmigrate.net.tasks import together
from kmigrate.state.log import Decide, StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, warn
from kmigrate.workflow.promote.denying import denials
from kmigrate.workflow.promote.rollback import MOST_ROLLBACKS
from kmigrate.workflow.promote.transactions import is_transactional, left_behind
from kmigrate.workflow.verbs.proposal import Write
from kmigrate.workflow.verbs.routers import unheard_routers

__all__ = ["denial_findings", "ending", "open_way_backs", "way_back_findings", "without_way_back"]

_BROKERS_LIMIT = "message.max.bytes"
_HOLES = "kmigrate-holes-"
"""First part of the transactional ids under which the mirror fills offsets without records."""
_TIMESTAMPS, _LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"


async def without_way_back(
    connections: Connections,
    source: ClusterClient,
    admin: Admin,
    records: Sequence[TopicRecord],
    terms: PromoteTerms,
) -> dict[str, list[str]]:
    """Return by topic why the topic is promoted without a way back; an empty list where the way back opens."""
    if not records or not terms.way_back:
        return {record.topic: [] for record in records}
    names = [record.topic for record in records]
    at_source, at_target = await together(admin.topic_configs(names), connections.target_admin.topic_configs(names))
    rights = await read_rights(source, names, ())
    default = await _size_limit(connections)
    unheard = sorted({finding.what for finding in unheard_routers(connections.log)})
    state = connections.log.state
    written = [record for record in records if is_transactional(state, record)]
    against = await _of_transactions(connections, source, written) if written else []
    final = {
        record.topic: [
            *_of_record(state, record, terms),
            *(against if record in written else ()),
            *unheard,
            *_of_configs(
                at_source.get(record.topic, {}), _limit_after(record, at_target.get(record.topic, {}), default)
            ),
            *_of_rights(record, source, rights),
        ]
        for record in records
    }
    return {topic: why or _of_unit(state, records[0].link, topic, final) for topic, why in final.items()}


def _of_unit(state: State, link: str, topic: str, final: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the topics without a way back that transactions couple with a topic: a unit goes back whole."""
    coupled = sorted(coupled_topics(state.couplings(link), [topic]))
    stays = [name for name in coupled if (final[name] if name in final else not _goes_back(state, link, name))]
    return [f"it is written in transactions together with {name}, which has no way back" for name in stays]


def _goes_back(state: State, link: str, topic: str) -> bool:
    """Return whether a topic outside the promote has a way back, or gets one by a promote that is under way."""
    record = state.topic(link, topic)
    if record is None or record.at_target:
        return record is not None and record.copied_back
    return record.terms is not None and record.terms.way_back


def _of_record(state: State, record: TopicRecord, terms: PromoteTerms) -> list[str]:
    coupled = left_behind(state, record)
    against = {
        "its offsets are mapped": record.mapped,
        coupled: bool(coupled),
        "the source stays open for other writers (--no-seal)": not terms.late.seal,
        "direct writers are accepted, so the source may hold records that the target lacks": terms.accept_direct,
        f"it was rolled back {MOST_ROLLBACKS} times": record.generation >= MOST_ROLLBACKS,
    }
    return [why for why, holds in against.items() if holds]


async def _of_transactions(
    connections: Connections, source: ClusterClient, written: Sequence[TopicRecord]
) -> list[str]:
    """Return what the copy of transactions to the source lacks: markers there, and word of open ones at the target."""
    found = []
    name = connections.target.settings.name
    if not await tells_transactions(connections.target):
        found.append(f"it is written in transactions, and {name} does not tell which are open (Kafka before 3.0)")
    elif hidden := await _hidden_id(connections, written):
        who = connections.target.settings.security.principal
        found.append(f"it is written in transactions, and {who} lacks DESCRIBE on transactional id {hidden} at {name}")
    if not await may_write_markers(source):
        try:
            await refuse_unwritable_id(source, _HOLES)
        except KmigrateError:
            who, name = source.settings.security.principal, source.settings.name
            found.append(
                f"it is written in transactions, and {who} may write no markers at {name}: ALTER or CLUSTER_ACTION on "
                f"the cluster, or WRITE on transactional ids {_HOLES}*"
            )
    return found


async def _hidden_id(connections: Connections, written: Sequence[TopicRecord]) -> str:
    """Return a transactional id of these topics that the target does not show us; '' for none."""
    topics = {record.topic for record in written}
    writers = connections.log.state.transactions(written[0].link)
    names = {each.name for each in writers if not topics.isdisjoint(each.topics)}
    for name in sorted(names - await listed_ids(connections.target))[:1]:
        try:
            await id_state(connections.target, name)
        except BrokerRefused:
            return name
    return ""


async def _size_limit(connections: Connections) -> str:
    """Return the size limit of topics of the target without a limit of their own; '' if unknown."""
    for node in sorted(connections.target.metadata.brokers):
        value = await connections.target_admin.broker_config(node, _BROKERS_LIMIT)
        return value.value if value is not None else ""
    return ""


def _limit_after(record: TopicRecord, at_target: Mapping[str, ConfigValue], default: str) -> str:
    """Return the size limit that the target topic has once its promote has settled."""
    if SIZE_LIMIT in record.restore_configs:
        return record.restore_configs[SIZE_LIMIT]
    now = at_target.get(SIZE_LIMIT)
    return default if now is None or SIZE_LIMIT in record.drop_configs else now.value


def _of_configs(at_source: Mapping[str, ConfigValue], there: str) -> list[str]:
    found = []
    if (kept := at_source.get(_TIMESTAMPS)) is not None and kept.value == _LOG_APPEND_TIME:
        found.append(f"the source sets {_TIMESTAMPS}={_LOG_APPEND_TIME}, and would give copied records its own times")
    here = at_source[SIZE_LIMIT].value if SIZE_LIMIT in at_source else ""
    if here.isdigit() and there.isdigit() and int(here) < int(there):
        found.append(f"{SIZE_LIMIT} is {int(here):,} at the source and {int(there):,} at the target")
    return found


def _of_rights(record: TopicRecord, source: ClusterClient, rights: Rights) -> list[str]:
    if rights.standing("TOPIC", "WRITE", record.topic) is not Standing.MISSING:
        return []
    who = source.settings.security.principal
    return [f"{who} lacks WRITE on the topic at {source.settings.name}"]


def way_back_findings(link: str, reasons: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Say of each topic whether its promote can be taken back, and if not, why."""
    return [
        warn(
            "no-way-back",
            f"topic {topic} is promoted without a way back: {'; '.join(why)}",
            "its promote is final; take the cause away first where the promote shall be taken back later",
        )
        if why
        else ok(
            "way-back",
            f"topic {topic} is copied back to the source after its flip, so its promote can be taken back",
            f"later: {advised('rollback', link, topic)}",
        )
        for topic, why in reasons.items()
    ]


async def denial_findings(
    source: ClusterClient, link: LinkRecord, reasons: Mapping[str, Sequence[str]], mirrors: Set[str]
) -> list[Finding]:
    """Say for each topic with a way back which writers the source refuses, or why the source goes on to take writes.

    `mirrors`: the principals of the link's mirrors at the source.
    """
    topics = [topic for topic, why in reasons.items() if not why]
    if not topics or not link.settings.deny_writers:
        return []
    try:
        found = await denials(source, topics, mirrors) or {}
    except KmigrateError as error:
        return [warn("writers-not-denied", f"who may write at {link.source.name} is not known: {error.what}")]
    by_reason: dict[str, list[str]] = {}
    for topic, denied in found.items():
        if denied.open:
            by_reason.setdefault(denied.open, []).append(topic)
    open_ = [
        warn(
            "writers-not-denied",
            f"{link.source.name} goes on to take writes of others to {', '.join(named)} after the flip: {why}",
            "a record that somebody else writes there ends the way back",
        )
        for why, named in by_reason.items()
    ]
    return open_ + [
        ok(
            "writers-denied",
            f"while topic {topic} has a way back, {denied.names} may not write it at {link.source.name}: "
            "TOPIC_AUTHORIZATION_FAILED ends most producers",
            f"where they have to go on: kmigrate link alter {as_words(link.name)} --set deny_writers=false",
        )
        for topic, denied in found.items()
        if denied.entries
    ]


def open_way_backs(state: State, link: str) -> list[TopicRecord]:
    """Return the promoted topics of a link that can be rolled back."""
    return [record for record in state.topics(link) if record.phase is TopicPhase.PROMOTED and record.copied_back]


def ending(log: StateLog, records: Sequence[TopicRecord], reason: str) -> list[Write]:
    """Return the writes that end ways back; a rollback that is under way by then keeps its way back."""
    return [(f"end the way back of {record.topic}", _ended(log, record, reason)) for record in records]


def _ended(log: StateLog, record: TopicRecord, reason: str) -> Decide:
    def decide(state: State) -> TopicRecord | None:
        now = state.topic(record.link, record.topic)
        if now is None or now.way_back is None or now.phase is not TopicPhase.PROMOTED or not now.copied_back:
            return None
        reached = {p: seen.position for p, seen in progress_of(state, now, log.alive(MirrorPresence)).items()}
        way = replace(now.way_back, ended=reason, ended_ms=log.now_ms(), ended_at=reached)
        return replace(now, way_back=way)

    return decide
