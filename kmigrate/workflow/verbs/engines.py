"""Chooses the engine that copies a topic while the topic is mirrored.

The engines are the mirror processes, and Spark's tasks, which hand the topic over to the mirror processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kmigrate.model.lifecycle import PROMOTING, TopicPhase
from kmigrate.model.records import CopyEngine, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan
from kmigrate.workflow.base.writes import write_each
from kmigrate.workflow.verbs.links import resolve_link

__all__ = ["set_engine"]


async def set_engine(
    connections: Connections, link_name: str | None, topics: Sequence[str], engine: CopyEngine, *, plan: bool = False
) -> Plan:
    """Write the engine that shall copy these topics; the present engine lets go, and the other engine begins."""
    link = resolve_link(connections.log.state, link_name)
    found: list[Finding] = []
    changed: list[str] = []
    for topic in dict.fromkeys(topics):
        record = connections.log.state.topic(link.name, topic)
        finding = _guard(link.name, topic, record, engine)
        if finding is not None:
            found.append(finding)
        elif record is not None and record.engine is not engine:
            changed.append(topic)
    made = Plan.of("topic mirror", [f"{topic} is copied by the {engine} engine" for topic in changed], found)
    made.refuse()
    if plan:
        return made

    def decide(topic: str, state: State) -> TopicRecord | None:
        record = state.topic(link.name, topic)
        finding = _guard(link.name, topic, record, engine)
        if finding is not None:
            Plan.of("topic mirror", [], [finding]).refuse()
            return None
        return None if record is None or record.engine is engine else replace(record, engine=engine)

    await write_each(connections.log, zip(made.changes, (partial(decide, topic) for topic in changed), strict=True))
    return made.done()


def _guard(link: str, topic: str, record: TopicRecord | None, engine: CopyEngine) -> Finding | None:
    if record is None:
        mirror = advised("topic mirror", link, topic)
        return Finding("refuse", "not-mirrored", f"topic {topic} is not mirrored by link {link}", mirror)
    if engine is CopyEngine.DAEMON:
        return None
    if record.phase is TopicPhase.PROMOTED:
        return Finding("ok", "already-promoted", f"topic {topic} is promoted: nothing is copied now")
    if record.mapped:
        return Finding(
            "refuse",
            "mapped-by-daemon",
            f"topic {topic} has mapped offsets, which have one writer: the mirror process that leads the link",
            "leave out --engine",
        )
    if record.phase in PROMOTING:
        return Finding(
            "refuse", "not-mirroring", f"topic {topic} is {record.phase}: near its promote the daemon copies"
        )
    return None
