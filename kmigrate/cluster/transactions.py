"""Open transactions, by partitions and coordinators, and requests with the identity of a producer.

An open transaction is the named cause of a waiting read_committed reader. A partition knows its producer id and first
offset (DescribeProducers, Kafka ≥ 2.8). Only coordinators know transactional id and start time (ListTransactions,
DescribeTransactions, ≥ 3.0). A transaction that no coordinator knows hangs until an operator ends it (KIP-664).

Requests with the identity of a producer that has the transactional id only end open transactions, and write nothing
otherwise. Tried on 2.8.2, 3.9.1 and 4.3.1: an InitProducerId with the present identity raises the epoch (KIP-360), and
repeats raise the epoch only once. Then the coordinator refuses the older epoch with PRODUCER_FENCED. If a transaction
is open, the coordinator aborts the transaction and answers CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from kmigrate.cluster.client import MARKERS, ClusterClient, api_versions
from kmigrate.errors import BrokerRefused, KmigrateError, Unreachable
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey, Message, element_type, entity
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.protocol.described import OPEN_STATES, DescribedTransaction

__all__ = [
    "NO_MORE",
    "STILL_OPEN",
    "CoordinatedTransaction",
    "IdState",
    "Identity",
    "OpenTransaction",
    "add_partition",
    "begin_and_abort",
    "empty_transactions",
    "end_transaction",
    "group_partition",
    "group_transactions",
    "id_state",
    "last_begun",
    "listed_ids",
    "may_write_markers",
    "open_topics",
    "open_transactions",
    "open_writers",
    "raise_epoch",
    "refuse_unwritable_id",
    "tells_transactions",
    "transaction_timeouts",
]

Identity = tuple[str, int, int]
"""Transactional id, producer id and epoch."""
NO_MORE = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING})
"""Codes of a coordinator that accepts no request of an identity any more."""

_OF_TRANSACTIONS = 1
_BY_COORDINATORS = {ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS}
_NOBODY = -1
_MARKER_PAUSE_S = 0.002
_USUAL_TIMEOUT = dt.timedelta(seconds=60)
"""Transaction timeout of an epoch that no producer gets: the next producer sets its own timeout."""
_EMPTY, _COMMITTED = "Empty", "CompleteCommit"
_MOST_DESCRIBED = 1_000
"""Most transactional ids of a DescribeTransactions request."""
_OFFSETS = "__consumer_offsets"
_MOST_NAMED = 5
"""Most partitions of a transaction that a message names."""
_NO_TOPIC = "__kmigrate_probe.no-such-topic"
_NOBODYS_GROUP = "__kmigrate_nobody"
_GONE = "Dead"
"""State of an id that its coordinator is about to forget."""
STILL_OPEN = 1 << 62
"""Start time of an open transaction in `last_begun`: later than any time, whatever clock gives the time."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The first open transaction of a partition; times in ms since the epoch, −1 if unknown."""

    offset: int
    """The transaction's first record: read_committed readers get nothing from here on."""
    producer_id: int
    last_write_ms: int
    transactional_id: str = ""
    """'' if the cluster cannot tell, or if no coordinator knows the transaction any more."""
    started_ms: int = -1
    hanging: bool = False
    """True if no coordinator has the transaction open."""

    def open_ms(self, now_ms: int) -> int:
        """Return how long the transaction is open; if only its last write is known, at least that long."""
        since = self.started_ms if self.started_ms >= 0 else self.last_write_ms
        return max(0, now_ms - since)

    def text(self, now_ms: int) -> str:
        """Return the transaction that the partition waits for, in words."""
        hangs = " (hanging: no coordinator knows it as open; end it with kafka-transactions.sh abort)"
        time = f"{'' if self.started_ms >= 0 else 'at least '}{self.open_ms(now_ms) // 1000} s"
        return f"waits {self.place}{hangs if self.hanging else ''}, open for {time}"

    @property
    def place(self) -> str:
        """Place and transaction that a reader of committed records waits for."""
        who = f"producer {self.producer_id}"
        who = f"{self.transactional_id} ({who})" if self.transactional_id else who
        return f"at offset {self.offset} for the transaction of {who}"


