"""Open transactions as partitions and coordinators tell them: what a read_committed reader waits for, by name.

A partition knows the producer id and where its transaction begins (DescribeProducers, Kafka ≥ 2.8); only the
coordinators know the transactional id and since when it is open (ListTransactions, DescribeTransactions, ≥ 3.0).
A transaction that no coordinator knows is a hanging one: nothing but an operator will ever end it (KIP-664).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused, KmigrateError, Unreachable
from kmigrate.net.tasks import together
from kmigrate.protocol.api import element_type, entity, millis_of
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.protocol.described import OPEN_STATES

__all__ = [
    "STILL_OPEN",
    "GroupTransaction",
    "OpenTransaction",
    "add_partition",
    "begin_and_abort",
    "group_partition",
    "group_transactions",
    "last_begun",
    "listed_ids",
    "open_topics",
    "open_transactions",
    "open_writers",
    "tells_transactions",
    "transaction_timeouts",
]

_API_VERSIONS, _DESCRIBE_PRODUCERS, _DESCRIBE_TRANSACTIONS, _LIST_TRANSACTIONS = 18, 61, 65, 66
_OF_TRANSACTIONS = 1
_MOST_DESCRIBED = 1_000
"""Transactional ids of one DescribeTransactions request."""
_OFFSETS = "__consumer_offsets"
_MOST_NAMED = 5
"""Partitions of a transaction that are named."""
_NOBODYS_GROUP = "__kmigrate_nobody"
_GONE = "Dead"
"""State of an id that its coordinator is about to forget."""
STILL_OPEN = 1 << 62
"""In place of when a transaction began: younger than any, by whosever clock its age is told."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The first open transaction of a partition; times in ms since the epoch, −1 where unknown."""

    offset: int
    """Its first record: readers of committed data get nothing from here on."""
    producer_id: int
    last_write_ms: int
    transactional_id: str = ""
    """'' where the cluster cannot tell, or where no coordinator knows the transaction any more."""
    started_ms: int = -1
    hanging: bool = False
    """No coordinator has it open."""

    def open_ms(self, now_ms: int) -> int:
        """How long it is open; where only its last write is known, at least so long."""
        since = self.started_ms if self.started_ms >= 0 else self.last_write_ms
        return max(0, now_ms - since)

    def told(self, now_ms: int) -> str:
        """Whom the partition waits for, for a person."""
        who = f"producer {self.producer_id}"
        if self.transactional_id:
            who = f"{self.transactional_id} ({who})"
        if self.hanging:
            who += " (hanging: no coordinator knows it as open; end it with kafka-transactions.sh abort)"
        time = f"{'' if self.started_ms >= 0 else 'at least '}{self.open_ms(now_ms) // 1000} s"
        return f"waits at offset {self.offset} for the transaction of {who}, open for {time}"


async def open_transactions(
    client: ClusterClient, keys: Collection[tuple[str, int]]
) -> dict[tuple[str, int], OpenTransaction]:
    """The transaction that each partition's stable end waits for; partitions without one are left out."""
    if not keys:
        return {}
    apis = await _apis(client)
    if _DESCRIBE_PRODUCERS not in apis:
        return {}
    found = await _begun(client, keys)
    if not found or not {_LIST_TRANSACTIONS, _DESCRIBE_TRANSACTIONS} <= apis:
        return found
    named = await _named(client, {each.producer_id for each in found.values()})
    if named is None:
        return found
    nameless = [key for key, each in found.items() if each.producer_id not in named]
    # It may just have ended. A coordinator calls a transaction ended only after all partitions have its marker.
    still = await _begun(client, nameless) if nameless else {}
    out: dict[tuple[str, int], OpenTransaction] = {}
    for key, each in found.items():
        if each.producer_id in named:
            name, started = named[each.producer_id]
            out[key] = replace(each, transactional_id=name, started_ms=started)
        elif key in still and still[key].offset == each.offset:
            out[key] = replace(still[key], hanging=True)
    return out


