"""Committed offsets of a group, read over the wire, and written over the wire while the group has no members.

confluent-kafka ends a metadata string with a zero byte (C8), with which Kafka Streams cannot read its own state in the
string. Besides, confluent-kafka reads a metadata string only up to the first zero byte.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient, api_versions, until_answered
from kmigrate.cluster.coordinators import Answers, ask_coordinators, one_by_one
from kmigrate.cluster.requests import Key, partitions_of, topics_of
from kmigrate.errors import Failed, Unreachable
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.protocol.api import ApiKey, Message, element_type, entity
from kmigrate.protocol.codes import Code, code_of, row

__all__ = ["Committed", "CommittedOffset", "read_all_positions", "read_positions", "write_positions"]

_COMMIT = entity(ApiKey.OFFSET_COMMIT, 8, "request")
_FETCH = entity(ApiKey.OFFSET_FETCH, 7, "request")
_FETCH_MANY = entity(ApiKey.OFFSET_FETCH, 8, "request")
"""The first version that takes many groups (KIP-709)."""
_ELSEWHERE = frozenset({Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE})
_PAUSE_S = 0.1
_FRESH_S = 1.5
"""Greatest age in s of the permission to write committed offsets: no other process lets a group read on so soon."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset; the metadata string is carried verbatim (C8), the leader epoch never (C1)."""

    offset: int
    metadata: str


Committed = dict[Key, CommittedOffset]
"""The committed offsets of a group, by topic and partition."""


async def write_positions(
    client: ClusterClient,
    group: str,
    positions: Mapping[Key, CommittedOffset],
    allowed: Callable[[], Awaitable[None]],
) -> dict[Key, str]:
    """Commit offsets with leader epoch −1 (C1, V5); return the error by partition.

    Kafka accepts any late commit to a group without members from anybody. So `allowed` (raises if the group must not be
    written) is awaited last before each try, with the connection open: only the next request can be late.
    """
    if not positions:
        return {}
    fields = {
        key: {"committed_offset": one.offset, "committed_leader_epoch": -1, "committed_metadata": one.metadata}
        for key, one in positions.items()
    }
    request = _COMMIT(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=topics_of(_COMMIT, fields),
    )
    tries = Backoff(_PAUSE_S, within_s=client.settings.request_timeout_s)
    while True:
        node = await client.find_coordinator(group)
        await client.connection(node)
        asked = monotonic()
        await allowed()
        if monotonic() - asked > _FRESH_S or not client.is_open(node, "control"):
            if tries.over:
                what = f"whether group {group} may be written is not told in {_FRESH_S:g} s, on a connection that lasts"
                raise Unreachable("permission-too-old", what)
            continue
        answer = await client.call(request, node)
        codes = {key: code_of(part.error_code) for key, part in partitions_of(answer)}
        failed = {key: code for key in positions if (code := codes.get(key, Code.UNKNOWN_SERVER_ERROR))}
        if not _ELSEWHERE & set(failed.values()) or tries.over:
            return {key: row(code).name for key, code in failed.items()}
        await tries.pause()  # the coordinator has just moved, or is still loading: nothing was written


async def read_positions(
    client: ClusterClient, group: str, timeout: float | None = None, *, stable: bool = True
) -> Committed:
    """Return a group's committed offsets of every visible topic; an unknown group has none.

    With `stable`, wait until no transaction has pending offsets (C12), for `timeout` s or a request's usual time.
    """
    request = _FETCH(group_id=group, topics=None, require_stable=stable)

    async def ask() -> Message:
        return await client.call(request, await client.find_coordinator(group))

    answer = await until_answered(client, f"OffsetFetch of group {group}", ask, _code, within_s=timeout)
    return _committed(answer)


async def read_all_positions(client: ClusterClient, groups: Iterable[str]) -> dict[str, Committed | Failed]:
    """Return the committed offsets of each group, without those that open transactions have pending."""
    many = element_type(_FETCH_MANY, "groups")
    newest: dict[int, int] = {}

    async def ask(node: int, asked: Sequence[str]) -> Answers[Committed]:
        if node not in newest:
            newest[node] = (await api_versions(client, node)).get(ApiKey.OFFSET_FETCH, 0)
        if newest[node] < _FETCH_MANY.__version__:
            return await one_by_one(asked, lambda group: alone(node, group))
        named = tuple(many(group_id=group, topics=None) for group in asked)
        answer = await client.call(_FETCH_MANY(groups=named, require_stable=False), node)
        return {str(each.group_id): _outcome(each) for each in answer.groups}

    async def alone(node: int, group: str) -> tuple[int, Committed | None]:
        return _outcome(await client.call(_FETCH(group_id=group, topics=None, require_stable=False), node))

    return await ask_coordinators(client, groups, ask, what="OffsetFetch")


def _outcome(answer: Message) -> tuple[int, Committed | None]:
    code = _code(answer)
    return code, None if code else _committed(answer)


def _code(answer: Message) -> int:
    """Return the first error of a group's answer, or of a partition in the answer."""
    parts = (part for _, part in partitions_of(answer))
    return next(filter(None, (code_of(each.error_code) for each in (answer, *parts))), 0)


def _committed(answer: Message) -> Committed:
    return {
        key: CommittedOffset(int(part.committed_offset), part.metadata or "")
        for key, part in partitions_of(answer)
        if part.committed_offset >= 0
    }
