"""Requests to a transactional id's coordinator, sent with the identity of a producer that holds the id.

These requests end only open transactions, and write nothing to a partition while no transaction is open. Tried on
2.8.2, 3.9.1 and 4.3.1: an InitProducerId with the present identity raises the epoch (KIP-360), and repeats raise the
epoch only once. From then on the coordinator refuses every request of the older epoch with PRODUCER_FENCED. If a
transaction is open, the coordinator aborts the transaction and answers CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.protocol.described import OPEN_STATES

__all__ = ["NO_MORE", "Identity", "Now", "end_as", "may_speak_for", "now_at", "raise_epoch"]

Identity = tuple[str, int, int]
"""Transactional id, producer id and epoch."""
NO_MORE = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING})
"""Codes of a coordinator that accepts no request of an identity any more."""

_OF_TRANSACTIONS = 1
_NOBODY = -1
_USUAL_TIMEOUT = dt.timedelta(seconds=60)
"""Transaction timeout of an epoch that no producer gets: the next producer sets its own timeout."""
_EMPTY, _COMMITTED, _GONE = "Empty", "CompleteCommit", "Dead"


@dataclass(frozen=True, slots=True)
class Now:
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


async def now_at(client: ClusterClient, name: str) -> Now | None:
    """Return producer and state of a transactional id; None if the cluster knows no such id (Kafka ≥ 3.0)."""
    node = await _coordinator(client, name)
    told = (
        await client.call(entity(ApiKey.DESCRIBE_TRANSACTIONS, 0, "request")(transactional_ids=(name,)), node)
    ).transaction_states[0]
    code = code_of(told.error_code)
    if code == Code.TRANSACTIONAL_ID_NOT_FOUND or (not code and str(told.transaction_state) == _GONE):
        return None
    _refuse_denied(client, name, code)
    if code:
        raise Unreachable("transactions-unknown", f"{name}: DescribeTransactions answered {row(code).name}")
    return Now(int(told.producer_id), int(told.producer_epoch), str(told.transaction_state))


async def end_as(client: ClusterClient, identity: Identity, *, committed: bool) -> int:
    """Send EndTxn and return the coordinator's code.

    For a transaction that has already ended the same way the code is 0, otherwise INVALID_TXN_STATE.
    """
    name, producer_id, epoch = identity
    ending = entity(ApiKey.END_TXN, 3, "request")
    message = ending(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=committed)
    code = code_of((await client.call(message, await _coordinator(client, name))).error_code)
    _refuse_denied(client, name, code)
    return code


async def raise_epoch(client: ClusterClient, identity: Identity) -> int:
    """Send InitProducerId with exactly this identity, and return the coordinator's code.

    A producer that was faster keeps its newer epoch.
    """
    name, producer_id, epoch = identity
    init = entity(ApiKey.INIT_PRODUCER_ID, 4, "request")
    message = init(
        transactional_id=name, transaction_timeout=_USUAL_TIMEOUT, producer_id=producer_id, producer_epoch=epoch
    )
    code = code_of((await client.call(message, await _coordinator(client, name))).error_code)
    _refuse_denied(client, name, code)
    return code


async def may_speak_for(client: ClusterClient, name: str) -> None:
    """Raise BrokerRefused if the cluster does not let us write with this transactional id.

    The check is an EndTxn without a producer, which ends no transaction.
    """
    await end_as(client, (name, _NOBODY, _NOBODY), committed=False)


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
