"""Steps that a promote and a rollback share: routers that drain, log ends after the drain, and the mirror's arrival.

Each question is about the newest fence of a topic (`TopicRecord.newest_fence`): the promote's, or the rollback's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.leaders import refuse_unwitnessed, witnessed_ends
from kmigrate.errors import Refused
from kmigrate.model.presences import PartitionProgress
from kmigrate.model.records import PartitionBarrier, TopicRecord
from kmigrate.model.stops import DISK_LOW, OWNER_UNSURE, WITHOUT_BATCH
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.running import registered_routers
from kmigrate.workflow.promote.barrier import BarrierTable, FinalCheck, LogEnds, in_time

__all__ = [
    "barrier_at",
    "ends_after_drain",
    "not_arrived",
    "not_caught_up",
    "not_copied",
    "rehearse",
    "silent_router",
    "undrained",
    "unreported_router",
]


def silent_router(log: StateLog, given_up: Callable[[str], bool]) -> str | None:
    """Name a router that cannot acknowledge a fence, unless the router counts as given up."""
    for router, presence in registered_routers(log):
        if presence is None and not given_up(router.instance):
            return f"router {router.name} on {router.host} is registered but silent"
    return unreported_router(log)


def unreported_router(log: StateLog) -> str | None:
    """Return the trouble of a living router whose report, with its acknowledgements, is too large to be sent."""
    return next((p.trouble for _, p in registered_routers(log) if p is not None and p.trouble), None)


def undrained(log: StateLog, record: TopicRecord, given_up: Callable[[str], bool], waits_for: str) -> str | None:
    """Name a router that has not acknowledged the newest fence with nothing in flight; None if all have drained."""
    for router, presence in registered_routers(log):
        if presence is None and given_up(router.instance):
            continue
        ack = presence.fences.get(record.key) if presence else None
        if ack is None or ack.epoch != record.newest_fence:
            return f"router {router.name} on {router.host} has not acknowledged the fence"
        if ack.in_flight:
            return f"router {router.name} still waits for {ack.in_flight} {waits_for}"
    return None


async def ends_after_drain(client: ClusterClient, record: TopicRecord, deadline: float) -> LogEnds:
    """Return the log ends of the cluster that took the writes; read again while a leader is away."""
    tries = Backoff(0.01, within_s=deadline - monotonic())
    while True:
        ends = await in_time(witnessed_ends(client, record.topic_partitions), client, deadline)
        refuse_unwitnessed(client, ends)
        away = [f"{topic}-{partition}" for (topic, partition), end in ends.items() if end.error]
        if not away:
            return ends
        await client.refresh([record.topic])
        await tries.pause(Refused("no-barrier", f"the log end of {', '.join(away)} cannot be read"))


def barrier_at(ends: LogEnds) -> dict[int, PartitionBarrier]:
    """Return the barrier of each partition at these log ends."""
    return {partition: PartitionBarrier(end.offset, end.leader_epoch) for (_, partition), end in ends.items()}


async def rehearse(
    client: ClusterClient, record: TopicRecord, table: BarrierTable, check: FinalCheck, deadline: float
) -> None:
    """Ask once what will be asked behind the fence, so that connections are open and code is loaded by then."""
    questions = together(check.ends(record, deadline), client.describe_producers(record.topic_partitions))
    _, ((witnessed, _), _) = await together(check.refresh(deadline), questions)
    refuse_unwitnessed(client, witnessed)
    ends = await client.list_offsets(dict.fromkeys(record.topic_partitions, LATEST))
    readable = {key: end for key, end in ends.items() if not end.error}
    await table.recent.read_to(readable, deadline)


def not_caught_up(record: TopicRecord, copied: Mapping[int, PartitionProgress], threshold: int, end: str) -> str | None:
    """Name a partition whose copy is not close to the log end of the cluster that takes the writes."""
    for partition in range(record.partitions):
        seen = copied.get(partition)
        if seen is None or seen.problem:
            return not_copied(partition, seen)
        if DISK_LOW in seen.trouble or (OWNER_UNSURE in seen.trouble and seen.position < seen.source_end):
            return f"partition {partition} is not copied on: {seen.trouble}"
        if seen.source_end < 0 or seen.source_end - seen.position > threshold:
            return f"partition {partition} is {max(0, seen.source_end - seen.position)} records behind"
        if WITHOUT_BATCH in seen.trouble:
            return f"partition {partition} does not come to the {end}'s end: {seen.trouble}"
    return None


def not_arrived(record: TopicRecord, copied: Mapping[int, PartitionProgress]) -> str | None:
    """Name a partition whose mirror does not stand exactly at the newest barrier."""
    for partition, barrier in record.newest_barrier.items():
        seen = copied.get(partition)
        if seen is None or seen.problem:
            return not_copied(partition, seen)
        if seen.at_barrier != barrier.offset:
            why = f": {seen.trouble}" if seen.trouble else ""
            return f"waiting: mirror at {seen.position} of barrier {barrier.offset}, partition {partition}{why}"
    return None


def not_copied(partition: int, seen: PartitionProgress | None) -> str:
    if seen is None:
        return f"no running mirror reports partition {partition}"
    return f"partition {partition} has stopped: {seen.problem}"
