"""Refuses loops: a topic that is copied from A to B is not copied back to A.

Topics keep their names: only a cluster's own state log says what is copied to that cluster, and from where.
"""

from __future__ import annotations

from collections.abc import Collection

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.records import ClusterRef
from kmigrate.state.read import read_state
from kmigrate.workflow.base.plan import Finding, refuse, warn

__all__ = ["copied_back_by", "loop_findings"]


async def loop_findings(source: ClusterClient, target: ClusterClient, topics: Collection[str]) -> list[Finding]:
    """Return a refusal for each topic that a mirror copies from the target to the source."""
    try:
        state = await read_state(source)
    except KmigrateError as error:
        return [
            warn(
                "source-state-unread",
                f"the source keeps a state log that cannot be read: whether these topics are copied to it from "
                f"{target.settings.name} is not known ({error.what})",
                f"give READ on topic __kmigrate_state of {source.settings.name}, or make sure of it yourself",
            )
        ]
    if state is None:
        return []
    back = {link.name for link in state.links() if _is(link.source, target)}
    return [
        refuse(
            "mirror-loop",
            f"topic {record.topic} is copied from {target.settings.name} to {source.settings.name} (link "
            f"{record.link}): copied back, its records would go round in circles",
            "promote it there first, or leave it to that link",
        )
        for record in state.topics(forgotten=True)
        if record.link in back and record.topic in topics and (record.copied_back or not record.at_target)
    ]


async def copied_back_by(source: ClusterClient, target: ClusterClient, topic: str) -> str:
    """Return the link that copies, or has copied, a topic from the target to the source; '' where none is known."""
    try:
        state = await read_state(source)
    except KmigrateError:
        return ""
    for record in state.topics(forgotten=True) if state is not None else ():
        link = state.link(record.link) if state is not None and record.topic == topic else None
        if link is not None and _is(link.source, target):
            return link.name
    return ""


def _is(ref: ClusterRef, cluster: ClusterClient) -> bool:
    """Return True if a link's end is that cluster: by cluster id, else by a common bootstrap address."""
    if ref.cluster_id:
        return ref.cluster_id == cluster.metadata.cluster_id
    return bool(set(cluster.settings.bootstrap_servers.split(",")) & set(ref.bootstrap.split(",")))
