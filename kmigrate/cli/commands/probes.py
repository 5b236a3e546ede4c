"""Probes of the abilities that kmigrate needs of a cluster: a probe reads, or asks about a topic that cannot exist."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.brokers import advertised_faults, refuse_unreachable_brokers
from kmigrate.cluster.client import PRODUCER_EXPIRATION, ClusterClient
from kmigrate.cluster.kafka_version import read_apis, version_text
from kmigrate.cluster.producer_expiration import ONE_AT_A_TIME, short_memory
from kmigrate.cluster.transactions import may_write_markers
from kmigrate.errors import BrokerRefused, KmigrateError, Unreachable
from kmigrate.model.ids import is_internal
from kmigrate.model.patterns import NamePattern, chosen_groups
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import SIZE_LIMIT
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import ApiKey
from kmigrate.state.checks import find_strays
from kmigrate.state.log import StateLog
from kmigrate.state.topics import STATE_TOPIC, check_state_log
from kmigrate.workflow.base.broker_settings import BrokerSettings, read_settings
from kmigrate.workflow.base.plan import Finding, ok, refuse, warn
from kmigrate.workflow.base.rights import Wanted, rights_findings
from kmigrate.workflow.verbs import state_findings

__all__ = ["ClusterIdentity", "find_names", "identify_cluster", "probe_cluster", "probe_rights", "probe_settings"]

_SECONDS = 12.0
_STRAYS_S = 4.0
"""Maximum seconds for the search for strays, which reads all of kmigrate's topics."""


_ABILITIES = (
    (
        ApiKey.DESCRIBE_PRODUCERS,
        "describe-producers",
        "DescribeProducers: writers that pass the router by are seen at once",
        "no DescribeProducers (Kafka < 2.8): promote cannot prove that nobody writes past the router",
    ),
    (
        ApiKey.DESCRIBE_TRANSACTIONS,
        "describe-transactions",
        "DescribeTransactions: an open transaction that the mirror waits for is named",
        "no DescribeTransactions (Kafka < 3.0): an open transaction is known by its producer id only",
    ),
    (
        ApiKey.DELETE_RECORDS,
        "delete-records",
        "DeleteRecords: log starts can be aligned",
        "no DeleteRecords: a topic whose log does not start at 0 cannot keep its offsets here",
    ),
    (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        "kip-848",
        "new consumer groups (KIP-848) are served",
        "no KIP-848 groups: clients with group.protocol=consumer cannot move here",
    ),
)
"""APIs with the reference of their finding, and what a cluster can do with and without each."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The answer to a first connection: which cluster answers."""

    cluster_id: str
    brokers: int
    version: str
    topics: int
    """Topics that can be mirrored."""


async def identify_cluster(settings: ClusterSettings) -> ClusterIdentity:
    """Return which cluster answers at an address; raise if no broker answers, or a broker's own address leads nowhere.

    A broker that cannot be reached at its advertised address is refused: no copy would come from there.
    """
    async with _within_seconds(settings) as client:
        metadata = await client.refresh()
        await refuse_unreachable_brokers(client)
        _, level = await read_apis(client)
        topics = sum(not is_internal(name) for name in metadata.topics)
        return ClusterIdentity(metadata.cluster_id, len(metadata.brokers), version_text(level), topics)


async def probe_cluster(settings: ClusterSettings) -> list[Finding]:
    """Return the findings about a cluster; raise Unreachable if the cluster does not answer at all."""
    async with _within_seconds(settings) as client:
        return await _probe(client)


@asynccontextmanager
async def _within_seconds(settings: ClusterSettings) -> AsyncIterator[ClusterClient]:
    try:
        async with asyncio.timeout(_SECONDS), ClusterClient(settings) as client:
            yield client
    except TimeoutError:
        raise Unreachable(
            "cluster-unreachable",
            f"cluster {settings.name} ({settings.bootstrap_servers}) did not answer within {_SECONDS:g} s",
            next_step=f"check the bootstrap address of [clusters.{settings.name}] and that its brokers run",
        ) from None


async def probe_settings(settings: ClusterSettings) -> BrokerSettings:
    """Return the broker settings of a cluster; raise if the cluster does not answer or refuses to show its settings."""
    try:
        async with asyncio.timeout(_SECONDS), ClusterClient(settings) as client:
            with Admin(client.settings) as admin:
                return await read_settings(client, admin)
    except TimeoutError:
        raise Unreachable("cluster-unreachable", f"cluster {settings.name} did not answer") from None


async def find_names(settings: ClusterSettings) -> tuple[list[str], list[str]]:
    """Return the topics and groups of a source that can be mirrored and that kmigrate's principal may see."""
    async with _within_seconds(settings) as client:
        topics = [name for name in (await client.refresh()).topics if not is_internal(name)]
        with Admin(client.settings) as admin:
            return topics, chosen_groups([NamePattern(".*")], await admin.groups())


