"""Shows the source's values in DescribeConfigs answers about mirrored topics.

Until the promote, the topic at the target keeps all records, in whatever size they come (`mirror.upkeep.configs`).
Clients shall see the configuration that they know: Kafka Connect and Schema Registry end at their start where their
topics are not compacted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kmigrate.model.routes import TopicRoute
from kmigrate.protocol.api import answer_type, decode_answer, frame_answer
from kmigrate.protocol.frames import RequestHead

__all__ = ["show_own_configs"]


_TOPIC_RESOURCE = 2
_OF_THE_TOPIC = 1
"""Source type of a value that is set on the topic itself."""


def show_own_configs(answer: bytearray, head: RequestHead, topics: Mapping[str, TopicRoute]) -> bytearray:
    """Return the answer with the topics' own values in place of those that stand only while the topics are mirrored."""
    kind = answer_type(head)
    message = decode_answer(kind, answer)
    results = []
    for result in message.results:
        route = topics.get(str(result.resource_name)) if int(result.resource_type) == _TOPIC_RESOURCE else None
        own = route.own_configs if route is not None else {}
        shown = tuple(_own(each, own[each.name]) if each.name in own else each for each in result.configs)
        results.append(dataclasses.replace(result, configs=shown))
    return bytearray(frame_answer(dataclasses.replace(message, results=tuple(results)), head.correlation_id))


def _own(config: Any, value: str) -> Any:
    synonyms = tuple(
        dataclasses.replace(each, value=value) if int(each.source) == _OF_THE_TOPIC else each
        for each in config.synonyms
    )
    return dataclasses.replace(config, value=value, synonyms=synonyms)
