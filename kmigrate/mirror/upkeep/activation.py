"""Preparation of a link before the copy: check both clusters, get a producer id, lengthen producer expiration.

Every step is in the state log before it takes effect. The producer id is written exactly one time (append rule). The
former `producer.id.expiration.ms` is kept, to be restored when the link ends (W1).
"""

from __future__ import annotations

from dataclasses import replace

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import PRODUCER_EXPIRATION, ClusterClient
from kmigrate.cluster.producer_expiration import RAISED_EXPIRATION, lengthen_memory, producer_memory
from kmigrate.errors import Refused
from kmigrate.mirror.link import MirroredLink
from kmigrate.model.records import ClusterRef, CopyIdentity, LinkRecord
from kmigrate.model.state import State
from kmigrate.state.checks import refuse_same_cluster

__all__ = ["NOT_RAISED", "activate", "remembers_long", "request_limit"]

_MOST_BROKERS = 50
"""Maximum number of broker addresses that a link's record keeps of each cluster."""
NOT_RAISED = f"{PRODUCER_EXPIRATION} is left as it is ([mirror] raise_producer_expiration)"


async def activate(mirrored: MirroredLink) -> str:
    """Check and complete the link's record; return why the target forgets producers too early for pipelining, or ''.

    The target's expiration stays unchanged if the settings say so, or if the link is finished and copies nothing more.
    """
    link, source, target = mirrored.record, mirrored.source, mirrored.target
    if link is None:
        return ""
    source_ref = await _checked(source, link.source)
    target_ref = await _checked(target, link.target)
    await refuse_same_cluster(source, target)
    identity = link.copy
    if identity is None:
        identity = CopyIdentity(*await target.init_producer_id())
    now = await producer_memory(target, mirrored.target_admin)
    raises = mirrored.settings.raise_expiration and not link.finished_ms

    def decide(state: State) -> LinkRecord | None:
        current = state.link(mirrored.name)
        if current is None:
            return None
        former = _to_restore(now, state) if raises else None
        completed = replace(
            current,
            source=source_ref,
            target=target_ref,
            copy=current.copy or identity,
            restore_expiration=former if current.restore_expiration is None else current.restore_expiration,
        )
        return None if completed == current else completed

    await mirrored.log.append(decide)
    if raises:
        return await lengthen_memory(target, now)
    return "" if link.finished_ms or (now is not None and now.value == RAISED_EXPIRATION) else NOT_RAISED


def _to_restore(now: ConfigValue | None, state: State) -> str | None:
    """Return the default to restore once the last link ends: '' if none was set, None if there is nothing to raise.

    A link that raised the setting has the former value; otherwise the present value is the operator's own choice.
    """
    if now is None:
        return None
    if now.value == RAISED_EXPIRATION:
        known = (link.restore_expiration for link in state.links())
        return next((former for former in known if former is not None), now.value if now.own else "")
    return now.value if now.own else ""


async def _checked(client: ClusterClient, ref: ClusterRef) -> ClusterRef:
    """Return the cluster's reference with its id; raise Refused if another cluster answers."""
    found = (await client.refresh([])).cluster_id
    if ref.cluster_id and found != ref.cluster_id:
        raise Refused(
            "other-cluster",
            f"{client.settings.bootstrap_servers} answers as cluster {found}; the link was made with "
            f"{ref.name}, cluster {ref.cluster_id}",
            still_true="nothing was copied or changed",
            next_step=f"correct the bootstrap address of [clusters.{ref.name}] in kmigrate.toml",
        )
    addresses = sorted(f"{host}:{port}" for host, port in client.metadata.brokers.values())
    return replace(ref, cluster_id=found, brokers=ref.brokers or tuple(addresses[:_MOST_BROKERS]))


async def remembers_long(target: ClusterClient, admin: Admin) -> bool:
    """Return whether the target keeps producer state for the longest possible time (W1)."""
    now = await producer_memory(target, admin)
    return now is not None and now.value == RAISED_EXPIRATION


async def request_limit(target: ClusterClient, admin: Admin) -> int:
    """Return the largest request that the target's brokers accept; Kafka's default if not reported (A6)."""
    limit = await admin.broker_config(next(iter(target.metadata.brokers)), "socket.request.max.bytes")
    return int(limit.value) if limit is not None and limit.value.isdigit() else 100 << 20
