"""Answers that only a partition's leader can give: waits that end when another broker leads, and log ends with proof.

A leader that stands still, or whose responses get lost, is replaced within seconds, and never tells the waiting client.
So other brokers are asked who leads, until an answer arrives.

A leader that is cut off from its controller, or that stood still, goes on to answer as leader while another leader
takes records. Asked for its log end (replica id −2), even a former leader that has become a follower answers without an
error, under the new leader's epoch. So every request names the leader epoch that we know, and goes to all replicas.
Seen on 2.8.2, 3.9.1 and 4.3.1:
A  If the leader in metadata answers under its epoch without an error, this broker is the only leader of that epoch.
B  A replica that knows a later epoch refuses (FENCED_LEADER_EPOCH): another leader has been elected. A replica that
   does not know even this epoch refuses, too (UNKNOWN_LEADER_EPOCH), and leads no later epoch.
C  Without an unclean election the next leader is a replica in sync, and knows of its leadership before it takes a
   record. So if each replica in sync knows no later epoch, no acknowledged record is missing at the leader. Without all
   their answers nothing is proven (REPLICA_NOT_AVAILABLE). A dead broker stays in sync for seconds, until the cluster
   removes that broker; writes with acks=all wait for the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from kmigrate.cluster.client import LATEST, LOG_END, ClusterClient, LogOffset
from kmigrate.cluster.metadata import PartitionInfo
from kmigrate.cluster.requests import NO_LEADER
from kmigrate.errors import Failed, Refused, Unreachable
from kmigrate.net.retry import every
from kmigrate.net.tasks import TaskOwner, watched
from kmigrate.protocol.codes import Code

__all__ = ["known_leader", "refuse_unwitnessed", "while_it_leads", "witnessed_ends"]

_T = TypeVar("_T")
_PATIENCE_S = 5.0
"""Seconds for an answer, before another broker is asked who leads; a slow leader is still waited for."""


async def while_it_leads(client: ClusterClient, topic: str, partition: int, asking: Coroutine[Any, Any, _T]) -> _T:
    """Return the leader's answer; raise Unreachable as soon as another broker leads and there is no answer."""
    node = client.leader(topic, partition)
    address = _address(client, node)
    answer = await watched(asking, _PATIENCE_S, partial(_until_another_leads, client, topic, partition, node, address))
    if address in client.health:
        client.health.heard(address)
    return answer


async def known_leader(client: ClusterClient, topic: str, partition: int) -> int:
    """Return the node id of a partition's leader; raise Unreachable if there is no leader now."""
    node = client.leader(topic, partition)
    if node < 0:
        await client.refresh([topic])
        node = client.leader(topic, partition)
    if node < 0:
        raise Unreachable("no-leader", f"{topic}-{partition} has no leader now")
    return node


def _address(client: ClusterClient, node: int) -> str:
    return "{}:{}".format(*client.metadata.brokers.get(node, ("", -1)))


async def _until_another_leads(client: ClusterClient, topic: str, partition: int, node: int, address: str) -> None:
    async for _ in every(_PATIENCE_S, at_once=True):
        if node >= 0:
            client.health.note(address)
        try:
            await client.refresh([topic])
        except Failed:
            continue
        leader = client.leader(topic, partition)
        if node < 0:  # no leader was known when the request was made: the first known leader got the request
            node, address = leader, _address(client, leader)
        elif leader not in (-1, node):
            raise Unreachable("leader-moved", f"{address}, which led {topic}-{partition}, did not answer any more")


_REPLICA_PATIENCE_S = 1.0
"""Seconds for the other replicas, once the leaders have answered."""
_NO_LATER_LEADER = frozenset({0, Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_LEADER_EPOCH})

_Key = tuple[str, int]
_Answers = Mapping[int, Mapping[_Key, LogOffset]]
"""Answers by broker; a broker that has not answered is missing."""


