"""Lists the least rights that kmigrate's principals need: one list for documents, sandbox and tests.

`docs/security.md` shows the list, and `sandbox up --secure` grants exactly these rights. A test asks the brokers' own
authorizer two things: whether kmigrate wanted any other right, and whether any listed right was never used. "Topic"
stands for the mirrored topics. The rights can be granted by name, by prefix or, as in the sandbox, for all topics.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GRANTS", "Grant"]


@dataclass(frozen=True, slots=True)
class Grant:
    """An operation on a kind of resource at the source or the target, in Kafka's spelling."""

    side: str
    resource: str
    operation: str
    why: str
    name: str = "*"


GRANTS: tuple[Grant, ...] = (
    Grant("source", "TOPIC", "READ", "fetch records; DescribeProducers"),
    Grant("source", "TOPIC", "DESCRIBE_CONFIGS", "give the target topic the source's configs"),
    Grant("source", "GROUP", "DESCRIBE", "read committed offsets and members of mirrored groups"),
    Grant("source", "GROUP", "READ", "keep members out of promoted groups (else they are only named)"),
    Grant("source", "CLUSTER", "DESCRIBE_CONFIGS", "compare the brokers' limits with the target's", "kafka-cluster"),
    Grant("source", "CLUSTER", "DESCRIBE", "read the access rules of mirrored topics and groups", "kafka-cluster"),
    Grant("target", "TOPIC", "CREATE", "make mirrored topics and the state log"),
    Grant("target", "TOPIC", "READ", "read the state log; DescribeProducers; compare"),
    Grant("target", "TOPIC", "WRITE", "write records, and the state log"),
    Grant("target", "TOPIC", "DELETE", "DeleteRecords: give a target topic the source's log start"),
    Grant("target", "TOPIC", "DESCRIBE_CONFIGS", "check the target topic's configs"),
    Grant("target", "TOPIC", "ALTER_CONFIGS", "relax limits, restore them at promote; configs of the state log"),
    Grant("target", "GROUP", "READ", "give a promoted group its offsets"),
    Grant("target", "CLUSTER", "DESCRIBE", "compare ACLs; watch the disks (DescribeLogDirs)", "kafka-cluster"),
    Grant("target", "CLUSTER", "ALTER", "carry access rules over; control markers (W5)", "kafka-cluster"),
    Grant("target", "CLUSTER", "DESCRIBE_CONFIGS", "how long producers are remembered; defaults", "kafka-cluster"),
    Grant("target", "CLUSTER", "ALTER_CONFIGS", "make them remember long enough, and put it back", "kafka-cluster"),
)
