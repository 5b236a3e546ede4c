"""The look of a rehearsal: guards, the shape of each shadow topic, and the findings about the real topics."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from kmigrate.cluster.admin import ConfigValue, TopicShape
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import Refused
from kmigrate.model.nearest import name_hint
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import LinkRecord, PromoteTerms
from kmigrate.model.rehearsals import group_of, link_of, shadow_of
from kmigrate.model.state import State
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan, ok, refuse, warn
from kmigrate.workflow.base.running import START_CONTROLLER, START_ROUTER, controller_runs
from kmigrate.workflow.rehearsal.feed import Shadow
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link
from kmigrate.workflow.verbs.mirror import mirror_topics
from kmigrate.workflow.verbs.promote import promote_topics

__all__ = ["RehearsalPlan", "plan_rehearsal"]

_LONGEST = 249
"""Maximum length of a topic name of Kafka."""
_NOT_COPIED = "replication.throttled.replicas"
"""End of the names of topic configs that name brokers of the topic's own partitions."""


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """What a rehearsal makes, and what its guards have found."""

    plan: Plan
    link: LinkRecord
    """The link of the real topics."""
    name: str
    """Name of the rehearsal's link."""
    shadows: tuple[Shadow, ...]
    shapes: tuple[TopicShape, ...]
    """The shadow topics as they are created on the source."""
    real: tuple[Finding, ...]
    """Findings that the real topics' own mirror or promote would meet now, except those that are fine."""


async def plan_rehearsal(
    connections: Connections, link_name: str | None, topics: Sequence[str], who: str
) -> RehearsalPlan:
    """Look what a rehearsal of topics would make and meet; change nothing."""
    link = resolve_link(connections.log.state, link_name)
    refuse_finished(link)
    name, names = link_of(secrets.token_hex(4)), list(dict.fromkeys(topics))
    source, source_admin = await connections.source(link)
    infos = (await source.refresh(names)).topics
    known = (await source.refresh()).topics if infos.keys() < set(names) else infos
    found = [_unknown(link, topic, list(known)) for topic in names if topic not in infos]
    found += [_too_long(topic) for topic in names if len(shadow_of(name, topic)) > _LONGEST]
    found += _process_findings(connections)
    configs = await source_admin.topic_configs([topic for topic in names if topic in infos])
    found += _topic_findings(connections.log.state, link, names)
    shapes = [_shape(name, infos[topic], configs.get(topic, {})) for topic in names if topic in infos]
    changes = [
        f"store link {name}: {link.source.name} → {link.target.name}",
        *(f"create {s.name} on {link.source.name} ({s.partitions} partitions), and mirror it" for s in shapes),
        "copy new records of the real topics to their shadows, at the source first and then through the routers",
        f"promote group {group_of(name)} and the shadow topics, and compare both clusters",
        "remove all of this again",
    ]
    plan = Plan.of("rehearse", changes, found)
    plan.refuse()
    shadows = [
        Shadow(topic, shape.name, shape.partitions, "compact" in configs[topic]["cleanup.policy"].value)
        for topic, shape in zip(names, shapes, strict=True)
    ]
    real = await _real_findings(connections, link, names, who)
    return RehearsalPlan(plan, link, name, tuple(shadows), tuple(shapes), tuple(real))


def _unknown(link: LinkRecord, topic: str, known: Sequence[str]) -> Finding:
    what = f"the source {link.source.name} has no topic {topic}{name_hint(topic, known)}"
    return refuse("unknown-topic", what, "check the name: kmigrate plan lists what the source has")


def _too_long(topic: str) -> Finding:
    what = f"the name of the shadow of {topic} would have more than {_LONGEST} characters"
    return refuse("rehearsal-name-too-long", what, "rehearse with another topic")


def _process_findings(connections: Connections) -> list[Finding]:
    found = []
    if not controller_runs(connections.log):
        found.append(refuse("no-controller", "no controller process is heard of", START_CONTROLLER))
    if not any(each.bootstrap for each in connections.log.alive(RouterPresence)):
        found.append(refuse("no-router", "no router process is heard of", START_ROUTER))
    return found


def _topic_findings(state: State, link: LinkRecord, topics: Sequence[str]) -> list[Finding]:
    found = [
        refuse(
            "already-promoted",
            f"topic {topic} is promoted: nobody writes to its source, so there is no traffic to copy",
            "rehearse a topic before its promote",
        )
        for topic in topics
        if (record := state.topic(link.name, topic)) is not None and record.at_target
    ]
    transactional = {topic for each in state.transactions(link.name) for topic in each.topics} & set(topics)
    return found + [
        warn(
            "rehearsal-plain", f"{topic} is written in transactions: its shadow gets committed records as plain records"
        )
        for topic in sorted(transactional)
    ]


def _shape(link: str, info: TopicInfo, configs: dict[str, ConfigValue]) -> TopicShape:
    own = {key: each.value for key, each in configs.items() if each.own and not key.endswith(_NOT_COPIED)}
    replicas = len(info.partitions[0].replicas) if info.partitions else 1
    return TopicShape(shadow_of(link, info.name), len(info.partitions), replicas, own)


async def _real_findings(connections: Connections, link: LinkRecord, topics: Sequence[str], who: str) -> list[Finding]:
    """Return what the real topics' promote would meet now, or their mirror, where no link mirrors them yet."""
    mirrored = [topic for topic in topics if connections.log.state.topic(link.name, topic) is not None]
    new = [topic for topic in topics if topic not in mirrored]
    found: list[Finding] = []
    try:
        if new:
            found += (await mirror_topics(connections, link.name, new, "earliest", "auto")).plan.findings
    except Refused as refused:
        found += _of(refused)
    terms = PromoteTerms(now_ms(), way_back=True, asked_by=who)
    window = link.settings.straggler_window_s
    try:
        if mirrored:
            proposal = await promote_topics(connections, link.name, mirrored, terms, straggler_window_s=window)
            found += proposal.plan.findings
    except Refused as refused:
        found += _of(refused)
    return [each for each in found if each.level != "ok"]


def _of(refused: Refused) -> list[Finding]:
    """Return the findings of a refusal."""
    if not refused.findings:
        return [refuse(refused.ref, refused.what, refused.next_step)]
    return [_finding(**each) for each in refused.findings]


def _finding(level: str, ref: str, what: str, next: str) -> Finding:  # noqa: A002 the key of the JSON
    made = {"ok": ok, "warn": warn, "refuse": refuse}[level]
    return made(ref, what, next)