async def open_topics(client: ClusterClient, names: Collection[str]) -> dict[str, frozenset[str]] | None:
    """Of these transactional ids those that have a transaction open, each with its topics whose marker is not written.

    Asked of every broker: each knows the ids that it coordinates. None before Kafka 3.0; Unreachable where a broker
    cannot tell now.
    """
    if not names:
        return {}
    if not {_LIST_TRANSACTIONS, _DESCRIBE_TRANSACTIONS} <= await _apis(client):
        return None
    if not client.metadata.brokers:
        await client.refresh([])
    found: dict[str, frozenset[str]] = {}
    for node in sorted(client.metadata.brokers):
        told = await _open_at(client, node, frozenset(names))
        found.update({name: each.topics for name, each in told.items()})
    return found


@dataclass(frozen=True, slots=True)
class GroupTransaction:
    """An open transaction that keeps a group's committed offsets back, as its coordinator tells the transaction."""

    transactional_id: str
    producer_id: int
    started_ms: int
    """Start of the transaction, ms since the epoch; -1 where unknown."""
    partitions: tuple[tuple[str, int], ...]
    """Partitions that have no marker of the transaction yet."""

    def told(self, now_ms: int) -> str:
        """Name the transaction for a person."""
        since = f", open for {max(0, now_ms - self.started_ms) // 1000} s" if self.started_ms >= 0 else ""
        named = ", ".join(f"{topic}-{partition}" for topic, partition in self.partitions[:_MOST_NAMED])
        more = f" and {len(self.partitions) - _MOST_NAMED} more" if len(self.partitions) > _MOST_NAMED else ""
        on = f", on {named}{more}" if named else ""
        return f"{self.transactional_id} (producer {self.producer_id}{since}{on})"


async def group_transactions(client: ClusterClient, group: str, names: Collection[str]) -> list[GroupTransaction]:
    """Return the open transactions that may hold committed offsets of a group; none before Kafka 3.0.

    These are the transactions of `names`, and those that have the group's partition of the offsets topic. Raises
    BrokerRefused or Unreachable.
    """
    if not {_LIST_TRANSACTIONS, _DESCRIBE_TRANSACTIONS} <= await _apis(client):
        return []
    offsets = await client.topic(_OFFSETS)
    own = (_OFFSETS, group_partition(group, len(offsets.partitions))) if offsets and offsets.partitions else None
    nodes = sorted(client.metadata.brokers)
    return [
        GroupTransaction(name, each.producer_id, each.began, each.partitions)
        for told in await together(*(_open_at(client, node) for node in nodes))
        for name, each in sorted(told.items())
        if name in names or own in each.partitions
    ]


