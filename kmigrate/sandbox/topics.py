"""The creation of topics on a cluster whose brokers come and go."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import count

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

__all__ = ["create_topics"]

_PAUSE_SECONDS = 0.1


def create_topics(client: Mapping[str, str], topics: Iterable[NewTopic], seconds: float = 60.0) -> None:
    """Create the topics; raise KafkaException if the cluster refuses a topic, or at the end of `seconds`.

    A broker may leave the metadata between request and response (librdkafka: _DESTROY_BROKER), with unknown outcome. So
    the request is sent again. A topic that then exists is the topic that the first request created.
    """
    admin = AdminClient({**client, "log_level": 3})
    deadline = time.monotonic() + seconds
    for topic in topics:
        for earlier_requests in count():
            try:
                admin.create_topics([topic])[topic.topic].result(seconds)
                break
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS and earlier_requests:
                    break
                if code != KafkaError._DESTROY_BROKER or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
