"""Lists the APIs that clients may use through the router, with the highest version that the router answers.

Two lists (D6, D7, D10) name what is offered and what is hidden. Both give the reason where the router offers less than
brokers do. An API in neither list is hidden, too. A test compares both lists with Kafka's own schemas, so that no
client API is forgotten. docs/apis.md is made from the lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import ApiKey, blank, decode_body, element_type, encode_body, entity, recast
from kmigrate.protocol.codes import Code

__all__ = [
    "CAPPED",
    "HIDDEN",
    "OFFERED",
    "check_offered",
    "common_api_versions",
    "filter_api_versions",
    "told_api_versions",
    "unsupported_api_versions",
]


OFFERED: dict[int, tuple[int, int]] = {
    0: (3, 11),  # Produce
    1: (4, 18),  # Fetch
    2: (1, 11),  # ListOffsets
    3: (4, 13),  # Metadata
    8: (2, 9),  # OffsetCommit
    9: (1, 9),  # OffsetFetch
    10: (0, 6),  # FindCoordinator
    11: (0, 9),  # JoinGroup
    12: (0, 4),  # Heartbeat
    13: (0, 5),  # LeaveGroup
    14: (0, 5),  # SyncGroup
    15: (0, 6),  # DescribeGroups
    16: (0, 5),  # ListGroups
    17: (0, 1),  # SaslHandshake
    18: (0, 4),  # ApiVersions
    19: (2, 7),  # CreateTopics
    20: (1, 6),  # DeleteTopics
    21: (0, 2),  # DeleteRecords
    22: (0, 5),  # InitProducerId
    23: (2, 4),  # OffsetForLeaderEpoch
    24: (0, 3),  # AddPartitionsToTxn
    25: (0, 4),  # AddOffsetsToTxn
    26: (0, 4),  # EndTxn
    28: (0, 4),  # TxnOffsetCommit
    29: (1, 3),  # DescribeAcls
    30: (1, 3),  # CreateAcls
    31: (1, 3),  # DeleteAcls
    32: (1, 4),  # DescribeConfigs
    33: (0, 2),  # AlterConfigs
    34: (1, 2),  # AlterReplicaLogDirs
    35: (1, 5),  # DescribeLogDirs
    36: (0, 2),  # SaslAuthenticate
    37: (0, 3),  # CreatePartitions
    42: (0, 2),  # DeleteGroups
    43: (0, 2),  # ElectLeaders
    44: (0, 1),  # IncrementalAlterConfigs
    45: (0, 1),  # AlterPartitionReassignments
    46: (0, 0),  # ListPartitionReassignments
    47: (0, 0),  # OffsetDelete
    48: (0, 1),  # DescribeClientQuotas
    49: (0, 1),  # AlterClientQuotas
    50: (0, 0),  # DescribeUserScramCredentials
    51: (0, 0),  # AlterUserScramCredentials
    55: (0, 2),  # DescribeQuorum
    60: (0, 2),  # DescribeCluster
    61: (0, 0),  # DescribeProducers
    65: (0, 0),  # DescribeTransactions
    66: (0, 2),  # ListTransactions
    68: (0, 1),  # ConsumerGroupHeartbeat
    69: (0, 1),  # ConsumerGroupDescribe
    74: (0, 1),  # ListConfigResources
    75: (0, 0),  # DescribeTopicPartitions
    76: (1, 1),  # ShareGroupHeartbeat
    77: (1, 1),  # ShareGroupDescribe
    78: (1, 2),  # ShareFetch
    79: (1, 2),  # ShareAcknowledge
    90: (0, 1),  # DescribeShareGroupOffsets
    91: (0, 0),  # AlterShareGroupOffsets
    92: (0, 0),  # DeleteShareGroupOffsets
}

CAPPED: dict[int, str] = {
    0: "12 belongs to transaction version 2, 13 names topics by id",
    3: "below 4 a request cannot say that no topic shall be created",
    8: "10 names topics by id",
    9: "10 names topics by id",
    17: "0 is listed, because some clients look for it, and refused when it comes",
    22: "6 is two-phase commit",
    24: "4 is between brokers, 5 belongs to transaction version 2",
    26: "5 belongs to transaction version 2",
    28: "5 belongs to transaction version 2",
}
"""Reason why fewer versions are offered than brokers of both clusters speak, or the oddity of an offered version."""

_MEMBERS = "changes which nodes the cluster has: for its operators, who reach it directly"
_TOKENS = "a delegation token of one cluster is worth nothing on the other"
HIDDEN: dict[int, str] = {
    27: "between brokers",
    38: _TOKENS,
    39: _TOKENS,
    40: _TOKENS,
    41: _TOKENS,
    57: "a feature that is raised while a migration runs cannot be lowered again",
    64: _MEMBERS,
    71: "clients would send their metrics to one cluster only, under ids that the other does not know (D10)",
    72: "as GetTelemetrySubscriptions",
    80: _MEMBERS,
    81: _MEMBERS,
    83: "between brokers",
    84: "between brokers",
    85: "between brokers",
    86: "between brokers",
    87: "between brokers",
    88: "Streams-protocol groups are not carried over (KIP-1071)",
    89: "Streams-protocol groups are not carried over (KIP-1071)",
}
"""APIs that brokers offer to clients and the router does not, with the reason."""

_HIDDEN_FEATURES = frozenset({"transaction.version", "streams.version"})
"""Finalized features that would make clients use the APIs hidden above (B11)."""


def check_offered(api_key: int, version: int) -> None:
    """Refuse an API or version that was never offered: a closed connection is better than a guess at an unknown
    shape."""
    span = OFFERED.get(api_key)
    if span is None or not span[0] <= version <= span[1]:
        raise ProtocolViolation("not-offered", f"a client sent api {api_key} version {version}, which is not offered")


def filter_api_versions(frame: bytearray, version: int) -> bytes:
    """Return a broker's ApiVersions answer (whole frame in, whole frame out), cut down to what the router offers.

    A broker that does not know the asked version answers in version 0 with error 35 (KIP-511, D7). The response header
    never has tags (D8).
    """
    if frame[8:10] == Code.UNSUPPORTED_VERSION.to_bytes(2, "big"):
        version = 0
    answer = decode_body(entity(ApiKey.API_VERSIONS, version, "response"), frame, 8)
    keys = []
    for key in answer.api_keys:
        span = OFFERED.get(int(key.api_key))
        if span is None:
            continue
        low, high = max(span[0], int(key.min_version)), min(span[1], int(key.max_version))
        if low <= high:
            keys.append(dataclasses.replace(key, min_version=low, max_version=high))
    changed: dict[str, Any] = {"api_keys": tuple(keys)}
    for name in ("supported_features", "finalized_features"):
        if hasattr(answer, name):
            kept = (f for f in getattr(answer, name) if str(f.name) not in _HIDDEN_FEATURES)
            changed[name] = tuple(kept)
    body = encode_body(dataclasses.replace(answer, **changed))
    return (len(body) + 4).to_bytes(4, "big") + bytes(frame[4:8]) + body


def told_api_versions(target: Any, version: int, correlation: int) -> bytes:
    """Return the answer to an ApiVersions request, made from the ApiVersions answers of the target's brokers."""
    body = encode_body(recast(target, entity(ApiKey.API_VERSIONS, version, "response")))
    frame = (len(body) + 4).to_bytes(4, "big") + correlation.to_bytes(4, "big", signed=True) + body
    return filter_api_versions(bytearray(frame), version)


def common_api_versions(answers: Sequence[Any]) -> Any:
    """Return the first of several brokers' ApiVersions answers, cut down to what all of the brokers speak."""
    spans = [{int(key.api_key): key for key in answer.api_keys} for answer in answers]
    keys = []
    for key in answers[0].api_keys:
        told = [each[int(key.api_key)] for each in spans if int(key.api_key) in each]
        low, high = max(int(each.min_version) for each in told), min(int(each.max_version) for each in told)
        if len(told) == len(answers) and low <= high:
            kind = type(key.min_version)
            keys.append(dataclasses.replace(key, min_version=kind(low), max_version=kind(high)))
    return dataclasses.replace(answers[0], api_keys=tuple(keys))


def unsupported_api_versions(correlation: int) -> bytes:
    """Return the answer to an ApiVersions request newer than the router knows: try again with this range (KIP-511)."""
    answer_type = entity(ApiKey.API_VERSIONS, 0, "response")
    span = OFFERED[ApiKey.API_VERSIONS]
    key = element_type(answer_type, "api_keys")(api_key=ApiKey.API_VERSIONS, min_version=span[0], max_version=span[1])
    body = encode_body(blank(answer_type, error_code=Code.UNSUPPORTED_VERSION, api_keys=(key,)))
    return (len(body) + 4).to_bytes(4, "big") + correlation.to_bytes(4, "big", signed=True) + body
