"""Chooses the engine that copies a topic while the topic is mirrored.

The engines are the mirror processes, and Spark's tasks, which hand the topic over to the mirror processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kmigrate.model.lifecycle import PROMOTING, TopicPhase
from kmigrate.model.records import CopyEngine, TopicRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, refuse
from kmigrate.workflow.verbs.links import resolve_link
from kmigrate.workflow.verbs.proposal import Judged, Proposal, propose

__all__ = ["set_engine"]


async def set_engine(
    connections: Connections, link_name: str | None, topics: Sequence[str], engine: CopyEngine
) -> Proposal:
    """Propose the engine that shall copy these topics; the present engine lets go, and the other engine begins."""
    link = resolve_link(connections.log.state, link_name)
    judged = Judged.topics(
        "topic mirror", link.name, partial(_guard, engine), lambda record: replace(record, engine=engine)
    )
    records, found = judged.look(connections.log.state, topics)
    writes = [
        (f"{topic} is copied by the {engine} engine", judged.write(topic))
        for topic, record in records.items()
        if record.engine is not engine
    ]
    return propose(connections.log, judged.verb, found, writes)


def _guard(engine: CopyEngine, record: TopicRecord) -> Finding | None:
    topic = record.topic
    if engine is CopyEngine.DAEMON:
        return None
    if record.phase is TopicPhase.PROMOTED:
        return ok("already-promoted", f"topic {topic} is promoted: nothing is copied now")
    if record.mapped:
        return refuse(
            "mapped-by-daemon",
            f"topic {topic} has mapped offsets, which have one writer: the mirror process that leads the link",
            "leave out --engine",
        )
    if record.phase in PROMOTING:
        return refuse("not-mirroring", f"topic {topic} is {record.phase}: near its promote the daemon copies")
    return None