async def witnessed_ends(client: ClusterClient, keys: Iterable[_Key]) -> dict[_Key, LogOffset]:
    """Return the log ends of partitions under their known leaders; an error if the leadership is not proven.

    Ask replicas that know a later leader for metadata: the next request goes there. Raise Failed for a silent leader.
    """
    asked = list(keys)
    unknown = {topic for topic, partition in asked if client.leader(topic, partition) < 0}
    if unknown:
        await client.refresh(unknown)
    parts = {key: part for key in asked if (part := client.metadata.partition(*key)) is not None and part.leader >= 0}
    answers = await _ask_replicas(client, parts)
    for node, topic in {(node, key[0]) for node, ends in answers.items() for key, end in ends.items() if _later(end)}:
        await client.topic_at(node, topic)
    judged = {key: _judged(key, part, answers) for key, part in parts.items()}
    unheard = {key for key, end in judged.items() if end.error == Code.REPLICA_NOT_AVAILABLE}
    # A broker that has just left or died may have been removed from the replicas in sync since the last metadata.
    if unheard:
        await client.refresh({topic for topic, _ in unheard})
        for key in unheard:
            now = client.metadata.partition(*key)
            if now is not None and now.leader_epoch == parts[key].leader_epoch:
                judged[key] = _judged(key, now, answers)
    return {key: judged.get(key, NO_LEADER) for key in asked}


def refuse_unwitnessed(client: ClusterClient, ends: Mapping[_Key, LogOffset]) -> None:
    """Raise Refused if nobody can say whether another broker leads by now (C)."""
    for (topic, partition), end in ends.items():
        if end.error == Code.REPLICA_NOT_AVAILABLE:
            part = client.metadata.partition(topic, partition)
            nodes = ", ".join(map(str, part.in_sync)) if part is not None else "?"
            raise Refused(
                "leader-unproven",
                f"of the brokers of {client.settings.name} that are in sync for {topic}-{partition} ({nodes}), one did "
                "not answer whether another leads it by now",
            )


async def _ask_replicas(client: ClusterClient, parts: Mapping[_Key, PartitionInfo]) -> _Answers:
    """Return the replicas' answers; wait `_REPLICA_PATIENCE_S` for replicas that lead none of these partitions."""
    hosted: dict[int, dict[_Key, int]] = {}
    for key, part in parts.items():
        for node in {part.leader, *part.replicas}:
            if node == part.leader or node in client.metadata.brokers:
                hosted.setdefault(node, {})[key] = LATEST
    epochs = {key: part.leader_epoch for key, part in parts.items()}
    tasks = TaskOwner()
    try:
        asked = {
            node: tasks.start(client.list_offsets_at(node, theirs, epochs=epochs, replica_id=LOG_END))
            for node, theirs in hosted.items()
        }
        leading = {part.leader for part in parts.values()}
        answers = {node: await asked[node] for node in leading}
        others = {task: node for node, task in asked.items() if node not in leading}
        if others:
            done, _ = await asyncio.wait(others, timeout=_REPLICA_PATIENCE_S)
            answers |= {others[task]: task.result() for task in done if not isinstance(task.exception(), Failed)}
        return answers
    finally:
        await tasks.close()


def _later(end: LogOffset) -> bool:
    return end.error == Code.FENCED_LEADER_EPOCH


def _judged(key: _Key, part: PartitionInfo, answers: _Answers) -> LogOffset:
    by_node = {node: ends[key] for node, ends in answers.items() if key in ends}
    end = by_node.get(part.leader, NO_LEADER)
    if end.error:
        return end
    if any(map(_later, by_node.values())):
        return LogOffset(Code.FENCED_LEADER_EPOCH, -1, -1)
    if all(node in by_node and by_node[node].error in _NO_LATER_LEADER for node in part.in_sync):
        return end
    return LogOffset(Code.REPLICA_NOT_AVAILABLE, -1, -1)
