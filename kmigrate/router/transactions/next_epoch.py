"""The error code at which a client aborts its transaction and asks for the next epoch of its producer id (KIP-360).

Each client that can ask for the next epoch asks at UNKNOWN_PRODUCER_ID. In Java this error is an
OutOfOrderSequenceException. At this exception an application written like the example in KafkaProducer's Javadoc closes
the producer. At INVALID_PRODUCER_ID_MAPPING Java clients from 2.5 to 3.9 ask for the next epoch, too. That error is an
InvalidPidMappingException, at which the same application aborts and goes on. Java clients from 4.0 on end at
INVALID_PRODUCER_ID_MAPPING.

kafka-python cannot ask for the next epoch. After UNKNOWN_PRODUCER_ID its commit hangs. At
INVALID_PRODUCER_ID_MAPPING the application gets an error at once, and starts a new producer. `docs/decisions/0019`
lists what clients do at other codes.
"""

from __future__ import annotations

import re

from kmigrate.protocol.codes import Code

__all__ = ["next_epoch_code"]

_KAFKA_PYTHON = "kafka-python "
_JAVA = re.compile(r"apache-kafka-java (\d{1,9})\.(\d{1,9})\S*?(-ccs|-ce)?")
"""Name and version of Kafka's Java client (KIP-511); the suffix marks a version of Confluent Platform."""
_OF_KAFKA = ((2, 5), (4, 0))
"""First version of Kafka that aborts at INVALID_PRODUCER_ID_MAPPING, and the version that ends there (KAFKA-18019)."""
_OF_CONFLUENT = ((5, 5), (8, 0))
"""The same versions, as Confluent Platform counts them."""


def next_epoch_code(software: str) -> Code:
    """Return the code for a client that calls itself by this name and version; '' if the client has not said."""
    if software.startswith(_KAFKA_PYTHON):
        return Code.INVALID_PRODUCER_ID_MAPPING
    java = _JAVA.fullmatch(software)
    if java is None:
        return Code.UNKNOWN_PRODUCER_ID
    first, ends = _OF_CONFLUENT if java[3] else _OF_KAFKA
    aborts = first <= (int(java[1]), int(java[2])) < ends
    return Code.INVALID_PRODUCER_ID_MAPPING if aborts else Code.UNKNOWN_PRODUCER_ID
