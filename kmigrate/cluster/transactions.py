"""Open transactions as partitions and coordinators tell them: what a read_committed reader waits for, by name.

A partition knows the producer id and where its transaction begins (DescribeProducers, Kafka ≥ 2.8); only the
coordinators know the transactional id and since when it is open (ListTransactions, DescribeTransactions, ≥ 3.0).
A transaction that no coordinator knows is a hanging one: nothing but an operator will ever end it (KIP-664).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from kmigrate.cluster.client import ClusterClient, code_of, millis_of
from kmigrate.errors import KmigrateError
from kmigrate.net.tasks import together
from kmigrate.protocol.api import entity

__all__ = ["OpenTransaction", "open_transactions"]

_API_VERSIONS, _DESCRIBE_PRODUCERS, _DESCRIBE_TRANSACTIONS, _LIST_TRANSACTIONS = 18, 61, 65, 66


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
    """Also a transaction that is being ended still holds the stable end back."""
    return str(state) in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