def group_partition(group: str, partitions: int) -> int:
    """Return a group's partition of the offsets topic: Java's hash of the name, without the sign."""
    value = 0
    for unit in memoryview(group.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return (value & 0x7FFF_FFFF) % partitions


async def open_writers(client: ClusterClient, topic: str, partitions: int) -> dict[str, frozenset[int]]:
    """Who has a transaction open at a topic, or markers of one to come, each with what tells it from the next one.

    By transactional id with the time when it began, from Kafka 3.0 on, where coordinators tell also of what has written
    nothing yet, and not of what hangs: nobody will write markers for that. Before, by the producer's number, as its
    partitions know it, with the offsets where it began.
    """
    found: dict[str, frozenset[int]] = {}
    if {_LIST_TRANSACTIONS, _DESCRIBE_TRANSACTIONS} <= await _apis(client):
        if not client.metadata.brokers:
            await client.refresh([])
        coordinators = sorted(client.metadata.brokers)
        for told in await together(*(_open_at(client, node) for node in coordinators)):
            found |= {name: frozenset({each.began}) for name, each in told.items() if topic in each.topics}
        return found
    for _, producers in (await client.describe_producers([(topic, p) for p in range(partitions)])).values():
        for each in producers:
            if each.txn_start_offset >= 0:
                name = f"producer {each.producer_id}"
                found[name] = found.get(name, frozenset()) | {each.txn_start_offset}
    return found


async def tells_transactions(client: ClusterClient) -> bool:
    """Whether a cluster's coordinators tell of their transactions (Kafka ≥ 3.0)."""
    return _DESCRIBE_TRANSACTIONS in await _apis(client)


async def listed_ids(client: ClusterClient) -> set[str]:
    """Transactional ids that a cluster knows and names to us, by one question to each broker.

    Of others it may know, too: before Kafka 3.0 it names none, later none without DESCRIBE on it, and none that moves.
    """
    if _LIST_TRANSACTIONS not in await _apis(client):
        return set()
    if not client.metadata.brokers:
        await client.refresh([])
    listing = entity(_LIST_TRANSACTIONS, 0, "request")
    found: set[str] = set()
    for node in sorted(client.metadata.brokers):
        listed = await client.call(listing(state_filters=(), producer_id_filters=()), node)
        told = listed.transaction_states
        found.update(str(each.transactional_id) for each in told if str(each.transaction_state) != _GONE)
    return found


async def transaction_timeouts(client: ClusterClient) -> dict[str, int]:
    """Return the transaction.timeout.ms of each transactional id that the cluster names; none before Kafka 3.0."""
    if not {_LIST_TRANSACTIONS, _DESCRIBE_TRANSACTIONS} <= await _apis(client):
        return {}
    if not client.metadata.brokers:
        await client.refresh([])
    listing, describing = (entity(key, 0, "request") for key in (_LIST_TRANSACTIONS, _DESCRIBE_TRANSACTIONS))
    found: dict[str, int] = {}
    for node in sorted(client.metadata.brokers):
        listed = await client.call(listing(state_filters=(), producer_id_filters=()), node)
        names = [str(each.transactional_id) for each in listed.transaction_states]
        for at in range(0, len(names), _MOST_DESCRIBED):
            told = await client.call(describing(transactional_ids=tuple(names[at : at + _MOST_DESCRIBED])), node)
            found |= {
                str(each.transactional_id): int(each.transaction_timeout)
                for each in told.transaction_states
                if not code_of(each.error_code)
            }
    return found


async def last_begun(client: ClusterClient, name: str) -> int | None:
    """When a transactional id began its last transaction, ms since the epoch; None where the cluster knows no such id.

    −1 for never, also where it cannot be told (before Kafka 3.0, or without DESCRIBE on the id); STILL_OPEN for an open
    transaction.
    """
    if _DESCRIBE_TRANSACTIONS not in await _apis(client):
        return -1
    describing = entity(_DESCRIBE_TRANSACTIONS, 0, "request")
    try:
        node = await client.find_coordinator(name, kind=_OF_TRANSACTIONS)
    except BrokerRefused as refused:
        if refused.code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return -1
        raise
    state = (await client.call(describing(transactional_ids=(name,)), node)).transaction_states[0]
    code = code_of(state.error_code)
    if code == Code.TRANSACTIONAL_ID_NOT_FOUND or (not code and str(state.transaction_state) == _GONE):
        return None
    if code:
        raise Unreachable("transactions-unknown", f"{name}: DescribeTransactions answered {row(code).name}")
    return STILL_OPEN if _is_open(state.transaction_state) else millis_of(state.transaction_start_time)


async def begin_and_abort(client: ClusterClient, name: str, producer: tuple[int, int]) -> int:
    """An empty transaction: its id counts as used, and nobody sees it; the broker's error code.

    It names a group that nobody has and not a topic, so its marker stands in no topic but that of group offsets.
    """
    await client.find_coordinator(_NOBODYS_GROUP)  # which makes that topic where it is missing
    node = await client.find_coordinator(name, kind=_OF_TRANSACTIONS)
    add, end = entity(25, 3, "request"), entity(26, 3, "request")
    holder = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
    added = await client.call(add(**holder, group_id=_NOBODYS_GROUP), node)
    if code := code_of(added.error_code):
        return code
    return code_of((await client.call(end(**holder, committed=False), node)).error_code)


async def add_partition(client: ClusterClient, holder: tuple[str, int, int], topic: str, partition: int) -> int:
    """Put a partition into the transaction of a holder (transactional id, producer id, epoch); the broker's code."""
    name, producer_id, epoch = holder
    node = await client.find_coordinator(name, kind=_OF_TRANSACTIONS)
    add = entity(24, 3, "request")
    topic_type = element_type(add, "v3_and_below_topics")
    answer = await client.call(
        add(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=(topic_type(name=topic, partitions=(partition,)),),
        ),
        node,
    )
    return code_of(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


async def _begun(
    client: ClusterClient, keys: Collection[tuple[str, int]]
) -> dict[tuple[str, int], OpenTransaction]:
    """The first open transaction of each partition, as the partition knows it."""
    found: dict[tuple[str, int], OpenTransaction] = {}
    for key, (error, producers) in (await client.describe_producers(keys)).items():
        waiting = [p for p in producers if p.txn_start_offset >= 0]
        if not error and waiting:
            first = min(waiting, key=lambda p: p.txn_start_offset)
            found[key] = OpenTransaction(first.txn_start_offset, first.producer_id, first.last_timestamp)
    return found


@dataclass(frozen=True, slots=True)
class _Open:
    """An open transaction as its coordinator tells it: its topics whose marker is not written, and since when."""

    topics: frozenset[str]
    began: int
    producer_id: int = -1
    partitions: tuple[tuple[str, int], ...] = ()


async def _open_at(client: ClusterClient, node: int, names: frozenset[str] | None = None) -> dict[str, _Open]:
    """The open transactions of a coordinator, of these ids or of all."""
    listing, describing = entity(_LIST_TRANSACTIONS, 0, "request"), entity(_DESCRIBE_TRANSACTIONS, 0, "request")
    listed = await client.call(listing(state_filters=OPEN_STATES, producer_id_filters=()), node)
    if code_of(listed.error_code):
        raise Unreachable("transactions-unknown", f"broker {node} cannot list its transactions now")
    open_ = {str(each.transactional_id) for each in listed.transaction_states}
    if names is not None:
        open_ &= names
    if not open_:
        return {}
    described = await client.call(describing(transactional_ids=tuple(sorted(open_))), node)
    return {
        str(each.transactional_id): _Open(
            frozenset(str(topic.topic) for topic in each.topics),
            millis_of(each.transaction_start_time),
            int(each.producer_id),
            tuple((str(topic.topic), int(partition)) for topic in each.topics for partition in topic.partitions),
        )
        for each in described.transaction_states
        if not code_of(each.error_code) and _is_open(each.transaction_state)
    }


async def _apis(client: ClusterClient) -> set[int]:
    """API keys of a broker: an older one answers an unknown request by closing the connection."""
    request = entity(_API_VERSIONS, 3, "request")
    answer = await client.call(request(client_software_name="kmigrate", client_software_version="1"))
    return {int(api.api_key) for api in answer.api_keys}


async def _named(client: ClusterClient, producers: set[int]) -> dict[int, tuple[str, int]] | None:
    """Transactional id and start by producer id; None where a coordinator could not be asked."""
    if not client.metadata.brokers:
        await client.refresh([])
    named: dict[int, tuple[str, int]] = {}
    try:
        answers = await together(*(_of_coordinator(client, node, producers) for node in client.metadata.brokers))
    except KmigrateError:
        return None
    for told in answers:
        if told is None:
            return None
        named.update(told)
    return named


async def _of_coordinator(
    client: ClusterClient, node: int, producers: Iterable[int]
) -> dict[int, tuple[str, int]] | None:
    listing = entity(_LIST_TRANSACTIONS, 0, "request")
    listed = await client.call(listing(state_filters=(), producer_id_filters=tuple(producers)), node)
    if code_of(listed.error_code):
        return None
    open_ = {str(each.transactional_id) for each in listed.transaction_states if _is_open(each.transaction_state)}
    if not open_:
        return {}
    describing = entity(_DESCRIBE_TRANSACTIONS, 0, "request")
    described = await client.call(describing(transactional_ids=tuple(sorted(open_))), node)
    return {
        int(each.producer_id): (str(each.transactional_id), millis_of(each.transaction_start_time))
        for each in described.transaction_states
        if not code_of(each.error_code)
    }


def _is_open(state: str) -> bool:
    return str(state) in OPEN_STATES