async def open_transactions(
    client: ClusterClient, keys: Collection[tuple[str, int]]
) -> dict[tuple[str, int], OpenTransaction]:
    """Return the transaction that each partition's last stable offset waits for; leave out partitions without one."""
    if not keys:
        return {}
    apis = await api_versions(client)
    if ApiKey.DESCRIBE_PRODUCERS not in apis:
        return {}
    found = await _begun(client, keys)
    if not found or not apis.keys() >= _BY_COORDINATORS:
        return found
    named = await _named(client, {each.producer_id for each in found.values()})
    if named is None:
        return found
    nameless = [key for key, each in found.items() if each.producer_id not in named]
    # The transaction may just have ended. A coordinator reports an end only after all partitions have the marker.
    still = await _begun(client, nameless) if nameless else {}
    out: dict[tuple[str, int], OpenTransaction] = {}
    for key, each in found.items():
        if each.producer_id in named:
            name, started = named[each.producer_id]
            out[key] = replace(each, transactional_id=name, started_ms=started)
        elif key in still and still[key].offset == each.offset:
            out[key] = replace(still[key], hanging=True)
    return out


async def tells_transactions(client: ClusterClient) -> bool:
    """Return whether a cluster's coordinators list and describe their transactions (Kafka ≥ 3.0)."""
    return (await api_versions(client)).keys() >= _BY_COORDINATORS


async def open_topics(client: ClusterClient, names: Collection[str]) -> dict[str, frozenset[str]] | None:
    """Return the ids with an open transaction, each with its topics that lack the marker.

    Ask every broker, as each knows its own ids. Return None before Kafka 3.0; raise Unreachable if one cannot tell now.
    """
    if not names:
        return {}
    if not await tells_transactions(client):
        return None
    return {each.transactional_id: each.topics for each in await _open_everywhere(client, frozenset(names))}


@dataclass(frozen=True, slots=True)
class CoordinatedTransaction:
    """An open transaction as its coordinator describes the transaction."""

    transactional_id: str
    producer_id: int
    started_ms: int
    """Start of the transaction, ms since the epoch; −1 if unknown."""
    partitions: tuple[tuple[str, int], ...]
    """Partitions that have no marker of the transaction yet."""

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(topic for topic, _ in self.partitions)

    def text(self, now_ms: int) -> str:
        """Name the transaction for a person."""
        since = f", open for {max(0, now_ms - self.started_ms) // 1000} s" if self.started_ms >= 0 else ""
        named = ", ".join(f"{topic}-{partition}" for topic, partition in self.partitions[:_MOST_NAMED])
        more = f" and {len(self.partitions) - _MOST_NAMED} more" if len(self.partitions) > _MOST_NAMED else ""
        on = f", on {named}{more}" if named else ""
        return f"{self.transactional_id} (producer {self.producer_id}{since}{on})"


async def group_transactions(client: ClusterClient, group: str, names: Collection[str]) -> list[CoordinatedTransaction]:
    """Return the open transactions that may hold committed offsets of a group; none before Kafka 3.0.

    They are of `names`, or have the group's partition of the offsets topic. Raise BrokerRefused or Unreachable.
    """
    if not await tells_transactions(client):
        return []
    offsets = await client.topic(_OFFSETS)
    own = (_OFFSETS, group_partition(group, len(offsets.partitions))) if offsets and offsets.partitions else None
    found = await _open_everywhere(client)
    return [each for each in found if each.transactional_id in names or own in each.partitions]


