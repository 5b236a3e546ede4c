"""The leaders of a cluster's partitions, as brokers report them. Pure: Metadata bodies in, their content out.

The cache remembers responses as bytes if they agree with the known metadata. Hundreds of partitions refresh metadata
every second and nearly always get the same response. Decoding that response would cost more than the rest of a refresh.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from kmigrate.errors import Unreachable
from kmigrate.protocol.api import ApiKey, element_type, encode_body, entity
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import response_body_offset
from kmigrate.protocol.metadata import (
    METADATA_VERSION,
    PartitionInfo,
    ReportedMetadata,
    ReportedTopic,
    decode_metadata,
)

__all__ = [
    "METADATA_VERSION",
    "Metadata",
    "MetadataCache",
    "PartitionInfo",
    "TopicInfo",
    "Topics",
    "ask_about",
    "names_in",
]

_MOST_ANSWERS = 256
_MOST_AT_ONCE = 1_000
"""Most partitions per response if nobody waits for the response: decoding a response holds up everything else."""

Topics = tuple[str, ...] | None
"""The topics of a metadata request; None for all topics."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Id and partitions of a topic, as a broker reports them."""

    name: str
    topic_id: UUID | None
    partitions: Mapping[int, PartitionInfo]
    error: int = 0
    """Error code in place of partitions: 29 if we may not even see the topic."""

    def is_other_than(self, topic_id: str) -> bool:
        """Return whether the topic surely has another id; topics of old brokers have no id."""
        return bool(topic_id and self.topic_id and str(self.topic_id) != topic_id)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a cluster: brokers and topics."""

    cluster_id: str
    brokers: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return info.partitions.get(partition) if info else None


@lru_cache(maxsize=16)
def ask_about(topics: Topics) -> bytes:
    """Return the body of a Metadata request that creates no topic (D11)."""
    request = entity(ApiKey.METADATA, METADATA_VERSION, "request")
    part = element_type(request, "topics")
    return encode_body(
        request(
            topics=None if topics is None else tuple(part(topic_id=None, name=name) for name in topics),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
    )


def names_in(frame: bytearray) -> frozenset[str]:
    """Return the names in a response, except topics that the response calls unknown."""
    return frozenset(
        topic.name for topic in decode_metadata(frame).topics if topic.error != Code.UNKNOWN_TOPIC_OR_PARTITION
    )


class MetadataCache:
    """The known metadata of a cluster; `known` stays the same object until there is news."""

    def __init__(self) -> None:
        self.known = Metadata(cluster_id="")
        self._agreed: dict[Topics, set[bytes]] = {}
        """Responses that agree with `known`, by request: each KRaft broker may name another controller."""
        self._nothing_later: dict[Topics, dict[bytes, bool]] = {}
        """Responses without a later leader than `known`, by request; True marks a response behind `known`."""

    def hear(self, asked: Topics, frame: bytearray) -> Metadata:
        """Take in a response; raise ProtocolViolation, or Unreachable if the address is another cluster's by now."""
        body = _body(frame)
        if body in self._agreed.get(asked, ()):
            return self.known
        answer = self._answer(frame)
        brokers = answer.brokers or self.known.brokers
        heard = Metadata(answer.cluster_id, brokers, self._topics(answer.topics, whole=asked is None))
        if heard != self.known:
            self._know(heard)
        elif sum(map(len, self._agreed.values())) >= _MOST_ANSWERS:
            self._agreed.clear()
        self._agreed.setdefault(asked, set()).add(body)
        return self.known

    def hear_of_later(self, asked: Topics, frame: bytearray) -> bool:
        """Take only later leaders of known partitions, with addresses; return whether the response has earlier leaders.

        Raise as `hear`. Only leader epochs show newer metadata: brokers behind lack new topics, and keep deleted ones.
        """
        body = _body(frame)
        if (behind := self._nothing_later.get(asked, {}).get(body)) is not None:
            return behind
        answer, topics, behind = self._answer(frame), dict(self.known.topics), False
        for reported in filter(None, map(_topic_info, answer.topics)):
            known = topics.get(reported.name)
            if known is None or known.topic_id is None or known.topic_id != reported.topic_id:
                continue  # without an id the topic may be another topic
            later: dict[int, PartitionInfo] = {}
            for number, before in known.partitions.items():
                part = reported.partitions.get(number, before)
                if part.leader_epoch > before.leader_epoch:
                    later[number] = part
                behind |= before.leader_epoch > part.leader_epoch >= 0
            if later:
                topics[reported.name] = TopicInfo(reported.name, reported.topic_id, {**known.partitions, **later})
        if topics != self.known.topics:
            brokers = {**answer.brokers, **self.known.brokers}
            self._know(Metadata(self.known.cluster_id, brokers, topics))
        elif sum(map(len, self._nothing_later.values())) >= _MOST_ANSWERS:
            self._nothing_later.clear()
        self._nothing_later.setdefault(asked, {})[body] = behind
        return behind

    def questions(self) -> list[Topics]:
        """Return requests about all known topics; each response takes some milliseconds to decode."""
        questions: list[Topics] = []
        names: list[str] = []
        count = 0
        for name, info in self.known.topics.items():
            names.append(name)
            count += len(info.partitions)
            if count >= _MOST_AT_ONCE:
                questions.append(tuple(names))
                names, count = [], 0
        return [*questions, tuple(names)] if names else questions

    def keep(self, topics: Collection[str]) -> None:
        """Forget all topics but these."""
        kept = {name: info for name, info in self.known.topics.items() if name in topics}
        self._know(Metadata(self.known.cluster_id, self.known.brokers, kept))

    def _know(self, news: Metadata) -> None:
        self.known = news
        self._agreed.clear()
        self._nothing_later.clear()

    def _answer(self, frame: bytearray) -> ReportedMetadata:
        answer = decode_metadata(frame)
        ours, theirs = self.known.cluster_id, answer.cluster_id
        if ours and theirs and ours != theirs:
            raise Unreachable("other-cluster", f"a broker of cluster {theirs} answers in place of one of {ours}")
        return answer

    def _topics(self, reported: Iterable[ReportedTopic], *, whole: bool) -> dict[str, TopicInfo]:
        """Return the known topics updated by the response; a `whole` response replaces all known topics."""
        found = {} if whole else dict(self.known.topics)
        for topic in reported:
            info = _topic_info(topic)
            if info is None:
                found.pop(topic.name, None)
            else:
                found[info.name] = _newest(self.known.topics.get(info.name), info)
        return found


def _body(frame: bytearray) -> bytes:
    return bytes(memoryview(frame)[response_body_offset(frame, flexible=True) :])


def _topic_info(reported: ReportedTopic) -> TopicInfo | None:
    """Return a reported topic; None if the cluster does not have the topic."""
    error, name, topic_id, partitions = reported
    if error == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    return TopicInfo(name, topic_id, partitions, 0 if partitions else error)


def _newest(known: TopicInfo | None, reported: TopicInfo) -> TopicInfo:
    """Return the reported topic, with later known leaders kept: an outdated broker would send us to itself."""
    if known is None or known.topic_id != reported.topic_id:
        return reported
    partitions = {
        number: before
        if (before := known.partitions.get(number)) is not None and before.leader_epoch > part.leader_epoch >= 0
        else part
        for number, part in reported.partitions.items()
    }
    return TopicInfo(reported.name, reported.topic_id, partitions, reported.error)
