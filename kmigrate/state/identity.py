"""Distinguishes two clusters with the same cluster id, such as clones of a cluster and clusters of the same template.

The state log on the target is the proof. Another cluster lacks the state topic, has a state topic with another topic
id, or has a presence log with another end.
"""

from __future__ import annotations

from uuid import UUID

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.errors import Failed, Refused
from kmigrate.state.log import PRESENCE_TOPIC, STATE_TOPIC
from kmigrate.state.topics import refuse_untold

__all__ = ["is_other_cluster", "refuse_same_cluster"]

_NO_ID = UUID(int=0)


async def is_other_cluster(cluster: ClusterClient, target: ClusterClient) -> bool:
    """Return whether a cluster is surely another cluster than the target; both clients have read metadata."""
    if cluster.metadata.cluster_id != target.metadata.cluster_id:
        return True
    here, there = await cluster.topic(STATE_TOPIC), await target.topic(STATE_TOPIC)
    if here is not None:
        refuse_untold(cluster, here)
    if here is None or there is None:
        return here is not there
    ids = {here.topic_id, there.topic_id}
    return (len(ids) == 2 and ids.isdisjoint((None, _NO_ID))) or await _ends_elsewhere(cluster, target)


async def _ends_elsewhere(cluster: ClusterClient, target: ClusterClient) -> bool:
    """Return whether the cluster's presence log has an end that the target's presence log does not have at that time.

    Each running process of kmigrate appends to the presence log of the target twice a second.
    """
    key = (PRESENCE_TOPIC, 0)
    try:
        before = (await target.list_offsets({key: LATEST}))[key]
        here = (await cluster.list_offsets({key: LATEST}))[key]
        after = (await target.list_offsets({key: LATEST}))[key]
    except Failed:
        return False
    told = not (before.error or here.error or after.error)
    return told and not before.offset <= here.offset <= after.offset


async def refuse_same_cluster(source: ClusterClient, target: ClusterClient) -> None:
    """Raise Refused unless the source is surely another cluster than the target; both clients have read metadata."""
    if await is_other_cluster(source, target):
        return
    one, other = source.settings.name, target.settings.name
    raise Refused(
        "source-is-target",
        f"the clusters {one} and {other} have the same cluster id ({source.metadata.cluster_id}), and both show the "
        "state log of the target",
        still_true="nothing was changed",
        next_step=f"correct the bootstrap addresses of [clusters.{one}] and [clusters.{other}]. If {one} is a clone of "
        f"{other}, with a copy of the state log: repeat the command while a process of kmigrate runs for {other} "
        "(kmigrate controller run); the presence log then tells the clusters apart",
    )
