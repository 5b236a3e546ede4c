"""The target topics with `min.insync.replicas=1`, where no marker is refused for lack of replicas (`lane`, O)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed
from kmigrate.net.clock import monotonic
from kmigrate.protocol.api import ApiKey, element_type, entity
from kmigrate.protocol.codes import code_of

__all__ = ["MinInsync", "read_min_insync"]

_KEY = "min.insync.replicas"
_TOPIC = 2
"""Kafka's number of the resource type."""
_VERSION = 4
_MOST_TOPICS = 500
_LOOK_S = 2.0
_FRESH_S = 6.0
"""Age up to which an answer counts: a person may raise the value at any time."""
_FORGOTTEN_S = 60.0
"""Seconds without a question after which a topic is not looked at any more."""


class MinInsync:
    """Knows which topics need a single in-sync replica, from answers of the last seconds."""

    def __init__(self, target: ClusterClient) -> None:
        self._target = target
        self._asked: dict[str, float] = {}
        """Time of the last question about each topic."""
        self._seen: dict[str, tuple[int, float]] = {}
        """Value of each topic, and the time when the value was asked for."""
        self._news = asyncio.Event()

    def is_one(self, topic: str) -> bool:
        """Return whether a topic needs a single in-sync replica; False until `run` has asked the target."""
        now = monotonic()
        if topic not in self._asked:
            self._news.set()
        self._asked[topic] = now
        value, seen = self._seen.get(topic, (0, 0.0))
        return value == 1 and now - seen < _FRESH_S

    @property
    def above_one(self) -> frozenset[str]:
        """Topics in question that need more in-sync replicas."""
        return frozenset(topic for topic, (value, _) in self._seen.items() if value > 1)

    async def run(self) -> None:
        """Ask for the topics in question, for ever."""
        while True:
            self._news.clear()
            await self._look()
            try:
                async with asyncio.timeout(_LOOK_S if self._asked else None):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        now = monotonic()
        self._asked = {topic: at for topic, at in self._asked.items() if now - at < _FORGOTTEN_S}
        try:
            values = await read_min_insync(self._target, self._asked)
        except Failed:
            return  # old answers count no more after a while
        self._seen = {topic: (value, now) for topic, value in values.items()}


async def read_min_insync(target: ClusterClient, topics: Iterable[str]) -> dict[str, int]:
    """Return `min.insync.replicas` of topics; a topic whose configs a broker does not show is left out."""
    request = entity(ApiKey.DESCRIBE_CONFIGS, _VERSION, "request")
    resource = element_type(request, "resources")
    found: dict[str, int] = {}
    names = list(topics)
    for at in range(0, len(names), _MOST_TOPICS):
        resources = tuple(
            resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=(_KEY,))
            for topic in names[at : at + _MOST_TOPICS]
        )
        answer = await target.call(request(resources=resources, include_synonyms=False, include_documentation=False))
        for result in answer.results:
            values = [config.value for config in result.configs if config.name == _KEY]
            if values and not code_of(result.error_code):
                found[str(result.resource_name)] = int(values[0])
    return found
