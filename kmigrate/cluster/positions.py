"""Committed positions of a group, read by wire, and written by wire while it has no members.

confluent-kafka cannot do it (C8): it sends a metadata string with a zero byte behind it, and Kafka Streams, which keeps
its own state there, cannot read that any more; and it reads one up to the next zero byte, wherever that may be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Unreachable
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.api import element_type, entity
from kmigrate.protocol.codes import Code, code_of, row

__all__ = ["CommittedOffset", "read_positions", "write_positions"]

_COMMIT = entity(8, 8, "request")
_FETCH = entity(9, 7, "request")
_ELSEWHERE = frozenset(
    {Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE}
)
_PAUSE_S = 0.1
_FRESH_S = 1.5
"""How old a word may be by which positions are written: nobody else takes over sooner, and lets a group read on."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position; the metadata string is carried verbatim (C8), the leader epoch never (C1)."""

    offset: int
    metadata: str


async def write_positions(
    client: ClusterClient,
    group: str,
    positions: Mapping[tuple[str, int], CommittedOffset],
    allowed: Callable[[], Awaitable[None]],
) -> dict[tuple[str, int], str]:
    """Commit positions with leader epoch −1 (C1, V5); the error by partition.

    Kafka takes a commit to a group without members from anybody, however late it comes. So `allowed`, which raises
    where it may be written no more, has the last word before each try, with the connection open: of a process that
    stands still after it, none but what it sends in the same moment is ever late.
    """
    if not positions:
        return {}
    topic_type = element_type(_COMMIT, "topics")
    part_type = element_type(topic_type, "partitions")
    topics: dict[str, list[object]] = {}
    for (topic, partition), one in positions.items():
        part = part_type(
            partition_index=partition,
            committed_offset=one.offset,
            committed_leader_epoch=-1,
            committed_metadata=one.metadata,
        )
        topics.setdefault(topic, []).append(part)
    request = _COMMIT(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=tuple(topic_type(name=name, partitions=tuple(parts)) for name, parts in topics.items()),
    )
    deadline = monotonic() + client.settings.request_timeout_s
    while True:
        node = await client.find_coordinator(group)
        await client.connection(node)
        asked = monotonic()
        await allowed()
        if monotonic() - asked > _FRESH_S or not client.is_open(node, "control"):
            if monotonic() > deadline:
                what = f"whether group {group} may be written is not told in {_FRESH_S:g} s, on a connection that lasts"
                raise Unreachable("word-too-old", what)
            continue
        answer = await client.call(request, node)
        codes = {
            (str(topic.name), int(part.partition_index)): code_of(part.error_code)
            for topic in answer.topics
            for part in topic.partitions
        }
        failed = {key: code for key in positions if (code := codes.get(key, Code.UNKNOWN_SERVER_ERROR))}
        if not _ELSEWHERE & set(failed.values()) or monotonic() > deadline:
            return {key: row(code).name for key, code in failed.items()}
        await sleep(_PAUSE_S)  # the group's coordinator has just moved, or is not loaded yet: nothing was written


async def read_positions(
    client: ClusterClient, group: str, timeout: float | None = None, *, stable: bool = True
) -> dict[tuple[str, int], CommittedOffset]:
    """A group's committed positions, of every topic that we may see; none of a group that is not known.

    With `stable` once no transaction has any pending (C12). Within `timeout` seconds, or a request's usual time.
    """
    deadline = monotonic() + (client.settings.request_timeout_s if timeout is None else timeout)
    request = _FETCH(group_id=group, topics=None, require_stable=stable)
    while True:
        answer = await client.call(request, await client.find_coordinator(group))
        codes = [code_of(answer.error_code)]
        codes += [code_of(part.error_code) for topic in answer.topics for part in topic.partitions]
        failed = next(filter(None, codes), 0)
        if not failed:
            break
        client.retry_or_raise(f"OffsetFetch of group {group}", failed, deadline)
        await sleep(_PAUSE_S)
    return {
        (str(topic.name), int(part.partition_index)): CommittedOffset(int(part.committed_offset), part.metadata or "")
        for topic in answer.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }
