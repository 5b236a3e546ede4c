"""The table of APIs: the versions that clients may use through the router, and the treatment of each API (D6, D7, D10).

A row gives the reason where the router offers less than brokers do; an API without a row is hidden. A test compares the
table with Kafka's own schemas, so that no client API is forgotten. docs/apis.md prints the rows.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kmigrate.protocol.api import ApiKey

__all__ = ["APIS", "DROPPED", "OFFERED", "Api", "Treatment", "is_offered", "treated"]


class Treatment(Enum):
    """The path of a request through the router, in the words of docs/apis.md."""

    FORWARD_BY_TOPIC = "split by topic: forwarded to the source, held, let through the gate, or passed"
    FETCH = (
        "passed; node ids rewritten from version 11 on, addresses from version 16 on; "
        "who is beyond the copy of a mirrored topic is told to come again"
    )
    LIST_OFFSETS = (
        "passed; of a mirrored topic once its copy has what the source has; a look-up by time is answered as at the "
        "source"
    )
    EPOCH_ENDS = "passed; an error for a partition that the mirror still aligns"
    REWRITE = "passed; node ids and addresses of the answer rewritten"
    SHARE_READ = "passed; node ids and addresses rewritten"
    GROUP = (
        "passed; while the group is mirrored and not promoted: told to come again, or to the source where it follows"
    )
    GROUP_NEVER_HELD = "passed; to the source for a group that follows"
    PRODUCER_ID = "passed; where the target refuses it to a writer of mirrored topics, the router asks itself"
    TXN = "to the cluster where the topics and groups of the transaction are"
    CHANGE = "passed; for a mirrored topic refused until its promote"
    CONFIGS = "passed; brokers are named as each side knows them"
    NODE_IDS = "passed; node ids are those that each side knows"
    ONE_BROKER = "passed; an empty list from a listener that stands for no broker of the target"
    SHARE_GROUP = "passed; refused on a topic that is mirrored, until its promote"
    SASL = "relayed to the target, or judged by the table of clients"
    API_VERSIONS = "cut down to this table"
    PASS = "passed"
    HIDDEN = "hidden"


class Api(NamedTuple):
    """A row of the table."""

    versions: tuple[int, int]
    """Lowest and highest version that clients may use."""
    treatment: Treatment
    note: str = ""
    """What docs/apis.md says beside the treatment; for a hidden API, the reason."""
    cap: str = ""
    """Reason why fewer versions are offered than both clusters speak, or the oddity of an offered version."""
    topics: tuple[str, ...] = ()
    """Arrays of the request that name topics."""
    results: str = ""
    """Array of the answer with an element for each element of the request; '' for an answer without such an array."""
    lists_topics: bool = False
    """True if the answer names topics that the request did not name."""
    node_fields: tuple[str, ...] = ()
    """Fields (Kafka's names, prefixes) whose node ids and addresses the router rewrites."""


def _hidden(reason: str) -> Api:
    return Api((0, -1), Treatment.HIDDEN, reason)


DROPPED = "no cluster of Kafka 4 takes the old versions (KIP-896)"
"""Reason why versions below a row's lowest are not offered, which only clusters before Kafka 4.0 take."""

_BY_ID = "10 names topics by id"
_PRODUCE_CAP = (
    "the message sets of 0 to 2 become batches of version 3; 12 belongs to transaction version 2, 13 names topics by id"
)
_OLD_METADATA = "0 to 3 are asked in version 4, so that no topic is created where a source has the topic"
_ADD_PARTITIONS_CAP = "4 is between brokers, 5 belongs to transaction version 2"
_EXISTS = "the refusal says that the topic exists; a topic that only a source has is refused until it is mirrored"
_OWN_VALUES = "a mirrored topic's own values are told as on its source"
_TARGETS_PRODUCERS = "tells the target's producers: of a mirrored topic its mirror, and not its writers"
_TXN_V2 = "5 belongs to transaction version 2"
_BROKER_NAMES = "brokers are named as each side knows them"
_TARGETS_TXNS = "tells the target's transactions, of which none is open while it is open at a source"
_BETWEEN_BROKERS = "between brokers"
_MEMBERS = "changes which nodes the cluster has: for its operators, who reach it directly"
_TOKENS = "a delegation token of one cluster is worth nothing on the other"
_STREAMS = "Streams-protocol groups are not carried over (KIP-1071)"
_TOPICS, _RESOURCES, _SUBSCRIBED = ("topics",), ("resources",), ("subscribed_topic_names",)
_READ_TOPICS = ("topics", "forgotten_topics_data")
_LEADERS = ("response.Responses.Partitions.CurrentLeader", "response.NodeEndpoints")
_PRODUCE_NODES = ("response.Responses.PartitionResponses.CurrentLeader", "response.NodeEndpoints")
_FETCH_NODES = (*_LEADERS, "response.Responses.Partitions.PreferredReadReplica")
_METADATA_NODES = ("response.Brokers", "response.ControllerId", "response.Topics.Partitions")
_COORDINATOR_NODES = ("response.NodeId", "response.Host", "response.Port", "response.Coordinators")
_ASSIGNMENTS, _REPLICAS = ("request.Topics.Assignments",), ("request.Topics.Partitions.Replicas",)
_LAYOUT = ("response.Topics.Partitions",)
_V3_TOPICS, _V3_RESULTS = ("v3_and_below_topics",), "results_by_topic_v3_and_below"

APIS: dict[int, Api] = {
    ApiKey.PRODUCE: Api((0, 11), Treatment.FORWARD_BY_TOPIC, cap=_PRODUCE_CAP, node_fields=_PRODUCE_NODES),
    ApiKey.FETCH: Api((4, 18), Treatment.FETCH, topics=_READ_TOPICS, results="responses", node_fields=_FETCH_NODES),
    ApiKey.LIST_OFFSETS: Api((1, 11), Treatment.LIST_OFFSETS, topics=_TOPICS, results="topics"),
    ApiKey.METADATA: Api(
        (0, 13),
        Treatment.REWRITE,
        cap=_OLD_METADATA,
        topics=_TOPICS,
        results="topics",
        lists_topics=True,
        node_fields=_METADATA_NODES,
    ),
    ApiKey.OFFSET_COMMIT: Api((2, 9), Treatment.GROUP, cap=_BY_ID, topics=_TOPICS, results="topics"),
    ApiKey.OFFSET_FETCH: Api((1, 9), Treatment.GROUP, cap=_BY_ID, lists_topics=True),
    ApiKey.FIND_COORDINATOR: Api((0, 6), Treatment.REWRITE, node_fields=_COORDINATOR_NODES),
    ApiKey.JOIN_GROUP: Api((0, 9), Treatment.GROUP),
    ApiKey.HEARTBEAT: Api((0, 4), Treatment.GROUP),
    ApiKey.LEAVE_GROUP: Api((0, 5), Treatment.GROUP_NEVER_HELD),
    ApiKey.SYNC_GROUP: Api((0, 5), Treatment.GROUP),
    ApiKey.DESCRIBE_GROUPS: Api((0, 6), Treatment.GROUP_NEVER_HELD),
    ApiKey.LIST_GROUPS: Api(
        (0, 5), Treatment.ONE_BROKER, "groups that follow are told as their source has them, by one broker"
    ),
    ApiKey.SASL_HANDSHAKE: Api(
        (0, 1), Treatment.SASL, cap="after 0 the client's SASL messages have no headers; the target is asked in 1"
    ),
    ApiKey.API_VERSIONS: Api((0, 4), Treatment.API_VERSIONS),
    ApiKey.CREATE_TOPICS: Api(
        (2, 7), Treatment.CHANGE, _EXISTS, topics=_TOPICS, results="topics", node_fields=_ASSIGNMENTS
    ),
    ApiKey.DELETE_TOPICS: Api((1, 6), Treatment.CHANGE, topics=("topics", "topic_names"), results="responses"),
    ApiKey.DELETE_RECORDS: Api((0, 2), Treatment.CHANGE, topics=_TOPICS, results="topics"),
    ApiKey.INIT_PRODUCER_ID: Api((0, 5), Treatment.PRODUCER_ID, cap="6 is two-phase commit"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api((2, 4), Treatment.EPOCH_ENDS, topics=_TOPICS, results="topics"),
    ApiKey.WRITE_TXN_MARKERS: _hidden(_BETWEEN_BROKERS),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(
        (0, 3), Treatment.TXN, cap=_ADD_PARTITIONS_CAP, topics=_V3_TOPICS, results=_V3_RESULTS
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Api((0, 4), Treatment.TXN),
    ApiKey.END_TXN: Api((0, 4), Treatment.TXN, cap=_TXN_V2),
    ApiKey.TXN_OFFSET_COMMIT: Api((0, 4), Treatment.TXN, cap=_TXN_V2, topics=_TOPICS, results="topics"),
    ApiKey.DESCRIBE_ACLS: Api((1, 3), Treatment.PASS),
    ApiKey.CREATE_ACLS: Api((1, 3), Treatment.PASS, topics=("creations",), results="results"),
    ApiKey.DELETE_ACLS: Api((1, 3), Treatment.PASS, topics=("filters",), results="filter_results"),
    ApiKey.DESCRIBE_CONFIGS: Api((1, 4), Treatment.CONFIGS, _OWN_VALUES, topics=_RESOURCES, results="results"),
    ApiKey.ALTER_CONFIGS: Api((0, 2), Treatment.CHANGE, _BROKER_NAMES, topics=_RESOURCES, results="responses"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api((1, 2), Treatment.PASS, topics=("dirs",), results="results"),
    ApiKey.DESCRIBE_LOG_DIRS: Api((1, 5), Treatment.PASS, topics=_TOPICS, lists_topics=True),
    ApiKey.SASL_AUTHENTICATE: Api((0, 2), Treatment.SASL),
    ApiKey.CREATE_PARTITIONS: Api(
        (0, 3), Treatment.CHANGE, topics=_TOPICS, results="results", node_fields=_ASSIGNMENTS
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: _hidden(_TOKENS),
    ApiKey.RENEW_DELEGATION_TOKEN: _hidden(_TOKENS),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _hidden(_TOKENS),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _hidden(_TOKENS),
    ApiKey.DELETE_GROUPS: Api((0, 2), Treatment.GROUP),
    ApiKey.ELECT_LEADERS: Api(
        (0, 2), Treatment.PASS, topics=("topic_partitions",), results="replica_election_results", lists_topics=True
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
        (0, 1), Treatment.CHANGE, _BROKER_NAMES, topics=_RESOURCES, results="responses"
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(
        (0, 1), Treatment.NODE_IDS, topics=_TOPICS, results="responses", node_fields=_REPLICAS
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(
        (0, 0), Treatment.NODE_IDS, topics=_TOPICS, lists_topics=True, node_fields=_LAYOUT
    ),
    ApiKey.OFFSET_DELETE: Api((0, 0), Treatment.GROUP, topics=_TOPICS, results="topics"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api((0, 1), Treatment.PASS),
    ApiKey.ALTER_CLIENT_QUOTAS: Api((0, 1), Treatment.PASS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api((0, 0), Treatment.PASS),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api((0, 0), Treatment.PASS),
    ApiKey.DESCRIBE_QUORUM: Api(
        (0, 2), Treatment.NODE_IDS, node_fields=("response.Topics.Partitions", "response.Nodes.NodeId")
    ),
    ApiKey.UPDATE_FEATURES: _hidden("a feature that is raised while a migration runs cannot be lowered again"),
    ApiKey.DESCRIBE_CLUSTER: Api((0, 2), Treatment.REWRITE, node_fields=("response.ControllerId", "response.Brokers")),
    ApiKey.DESCRIBE_PRODUCERS: Api((0, 0), Treatment.PASS, _TARGETS_PRODUCERS, topics=_TOPICS, results="topics"),
    ApiKey.UNREGISTER_BROKER: _hidden(_MEMBERS),
    ApiKey.DESCRIBE_TRANSACTIONS: Api((0, 0), Treatment.PASS, _TARGETS_TXNS),
    ApiKey.LIST_TRANSACTIONS: Api((0, 2), Treatment.ONE_BROKER, _TARGETS_TXNS),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api((0, 1), Treatment.GROUP, topics=_SUBSCRIBED, lists_topics=True),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api((0, 1), Treatment.GROUP_NEVER_HELD, lists_topics=True),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _hidden(
        "clients would send their metrics to one cluster only, under ids that the other does not know (D10)"
    ),
    ApiKey.PUSH_TELEMETRY: _hidden("as GetTelemetrySubscriptions"),
    ApiKey.LIST_CONFIG_RESOURCES: Api((0, 1), Treatment.CONFIGS, results="config_resources", lists_topics=True),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(
        (0, 0), Treatment.NODE_IDS, topics=_TOPICS, results="topics", lists_topics=True, node_fields=_LAYOUT
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: Api((1, 1), Treatment.SHARE_GROUP, topics=_SUBSCRIBED, lists_topics=True),
    ApiKey.SHARE_GROUP_DESCRIBE: Api((1, 1), Treatment.PASS, lists_topics=True),
    ApiKey.SHARE_FETCH: Api(
        (1, 2), Treatment.SHARE_READ, topics=_READ_TOPICS, results="responses", node_fields=_LEADERS
    ),
    ApiKey.SHARE_ACKNOWLEDGE: Api(
        (1, 2), Treatment.SHARE_READ, topics=_TOPICS, results="responses", node_fields=_LEADERS
    ),
    ApiKey.ADD_RAFT_VOTER: _hidden(_MEMBERS),
    ApiKey.REMOVE_RAFT_VOTER: _hidden(_MEMBERS),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _hidden(_BETWEEN_BROKERS),
    ApiKey.READ_SHARE_GROUP_STATE: _hidden(_BETWEEN_BROKERS),
    ApiKey.WRITE_SHARE_GROUP_STATE: _hidden(_BETWEEN_BROKERS),
    ApiKey.DELETE_SHARE_GROUP_STATE: _hidden(_BETWEEN_BROKERS),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _hidden(_BETWEEN_BROKERS),
    ApiKey.STREAMS_GROUP_HEARTBEAT: _hidden(_STREAMS),
    ApiKey.STREAMS_GROUP_DESCRIBE: _hidden(_STREAMS),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Api((0, 1), Treatment.PASS, lists_topics=True),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Api((0, 0), Treatment.PASS, topics=_TOPICS, results="responses"),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Api((0, 0), Treatment.PASS, topics=_TOPICS, results="responses"),
}
OFFERED = {key: api for key, api in APIS.items() if api.treatment is not Treatment.HIDDEN}


def treated(*treatments: Treatment) -> frozenset[int]:
    """Return the APIs with one of these treatments."""
    return frozenset(key for key, api in APIS.items() if api.treatment in treatments)


_OFFERED = frozenset(
    int(key) << 16 | version for key, api in OFFERED.items() for version in range(api.versions[0], api.versions[1] + 1)
)
"""Keys and versions of the offered APIs; each request of each client is looked up here."""


def is_offered(api_key: int, version: int) -> bool:
    """Return whether clients may send an API in this version."""
    return (api_key << 16 | version) in _OFFERED
