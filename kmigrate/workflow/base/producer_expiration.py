"""The target's `producer.id.expiration.ms`: the cost of raising the setting, and its restoration."""

from __future__ import annotations

from kmigrate.cluster.client import PRODUCER_EXPIRATION
from kmigrate.cluster.producer_expiration import (
    ENTRY_BYTES,
    ONE_AT_A_TIME,
    RAISED_EXPIRATION,
    producer_load,
    producer_memory,
    restore_memory,
    short_memory,
)
from kmigrate.errors import KmigrateError
from kmigrate.model.records import LinkRecord
from kmigrate.model.state import State
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, warn

__all__ = ["memory_findings", "put_back_after_finish", "raised_alone"]

_WITHOUT = (
    "[mirror] raise_producer_expiration = false leaves the setting as it is, and each partition then has one batch on "
    "its way at a time (slower); link finish and link delete put the setting back"
)


async def memory_findings(connections: Connections, *, raises: bool) -> list[Finding]:
    """Return a warning where the setting cannot be raised (W1), or with an estimate of what raising it costs."""
    target, admin = connections.target, connections.target_admin
    name = target.settings.name
    if not raises:
        return [ok("short-memory", f"target {name}: {PRODUCER_EXPIRATION} is left as it is; {ONE_AT_A_TIME}")]
    if why := await short_memory(target, admin):
        next_step = "grant ALTER_CONFIGS on the target's cluster, where that can be had"
        return [warn("short-memory", f"target {name}: {why}; {ONE_AT_A_TIME}", next_step)]
    try:
        now = await producer_memory(target, admin)
    except KmigrateError:
        return []
    if now is None or now.value == RAISED_EXPIRATION:
        return []
    before, after = int(now.value), int(RAISED_EXPIRATION)
    raised = (
        f"while a link mirrors, {PRODUCER_EXPIRATION} of target {name} is raised from {before:,} to {after:,} "
        "(24.8 days) for all its clients"
    )
    try:
        load = await producer_load(target)
    except KmigrateError as error:
        return [warn("producer-memory-raised", f"{raised}; what that costs is unknown: {error.what}", _WITHOUT)]
    grown = load.after(before, after)
    cost = (
        f"the target's partitions remember {load.entries:,} producer ids today; at today's rate of new ids these "
        f"become up to {grown:,}, about {grown * ENTRY_BYTES / 1e6:,.1f} MB of broker memory in each set of replicas"
    )
    return [warn("producer-memory-raised", f"{raised}: {cost}", _WITHOUT)]


def raised_alone(state: State, link: LinkRecord) -> bool:
    """Return whether the link has raised the setting, and no other link that still mirrors has."""
    others = (other for other in state.links() if other.name != link.name and not other.finished_ms)
    return link.restore_expiration is not None and all(other.restore_expiration is None for other in others)


async def put_back_after_finish(connections: Connections, link: LinkRecord) -> list[Finding]:
    """Put the setting back after the finish; return a warning where the target refuses."""
    if not raised_alone(connections.log.state, link):
        return []
    former = link.restore_expiration or ""
    try:
        against = await restore_memory(connections.target, connections.target_admin, former)
    except KmigrateError as error:
        against = error.what
    if not against:
        return []
    by_hand = f"remove {PRODUCER_EXPIRATION} from the brokers' defaults by hand"
    if former:
        by_hand = f"set {PRODUCER_EXPIRATION}={former} as the brokers' default by hand"
    return [warn("not-put-back", f"the target does not let {PRODUCER_EXPIRATION} be put back: {against}", by_hand)]
