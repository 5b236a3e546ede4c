"""Finds out which cluster or router answers at the bootstrap addresses that clients hold, by asking there.

Clients need an address at each start: after the routers it must lead to target brokers, or to a router that stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kmigrate.cluster.client import ClusterClient, api_versions
from kmigrate.errors import KmigrateError, Unreachable, UsageError
from kmigrate.model.digits import whole_number
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.dial import addresses_of
from kmigrate.protocol.api import ApiKey
from kmigrate.state.checks import is_other_cluster
from kmigrate.workflow.base.plan import Finding, ok, refuse, warn

__all__ = ["Bootstrap", "Leads", "ask_bootstraps", "bootstrap_findings", "host_and_port", "takes_connections"]

_ANSWER_S = 8.0


class Leads(StrEnum):
    """The kinds of server that an address leads to, the worst first."""

    NOWHERE = "nowhere"
    ELSEWHERE = "elsewhere"
    ROUTER = "router"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """One address that clients hold, and where the address leads."""

    address: str
    leads: Leads
    answer: str
    """The answer found at the address, as the end of a sentence."""


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.strip().rpartition(":")
    number = whole_number(port)
    if not host or "://" in host or number is None or not 0 < number < 1 << 16:
        raise UsageError(
            "bad-address",
            f"{address!r} is no bootstrap address",
            still_true="nothing was changed",
            next_step="expected: HOST:PORT, without a protocol in front",
        )
    return host.removeprefix("[").removesuffix("]"), number


async def ask_bootstraps(target: ClusterClient, addresses: Sequence[str]) -> list[Bootstrap]:
    """Ask each address, and each machine behind a name, so that a dead machine is found even beside others."""
    await target.refresh([])
    brokers: set[tuple[str, int]] = set()
    for host, port in target.metadata.brokers.values():
        try:
            brokers |= {(each, port) for each in await addresses_of(host, port)}
        except Unreachable:  # this machine may know brokers by other names than the brokers advertise
            continue
    return [await _ask(target, address, brokers) for address in dict.fromkeys(addresses)]


async def _ask(target: ClusterClient, address: str, brokers: Collection[tuple[str, int]]) -> Bootstrap:
    host, port = host_and_port(address)
    try:
        behind = sorted(await addresses_of(host, port))
    except Unreachable as error:
        return Bootstrap(address, Leads.NOWHERE, error.what)
    # A certificate is for the name, so with TLS only the name can be asked.
    asked = behind if target.settings.security.tls is None else [host]
    found = [await _ask_one(target, address, each, port) for each in asked]
    worst = min(found, key=lambda each: list(Leads).index(each.leads))
    if worst.leads is Leads.TARGET and all((each, port) in brokers for each in behind):
        return replace(worst, answer="a broker of the target answers at its own address")
    return worst


async def _ask_one(target: ClusterClient, address: str, host: str, port: int) -> Bootstrap:
    wanted = target.metadata.cluster_id
    settings: ClusterSettings = replace(target.settings, bootstrap=((host, port),))
    try:
        async with asyncio.timeout(_ANSWER_S), ClusterClient(settings) as client:
            versions = await api_versions(client)
            cluster = (await client.refresh([])).cluster_id
            # Every broker offers this API between brokers; a router offers it to nobody.
            is_broker = ApiKey.WRITE_TXN_MARKERS in versions
            other = cluster == wanted and is_broker and await is_other_cluster(client, target)
    except TimeoutError:
        return Bootstrap(address, Leads.NOWHERE, f"nothing answers at {host}:{port} within {_ANSWER_S:g} s")
    except KmigrateError as error:
        return Bootstrap(address, Leads.NOWHERE, error.what)
    if cluster != wanted:
        return Bootstrap(address, Leads.ELSEWHERE, f"{host}:{port} answers as cluster {cluster}, not {wanted}")
    if other:
        what = f"{host}:{port} is a broker of another cluster with the cluster id of the target ({wanted})"
        return Bootstrap(address, Leads.ELSEWHERE, what)
    if is_broker:
        return Bootstrap(address, Leads.TARGET, f"a broker of the target answers behind {host}:{port}")
    return Bootstrap(address, Leads.ROUTER, f"a router answers at {host}:{port}")


async def takes_connections(address: str) -> bool:
    """Return True if a server accepts connections at the address, whatever protocol the server speaks."""
    host, port = host_and_port(address)
    try:
        connection = await BrokerConnection.open(host, port, client_id="kmigrate")
    except Unreachable:
        return False
    connection.close()
    return True


def bootstrap_findings(found: Sequence[Bootstrap], brokers: Sequence[tuple[str, int]]) -> list[Finding]:
    """Return for each address what happens to clients that start again after the routers have left."""
    real = ", ".join(f"{host}:{port}" for host, port in brokers)
    return [_finding(each, real) for each in found]


def _finding(found: Bootstrap, real: str) -> Finding:
    name = found.address
    if found.leads is Leads.TARGET:
        return ok("bootstrap-stays", f"{name} goes on answering without routers: {found.answer}")
    if found.leads is Leads.ROUTER:
        return warn(
            "bootstrap-at-router",
            f"{name} leads to a router ({found.answer}): without it clients that hold this address could not start "
            "again",
            f"move the name to brokers of the target ({real}), or leave that router running: it goes on answering; "
            "no client need be restarted for either",
        )
    return refuse(
        "bootstrap-elsewhere" if found.leads is Leads.ELSEWHERE else "bootstrap-silent",
        f"clients that hold {name} could not start again: {found.answer}",
        f"make {name} lead to brokers of the target ({real}) or to a router, or leave it out if no client holds it",
    )
