"""The code at which a client aborts and asks for the next epoch, by the name and version that the client gives."""

from __future__ import annotations

import pytest

from kmigrate.protocol.codes import Code
from kmigrate.router.transactions.next_epoch import next_epoch_code


@pytest.mark.parametrize(
    "software",
    [
        "apache-kafka-java 2.5.0",
        "apache-kafka-java 2.8.2",
        "apache-kafka-java 3.0.0",
        "apache-kafka-java 3.9.1",
        "apache-kafka-java 3.10.0-SNAPSHOT",
        "apache-kafka-java 3.9.0.redhat-00001",
        "apache-kafka-java 5.5.1-ccs",
        "apache-kafka-java 7.9.0-ccs",
        "apache-kafka-java 7.4.1-ce",
    ],
)
def test_java_clients_from_2_5_to_3_9_abort_at_an_error_at_which_applications_do_not_end(software: str) -> None:
    assert next_epoch_code(software) == Code.INVALID_PRODUCER_ID_MAPPING


def test_kafka_python_gets_an_error_at_which_its_commit_does_not_hang() -> None:
    assert next_epoch_code("kafka-python 3.0.12") == Code.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    "software",
    [
        "",
        "apache-kafka-java",
        "apache-kafka-java unknown",
        "apache-kafka-java 2.4.1",
        "apache-kafka-java 4.0.0",
        "apache-kafka-java 4.3.1",
        "apache-kafka-java 5.4.0-ccs",
        "apache-kafka-java 7.9.0",
        "apache-kafka-java 8.0.0-ccs",
        "apache-kafka-java 9" + "9" * 200 + ".0.0",
        "librdkafka 2.8.0",
        "kgo 1.18.0",
    ],
)
def test_every_other_client_aborts_at_unknown_producer_id(software: str) -> None:
    assert next_epoch_code(software) == Code.UNKNOWN_PRODUCER_ID
