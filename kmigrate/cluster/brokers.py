"""Facts about each broker of a cluster: the reach of its advertised address, and its log directories.

Clients connect to the advertised addresses after the bootstrap address. DescribeLogDirs reports the bytes of topics;
from Kafka 3.3 on also the size and the usable bytes of a log directory's volume (version 4, KIP-827). The request needs
DESCRIBE on the cluster: otherwise a broker answers with an error, and before version 3 without any log directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kmigrate.cluster.client import ClusterClient, api_versions
from kmigrate.errors import AuthenticationFailed, BrokerRefused, Failed, KmigrateError, Unreachable
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey, element_type, entity
from kmigrate.protocol.codes import Code, code_of, row

__all__ = [
    "AdvertisedFault",
    "LogDir",
    "advertised_faults",
    "log_dirs",
    "read_log_dirs",
    "refuse_unreachable_brokers",
    "topic_bytes",
]

_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class AdvertisedFault:
    """A broker that is unreachable at its advertised address."""

    cluster: str
    node: int
    address: str
    why: str

    @property
    def text(self) -> str:
        return (
            f"broker {self.node} of cluster {self.cluster} advertises {self.address} (advertised.listeners), and this "
            f"machine does not reach that address: {self.why}"
        )

    @property
    def next_step(self) -> str:
        return (
            f"have {self.address} resolved and reachable from this machine and from all clients, or correct "
            f"advertised.listeners of broker {self.node}"
        )


async def advertised_faults(client: ClusterClient) -> list[AdvertisedFault]:
    """Return the brokers that are unreachable at their advertised addresses; the client has read metadata."""
    brokers = dict(client.metadata.brokers)
    reported = await together(*(_why_unreached(client, node) for node in brokers))
    return [
        AdvertisedFault(client.settings.name, node, "{}:{}".format(*brokers[node]), why)
        for node, why in zip(brokers, reported, strict=True)
        if why
    ]


async def refuse_unreachable_brokers(client: ClusterClient) -> None:
    """Raise Unreachable for the first broker that is unreachable at its advertised address."""
    for fault in await advertised_faults(client):
        raise Unreachable(
            "advertised-unreachable", fault.text, still_true="nothing was changed", next_step=fault.next_step
        )


async def _why_unreached(client: ClusterClient, node: int) -> str:
    try:
        async with asyncio.timeout(_CONNECT_S):
            await client.connection(node)
    except TimeoutError:
        return f"no connection within {_CONNECT_S:g} s"
    except (Unreachable, AuthenticationFailed) as error:
        return error.what
    return ""


_OLDEST, _NEWEST = 2, 4
_PURPOSE = "log-dirs"
"""A separate connection: a broker with many partitions needs some time for its answer."""
_MOST_AT_ONCE = 500
"""Most partitions of a request: decoding a response holds up everything else in this process."""


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker."""

    broker: int
    path: str
    error: int = 0
    """The broker's error code if the log directory is offline."""
    total: int = -1
    """Bytes of the volume; −1 if the broker does not report them."""
    usable: int = -1
    """Bytes of the volume that the broker may still write; −1 if the broker does not report them."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the requested topics, by topic."""


async def read_log_dirs(
    client: ClusterClient, topics: Mapping[str, Iterable[int]] | None = None
) -> dict[int, list[LogDir] | Failed]:
    """Return each known broker's log directories, with these topics' sizes; Failed for a broker without an answer."""
    asked = list(_portions(topics or {}))
    nodes = sorted(client.metadata.brokers)
    return dict(zip(nodes, await together(*(_of_broker(client, node, asked) for node in nodes)), strict=True))


async def log_dirs(client: ClusterClient, node: int, topics: Sequence[tuple[str, Sequence[int]]]) -> list[LogDir]:
    """Return a broker's log directories; raise BrokerRefused or Unreachable."""
    versions = await api_versions(client, node, purpose=_PURPOSE)
    version = min(_NEWEST, versions.get(ApiKey.DESCRIBE_LOG_DIRS, -1))
    if version < _OLDEST:
        what = f"broker {node} of cluster {client.settings.name} does not know DescribeLogDirs"
        raise BrokerRefused("log-dirs-unknown", what, code=Code.UNSUPPORTED_VERSION)
    request = entity(ApiKey.DESCRIBE_LOG_DIRS, version, "request")
    part = element_type(request, "topics")
    wanted = tuple(part(topic=topic, partitions=tuple(partitions)) for topic, partitions in topics)
    answer = await client.call(request(topics=wanted), node, purpose=_PURPOSE)
    code = code_of(answer.error_code) if version >= 3 else 0
    if code or not answer.results:
        why = row(code).name if code else "no log directory is told"
        raise BrokerRefused(
            "log-dirs-refused",
            f"broker {node} of cluster {client.settings.name} does not tell its log directories: {why}",
            code=code,
            still_true="nothing was changed",
            next_step=f"allow {client.settings.security.principal} DESCRIBE on cluster kafka-cluster at cluster "
            f"{client.settings.name}",
        )
    return [_log_dir(node, reported) for reported in answer.results]


def topic_bytes(reported: Mapping[int, list[LogDir] | Failed], topics: Iterable[str]) -> dict[str, int] | None:
    """Return the bytes of topics with all replicas, by topic; None if a broker or a log directory gives no answer."""
    found = dict.fromkeys(topics, 0)
    for dirs in reported.values():
        if isinstance(dirs, Failed) or any(each.error for each in dirs):
            return None
        for each in dirs:
            for topic, size in each.sizes.items():
                found[topic] = found.get(topic, 0) + size
    return found if reported else None


async def _of_broker(
    client: ClusterClient, node: int, asked: Sequence[Sequence[tuple[str, Sequence[int]]]]
) -> list[LogDir] | Failed:
    found: dict[str, LogDir] = {}
    try:
        for topics in asked:
            for reported in await log_dirs(client, node, topics):
                before = found.get(reported.path, reported)
                found[reported.path] = replace(reported, sizes={**before.sizes, **reported.sizes})
    except Failed as failed:
        return failed
    except KmigrateError as error:
        return Failed(error.ref, error.what)
    return list(found.values())


def _portions(topics: Mapping[str, Iterable[int]]) -> Iterator[list[tuple[str, Sequence[int]]]]:
    """Split topics into requests, at least one; a topic is never split, so that a single response has its size."""
    portion: list[tuple[str, Sequence[int]]] = []
    count = 0
    for topic, partitions in topics.items():
        wanted = sorted(partitions)
        if portion and count + len(wanted) > _MOST_AT_ONCE:
            yield portion
            portion, count = [], 0
        portion.append((topic, wanted))
        count += len(wanted)
    yield portion


def _log_dir(node: int, reported: Any) -> LogDir:
    sizes = {str(topic.name): sum(int(each.partition_size) for each in topic.partitions) for topic in reported.topics}
    total, usable = (int(getattr(reported, name, -1)) for name in ("total_bytes", "usable_bytes"))
    return LogDir(node, str(reported.log_dir), code_of(reported.error_code), total, usable, sizes)