async def probe_rights(settings: ClusterSettings, wanted: Wanted) -> list[Finding]:
    """Return which rights kmigrate's principal lacks on a cluster."""
    try:
        async with _within_seconds(settings) as client:
            await client.refresh([])
            return await rights_findings(client, wanted)
    except Unreachable as error:
        return [warn("rights-unknown", f"rights on {settings.name} were not checked: {error.what}", error.next_step)]


async def _probe(client: ClusterClient) -> list[Finding]:
    metadata = await client.refresh([])
    apis, level = await read_apis(client)
    answer = f"{len(metadata.brokers)} broker(s), Kafka {version_text(level)}, cluster id {metadata.cluster_id}"
    found = [ok("cluster-answers", answer)]
    faults = await advertised_faults(client)
    found += [refuse("advertised-unreachable", fault.text, fault.next_step) for fault in faults]
    if faults:  # the other probes contact the brokers at these addresses
        return found
    found += [ok(ref, there) if api in apis else warn(ref, missing) for api, ref, there, missing in _ABILITIES]
    found += [await _markers(client, apis), await _memory(client)]
    found.append(await _authorizer(client, apis))
    found.append(await _state_log(client))
    if client.metadata.topics.get(STATE_TOPIC) is not None:
        found += await state_findings(client)
        found += await _strays(client)
        found += await _kept_out(client)
    return found


async def _strays(client: ClusterClient) -> list[Finding]:
    try:
        async with asyncio.timeout(_STRAYS_S):
            strays = await find_strays(client)
    except TimeoutError:
        what = f"kmigrate's topics could not be read within {_STRAYS_S:g} s: strays in them are not named"
        return [warn("stray-records", what)]
    except KmigrateError as error:
        return [warn(error.ref, error.what, error.next_step)]
    advice = "keep their writer out: kmigrate link check LINK names the ACL"
    return [warn("stray-records", each, advice) for each in strays]


async def _kept_out(client: ClusterClient) -> list[Finding]:
    """Warn of the clients that routers of this target keep out."""
    try:
        async with asyncio.timeout(_STRAYS_S), StateLog(client) as log:
            routers = log.alive(RouterPresence)
    except (TimeoutError, KmigrateError):
        return []  # `_state_log` and `_strays` report a log that cannot be read
    advice = "use a newer library for this client, or correct the broker version in its settings (docs/apis.md)"
    told = [f"router {router.name}: {each.text}" for router in routers for each in router.kept_out]
    return [warn("client-kept-out", each, advice) for each in told]


async def _markers(client: ClusterClient, apis: dict[int, int]) -> Finding:
    """Return whether kmigrate may write control markers, tested with a topic that does not exist."""
    cost = "holes are filled by empty transactions (1 to 6 ms each)"
    if ApiKey.WRITE_TXN_MARKERS not in apis:
        return warn("write-txn-markers", f"no WriteTxnMarkers: {cost}")
    if not await may_write_markers(client):
        return warn("write-txn-markers", f"WriteTxnMarkers is not allowed: {cost}", "grant CLUSTER_ACTION")
    return ok("write-txn-markers", "WriteTxnMarkers is allowed: holes are filled at once")


async def _memory(client: ClusterClient) -> Finding:
    with Admin(client.settings) as admin:
        why = await short_memory(client, admin)
    if why:
        return warn("short-memory", f"as a target: {why}; {ONE_AT_A_TIME}")
    return ok("producer-memory", f"{PRODUCER_EXPIRATION} can be raised while it is a target")


async def _authorizer(client: ClusterClient, apis: dict[int, int]) -> Finding:
    if ApiKey.DESCRIBE_ACLS not in apis:
        return ok("authorizer", "no ACLs: none have to be moved")
    try:
        rules = await read_acls(client)
    except BrokerRefused as error:
        return warn(error.ref, error.what, error.next_step)
    if rules is None:
        return ok("authorizer", "no authorizer: no ACLs have to be moved")
    return ok(
        "authorizer",
        f"an authorizer with {len(rules)} ACLs on topics and groups: those of mirrored names are carried over",
    )


async def _state_log(client: ClusterClient) -> Finding:
    if await client.topic(STATE_TOPIC) is None:
        return ok("state-log", "no state log: not the target of any link yet")
    try:
        with Admin(client.settings) as admin:
            faults = await check_state_log(client, admin)
    except BrokerRefused as error:
        what = f"{error.what}; only a target needs this right"
        return warn(error.ref, what, error.next_step)
    except KmigrateError as error:
        return refuse(error.ref, error.what, error.next_step)
    weak = [fault.text for fault in faults if fault.key != SIZE_LIMIT]
    if weak:
        return warn("state-log-weak", "; ".join(weak), "the next start of an engine sets all but min.insync.replicas")
    return ok("state-log", "holds the state log: the target of links")