def group_partition(group: str, partitions: int) -> int:
    """Return a group's partition of the offsets topic: the absolute value of Java's hash, as brokers compute it."""
    value = 0
    for unit in memoryview(group.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFF_FFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


async def open_writers(client: ClusterClient, topic: str, partitions: int) -> dict[str, frozenset[int]]:
    """Return the writers with an open transaction or a missing marker at a topic, each with the transaction's start.

    The start tells a writer's transactions apart. From Kafka 3.0 on: start times by transactional id, also before the
    first write, but without hanging transactions (no marker will come). Before: start offsets by producer id.
    """
    if await tells_transactions(client):
        found = await _open_everywhere(client)
        return {each.transactional_id: frozenset({each.started_ms}) for each in found if topic in each.topics}
    starts: defaultdict[str, set[int]] = defaultdict(set)
    for _, producers in (await client.describe_producers([(topic, p) for p in range(partitions)])).values():
        for each in producers:
            if each.txn_start_offset >= 0:
                starts[f"producer {each.producer_id}"].add(each.txn_start_offset)
    return {name: frozenset(offsets) for name, offsets in starts.items()}


async def listed_ids(client: ClusterClient) -> set[str]:
    """Return the transactional ids that a cluster shows us, by a request to each broker.

    Missing are all ids before Kafka 3.0, then ids without DESCRIBE, and ids that move to another coordinator.
    """
    if ApiKey.LIST_TRANSACTIONS not in await api_versions(client):
        return set()
    return {
        str(each.transactional_id)
        for node in await _coordinators(client)
        for each in (await _listed(client, node))[0]
        if str(each.transaction_state) != _GONE
    }


async def transaction_timeouts(client: ClusterClient) -> dict[str, int]:
    """Return the transaction.timeout.ms of each transactional id that the cluster lists; none before Kafka 3.0."""
    if not await tells_transactions(client):
        return {}
    found: dict[str, int] = {}
    for node in await _coordinators(client):
        names = [str(each.transactional_id) for each in (await _listed(client, node))[0]]
        found |= {each.transactional_id: each.transaction_timeout for each in await _described(client, node, names)}
    return found


async def last_begun(client: ClusterClient, name: str) -> int | None:
    """Return when a transactional id began its last transaction, ms since the epoch; None for an unknown id.

    −1: none, or the cluster cannot tell (before Kafka 3.0, or no DESCRIBE on the id). STILL_OPEN: an open transaction.
    """
    if ApiKey.DESCRIBE_TRANSACTIONS not in await api_versions(client):
        return -1
    try:
        state = await _state_of(client, name)
    except BrokerRefused as refused:
        if refused.code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return -1
        raise
    if state is None:
        return None
    return STILL_OPEN if state.transaction_state in OPEN_STATES else state.transaction_start_time


async def begin_and_abort(client: ClusterClient, name: str, producer: tuple[int, int]) -> int:
    """Run an empty transaction, so that its id counts as used; return the broker's error code.

    Nobody sees this: with a group that nobody has and no topic, the marker stands only in the committed offsets' topic.
    """
    await client.find_coordinator(_NOBODYS_GROUP)  # creates that topic if it is missing
    node = await client.find_coordinator(name, kind=_OF_TRANSACTIONS)
    add = entity(ApiKey.ADD_OFFSETS_TO_TXN, 3, "request")
    added = await client.call(
        add(transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id=_NOBODYS_GROUP), node
    )
    return code_of(added.error_code) or await _end(client, node, (name, *producer), committed=False)


async def add_partition(client: ClusterClient, identity: Identity, topic: str, partition: int) -> int:
    """Add a partition to a transaction of a producer; return the broker's code."""
    node = await client.find_coordinator(identity[0], kind=_OF_TRANSACTIONS)
    return await _add_partition(client, node, identity, topic, partition)


async def empty_transactions(client: ClusterClient, identity: Identity, topic: str, partition: int, count: int) -> int:
    """Write `count` markers without CLUSTER_ACTION, slowly: empty transactions (A12); return the first error code."""
    node = await client.find_coordinator(identity[0], kind=_OF_TRANSACTIONS)
    tries = Backoff(_MARKER_PAUSE_S, within_s=client.settings.request_timeout_s)
    done = 0
    while done < count:
        code = await _add_partition(client, node, identity, topic, partition, purpose=MARKERS)
        if code == Code.CONCURRENT_TRANSACTIONS and not tries.over:
            await tries.pause()
        elif code := code or await _end(client, node, identity, committed=True, purpose=MARKERS):
            return code
        else:
            done += 1
    return 0


async def _add_partition(
    client: ClusterClient, node: int, identity: Identity, topic: str, partition: int, **how: str
) -> int:
    add = entity(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "request")
    topic_type = element_type(add, "v3_and_below_topics")
    name, producer_id, epoch = identity
    answer = await client.call(
        add(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=(topic_type(name=topic, partitions=(partition,)),),
        ),
        node,
        **how,
    )
    return code_of(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


async def _end(client: ClusterClient, node: int, identity: Identity, *, committed: bool, **how: str) -> int:
    name, producer_id, epoch = identity
    end = entity(ApiKey.END_TXN, 3, "request")
    message = end(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=committed)
    return code_of((await client.call(message, node, **how)).error_code)


async def _begun(client: ClusterClient, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], OpenTransaction]:
    """Return the first open transaction of each partition, as the partition knows the transaction."""
    found: dict[tuple[str, int], OpenTransaction] = {}
    for key, (error, producers) in (await client.describe_producers(keys)).items():
        waiting = [p for p in producers if p.txn_start_offset >= 0]
        if not error and waiting:
            first = min(waiting, key=lambda p: p.txn_start_offset)
            found[key] = OpenTransaction(first.txn_start_offset, first.producer_id, first.last_timestamp)
    return found


async def _coordinators(client: ClusterClient) -> list[int]:
    """Return all brokers, because each broker may coordinate transactions."""
    if not client.metadata.brokers:
        await client.refresh([])
    return sorted(client.metadata.brokers)


async def _listed(
    client: ClusterClient, node: int, *, states: Iterable[str] = (), producers: Iterable[int] = ()
) -> tuple[list[Message], int]:
    """Return the transactions that a coordinator lists, and the error code."""
    request = entity(ApiKey.LIST_TRANSACTIONS, 0, "request")
    answer = await client.call(request(state_filters=tuple(states), producer_id_filters=tuple(producers)), node)
    return list(answer.transaction_states), code_of(answer.error_code)


async def _open_ids(client: ClusterClient, node: int, producers: Iterable[int] = ()) -> set[str]:
    """Return the ids with an open transaction at a coordinator, of these producers or of all; raise Unreachable."""
    listed, code = await _listed(client, node, states=() if producers else OPEN_STATES, producers=producers)
    if code:
        raise Unreachable("transactions-unknown", f"broker {node} cannot list its transactions now")
    return {str(each.transactional_id) for each in listed if str(each.transaction_state) in OPEN_STATES}


async def _described(client: ClusterClient, node: int, names: Collection[str]) -> list[DescribedTransaction]:
    """Return a coordinator's descriptions of transactional ids; leave out ids that the coordinator cannot describe."""
    request = entity(ApiKey.DESCRIBE_TRANSACTIONS, 0, "request")
    wanted, found = sorted(names), list[DescribedTransaction]()
    for at in range(0, len(wanted), _MOST_DESCRIBED):
        answer = await client.call(request(transactional_ids=tuple(wanted[at : at + _MOST_DESCRIBED])), node)
        found += (each for each in answer.transaction_states if not each.error_code)
    return found


async def _open_everywhere(client: ClusterClient, names: frozenset[str] | None = None) -> list[CoordinatedTransaction]:
    """Return the open transactions of all coordinators, of these ids or of all ids; raise Unreachable."""
    found = await together(*(_open_at(client, node, names) for node in await _coordinators(client)))
    return [each for of_coordinator in found for each in of_coordinator]


async def _open_at(client: ClusterClient, node: int, names: frozenset[str] | None) -> list[CoordinatedTransaction]:
    open_ = await _open_ids(client, node)
    return [
        CoordinatedTransaction(
            each.transactional_id,
            each.producer_id,
            each.transaction_start_time,
            tuple((topic.topic, partition) for topic in each.topics for partition in topic.partitions),
        )
        for each in await _described(client, node, open_ if names is None else open_ & names)
        if each.transaction_state in OPEN_STATES
    ]


async def _named(client: ClusterClient, producers: set[int]) -> dict[int, tuple[str, int]] | None:
    """Return transactional id and start by producer id; None if a coordinator could not be asked."""

    async def named_by(node: int) -> list[DescribedTransaction]:
        return await _described(client, node, await _open_ids(client, node, producers))

    try:
        found = await together(*map(named_by, await _coordinators(client)))
    except KmigrateError:
        return None
    return {
        each.producer_id: (each.transactional_id, each.transaction_start_time)
        for described in found
        for each in described
    }


@dataclass(frozen=True, slots=True)
class IdState:
    """A transactional id as its coordinator describes the id."""

    producer_id: int
    epoch: int
    state: str

    @property
    def is_open(self) -> bool:
        """True for an open transaction, also while its markers are being written."""
        return self.state in OPEN_STATES

    @property
    def is_empty(self) -> bool:
        """True if this identity has had no transaction yet."""
        return self.state == _EMPTY

    @property
    def aborted(self) -> bool:
        """True if the identity's last transaction was aborted."""
        return self.state not in (_EMPTY, _COMMITTED)


async def id_state(client: ClusterClient, name: str) -> IdState | None:
    """Return producer and state of a transactional id; None if the cluster knows no such id (Kafka ≥ 3.0)."""
    state = await _state_of(client, name)
    return IdState(state.producer_id, state.producer_epoch, state.transaction_state) if state is not None else None


async def _state_of(client: ClusterClient, name: str) -> DescribedTransaction | None:
    """Return the description of a transactional id; None for an unknown id. Raise BrokerRefused or Unreachable."""
    request = entity(ApiKey.DESCRIBE_TRANSACTIONS, 0, "request")
    answer = await client.call(request(transactional_ids=(name,)), await _coordinator(client, name))
    state: DescribedTransaction = answer.transaction_states[0]
    code = state.error_code
    if code == Code.TRANSACTIONAL_ID_NOT_FOUND or (not code and state.transaction_state == _GONE):
        return None
    _refuse_denied(client, name, code)
    if code:
        raise Unreachable("transactions-unknown", f"{name}: DescribeTransactions answered {row(code).name}")
    return state


async def end_transaction(client: ClusterClient, identity: Identity, *, committed: bool) -> int:
    """Send EndTxn; return its code: 0 for a transaction ended the same way before, INVALID_TXN_STATE for the other."""
    code = await _end(client, await _coordinator(client, identity[0]), identity, committed=committed)
    _refuse_denied(client, identity[0], code)
    return code


async def raise_epoch(client: ClusterClient, identity: Identity) -> int:
    """Send InitProducerId with exactly this identity; return the code. A faster producer keeps its newer epoch."""
    name, producer_id, epoch = identity
    init = entity(ApiKey.INIT_PRODUCER_ID, 4, "request")
    message = init(
        transactional_id=name, transaction_timeout=_USUAL_TIMEOUT, producer_id=producer_id, producer_epoch=epoch
    )
    code = code_of((await client.call(message, await _coordinator(client, name))).error_code)
    _refuse_denied(client, name, code)
    return code


async def may_write_markers(client: ClusterClient) -> bool:
    """Return whether a cluster takes control markers from us, asked with a topic that does not exist."""
    if ApiKey.WRITE_TXN_MARKERS not in await api_versions(client):
        return False
    node = (await _coordinators(client))[0]
    code = await client.write_markers(node, _NO_TOPIC, 0, 1, producer_id=0, epoch=0, coordinator_epoch=0, commit=False)
    return code != Code.CLUSTER_AUTHORIZATION_FAILED


async def refuse_unwritable_id(client: ClusterClient, name: str) -> None:
    """Raise BrokerRefused if we may not write with this id; the check, an EndTxn without a producer, ends nothing."""
    await end_transaction(client, (name, _NOBODY, _NOBODY), committed=False)


async def _coordinator(client: ClusterClient, name: str) -> int:
    try:
        return await client.find_coordinator(name, kind=_OF_TRANSACTIONS)
    except BrokerRefused as refused:
        _refuse_denied(client, name, refused.code)
        raise


def _refuse_denied(client: ClusterClient, name: str, code: int) -> None:
    if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        raise BrokerRefused(
            "transactional-id-denied",
            f"cluster {client.settings.name} does not let {client.settings.security.principal} "
            f"WRITE transactional id {name}",
            code=code,
            next_step=f"allow {client.settings.security.principal} WRITE on transactional id {name} at cluster "
            f"{client.settings.name}",
        )
