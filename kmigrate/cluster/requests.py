"""Requests below the client: API versions, ListOffsets, and many questions sent as one request.

A broker that does not know a version closes the connection without a response. So the versions of a cluster are checked
before any other request. Without this check kmigrate would retry for ever.

While a broker works on a request, the next questions about partitions gather and are sent together: a thousand
partitions may ask at once, and a request each would take kmigrate and the broker seconds. Each answer comes from a
request sent after its question. Questions for a broker never wait for another broker, or fail with another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Generic, TypeVar

from kmigrate.cluster.metadata import METADATA_VERSION
from kmigrate.errors import Failed, Refused
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import API_NAMES, ApiKey, Message, decode_body, element_type, encode_body, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import response_body_offset
from kmigrate.protocol.hot import FETCH_VERSION, PRODUCE_VERSION
from kmigrate.protocol.offsets import LogOffset

__all__ = [
    "FIRST_WITH_LARGEST",
    "NO_LEADER",
    "OLDEST",
    "Key",
    "LogOffset",
    "RequestBatcher",
    "ask_for_largest",
    "ask_versions",
    "newest_versions",
    "offsets_in",
    "partitions_of",
    "refuse_too_old",
    "topics_of",
]

Key = tuple[str, int]
"""Topic and partition."""
OLDEST = "2.8"
"""The first Kafka version with all needed API versions: Metadata 10 brought topic ids (KIP-516)."""
_NEEDED = {ApiKey.METADATA: METADATA_VERSION, ApiKey.FETCH: FETCH_VERSION, ApiKey.PRODUCE: PRODUCE_VERSION}


def ask_versions(connection: BrokerConnection) -> asyncio.Future[bytearray]:
    """Send ApiVersions 0, which every broker knows."""
    return connection.send(
        ApiKey.API_VERSIONS, 0, [encode_body(entity(ApiKey.API_VERSIONS, 0, "request")())], flexible=False
    )


def newest_versions(answer: Message) -> dict[int, int]:
    """Return the newest version of each request by API key, from a broker's answer to ApiVersions."""
    return {int(api.api_key): int(api.max_version) for api in answer.api_keys}


def refuse_too_old(frame: memoryview, settings: ClusterSettings) -> None:
    """Raise Refused if the broker that sent this ApiVersions response is older than the oldest supported version."""
    answer = decode_body(entity(ApiKey.API_VERSIONS, 0, "response"), frame, response_body_offset(frame, flexible=False))
    newest = newest_versions(answer)
    missing = [f"{API_NAMES[key]} {version}" for key, version in _NEEDED.items() if newest.get(key, -1) < version]
    if missing:
        raise Refused(
            "cluster-too-old",
            f"cluster {settings.name} ({settings.bootstrap_servers}) does not speak {', '.join(missing)}, "
            f"as Kafka does from {OLDEST} on",
            still_true="nothing was changed",
            next_step=f"bring its brokers to Kafka {OLDEST} or newer",
        )


FIRST_WITH_LARGEST = 7


NO_LEADER = LogOffset(Code.LEADER_NOT_AVAILABLE, -1, -1)
"""The answer for a partition without a leader."""


def topics_of(request: type[Message], fields: Mapping[Key, Mapping[str, object]]) -> tuple[Message, ...]:
    """Return the topics of a request, with these fields of each partition."""
    topic_type = element_type(request, "topics")
    part_type = element_type(topic_type, "partitions")
    topics: dict[str, list[Message]] = {}
    for (topic, partition), more in fields.items():
        topics.setdefault(topic, []).append(part_type(partition_index=partition, **more))
    return tuple(topic_type(name=topic, partitions=tuple(parts)) for topic, parts in topics.items())


def partitions_of(answer: Message) -> Iterator[tuple[Key, Message]]:
    """Yield the partitions of an answer, each with its topic and number."""
    for topic in answer.topics:
        for part in topic.partitions:
            yield (str(topic.name), int(part.partition_index)), part


def ask_for_largest(
    wanted: Mapping[Key, int], epochs: Mapping[Key, int], *, replica_id: int, read_committed: bool
) -> Message:
    """Return a ListOffsets request in the first version with the timestamp `LARGEST`; `epochs` are leader epochs."""
    request = entity(ApiKey.LIST_OFFSETS, FIRST_WITH_LARGEST, "request")
    fields = {
        key: {"timestamp": timestamp, "current_leader_epoch": epochs.get(key, -1)} for key, timestamp in wanted.items()
    }
    return request(replica_id=replica_id, isolation_level=1 if read_committed else 0, topics=topics_of(request, fields))


def offsets_in(answer: Message) -> dict[Key, LogOffset]:
    return {
        key: LogOffset(code_of(part.error_code), int(part.offset), int(part.leader_epoch), int(part.timestamp))
        for key, part in partitions_of(answer)
    }


_MOST = 500
"""Most questions in a request: writing and reading a larger request would stop the event loop, and so the copy."""

_V = TypeVar("_V")


class _Round(Generic[_V]):
    """The keys of a request, and its answers or its failure."""

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.outcome: Mapping[Key, _V] | Failed | None = None


class _Line(Generic[_V]):
    """The questions that wait for a broker."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.gathering: _Round[_V] = _Round()


class RequestBatcher(Generic[_V]):
    """A kind of question; `ask` sends the question for many partitions, and returns an answer for each of them."""

    def __init__(self, ask: Callable[[Collection[Key]], Awaitable[Mapping[Key, _V]]]) -> None:
        self._ask = ask
        self._lines: dict[int, _Line[_V]] = {}

    async def ask(self, node: int, key: Key) -> _V:
        """Return the answer about a partition; as far as we know, this broker leads the partition."""
        line = self._lines.setdefault(node, _Line())
        if len(line.gathering.keys) >= _MOST:
            line.gathering = _Round()
        mine = line.gathering
        mine.keys[key] = None
        async with line.turn:
            outcome = mine.outcome
            if outcome is None:
                if line.gathering is mine:
                    line.gathering = _Round()
                try:
                    outcome = await self._ask(mine.keys)
                except Failed as failure:
                    outcome = failure
                mine.outcome = outcome
        if isinstance(outcome, Failed):
            raise outcome
        return outcome[key]
