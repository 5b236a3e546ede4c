"""Snapshots of an estate in the middle of its migration, without a cluster: the same figures at every call."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.cluster.admin import GroupMember
from kmigrate.model.lag import Pace
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import ControllerPresence, MirrorPresence, PartitionProgress, RouterPresence
from kmigrate.model.records import RouterRecord
from kmigrate.model.stops import PartitionStop, Remedy
from kmigrate.workflow.status.group_detail import GroupDetail, MemberDetail, PartitionDetail, Place
from kmigrate.workflow.status.snapshot import GroupStatus, LinkStatus, PartitionStatus, Snapshot, TopicStatus

__all__ = ["AT_MS", "billing", "estate", "many"]

AT_MS = 1_795_600_000_000
_MEMBERS = tuple(GroupMember(f"billing-{n}-5b1f", f"billing-{n}", f"/10.0.7.{10 + n}") for n in range(3))
_LOST = PartitionStop("source-range-lost", "offsets 70 to 99 were deleted before the copy", Remedy.ACCEPT_LOSS, 70, 99)


def _parts(
    count: int, end: int, lag: int, *, seconds: float = 0.0, target_end: int | None = None
) -> list[PartitionStatus]:
    there = end - lag if target_end is None else target_end
    return [
        PartitionStatus(
            n, 0, end + n, 0, there + n, lag, "", -1.0, lag_bytes=lag * 900, lag_seconds=seconds if lag else 0.0,
            source_leader=1 + n % 3, target_leader=11 + n % 3,
        )
        for n in range(count)
    ]  # fmt: skip


def _topic(
    name: str, parts: list[PartitionStatus], phase: TopicPhase = TopicPhase.MIRRORING, **more: object
) -> TopicStatus:
    return replace(TopicStatus("blue", name, phase, AT_MS, "", "identical", tuple(parts)), **more)  # type: ignore[arg-type]


def estate(second: int = 0) -> Snapshot:
    """Return the estate after some seconds: one topic in each state that matters."""
    stopped = _parts(2, 5_000, 120, seconds=900.0)
    stopped[1] = replace(stopped[1], problem=_LOST.text, stop=_LOST)
    backlog = 48_000_000 - 310_000 * second
    topics = [
        _topic("audit", stopped),
        _topic("clicks", _parts(12, 90_000_000 + 800 * second, max(0, backlog) // 12, seconds=5_400.0)),
        _topic("customers", _parts(3, 40_000, 0)),
        _topic(
            "invoices", _parts(3, 70_000 + 40 * second, 60, seconds=3.0), TopicPhase.PROMOTE_PENDING,
            promote_waits_for="partition 2: 60 records behind, at most 50 are allowed before the fence",
        ),
        _topic("orders", _parts(6, 2_400_000 + 150 * second, 3, seconds=0.4)),
        _topic("orders.returns", _parts(6, 240_000, 9_000, seconds=40.0), paused=True),
        _topic("payments", _parts(6, 1_900_000, 0, target_end=1_900_000 + 220 * second), TopicPhase.PROMOTED),
    ]  # fmt: skip
    groups = (
        GroupStatus(
            "blue", "analytics", GroupPhase.MIRRORED, "", _MEMBERS[:2], 0, 18_000 - 400 * second, router_members=1
        ),
        GroupStatus(
            "blue", "billing", GroupPhase.PROMOTING, "", _MEMBERS, 0, 12, GroupMode.FOLLOW, 1,
            "1 member has not joined at a router: billing-2 at /10.0.7.12", router_members=2,
        ),
        GroupStatus("blue", "mail", GroupPhase.PROMOTED, "", (), 4, 0),
    )  # fmt: skip
    return _shot(tuple(topics), groups, second)


def many(topics: int = 1_000, second: int = 0) -> Snapshot:
    """Return an estate of very many topics that have caught up, and a few that have not."""
    made = [
        _topic(
            f"team-{n % 40:02}.events.{n:04}",
            _parts(3, 10_000 + n + 7 * second, 5_000 if n % 100 == 50 else 0, seconds=30.0),
        )
        for n in range(topics)
    ]
    groups = tuple(
        GroupStatus("blue", f"team-{n:02}.readers", GroupPhase.MIRRORED, "", _MEMBERS[:1], 0, 0, router_members=0)
        for n in range(topics // 25)
    )
    return _shot(tuple(made), groups, second)


def _shot(topics: tuple[TopicStatus, ...], groups: tuple[GroupStatus, ...], second: int) -> Snapshot:
    progress = PartitionProgress(0, pace=Pace(AT_MS, 900.0))
    mirror = MirrorPresence(
        "m-1", "blue", 7, True, 500, {t.topic: dict.fromkeys(range(len(t.partitions)), progress) for t in topics}
    )
    routers = tuple(RouterRecord(f"r{n}", f"router-{n}", f"10.0.0.{n}", f"10.0.0.{n}:9092", AT_MS) for n in (1, 2))
    alive = {each.instance: RouterPresence(each.instance, each.name, 7, 500, connections=41) for each in routers}
    return Snapshot(
        AT_MS + 1000 * second,
        7,
        (LinkStatus("blue", "old-dc", "new-dc", "", notes=("pattern orders.*: 2 topics match and have no leader",)),),
        topics,
        groups,
        routers,
        frozenset(alive),
        (mirror,),
        (ControllerPresence("c-1", 7, True, 500),),
        alive,
    )


def billing() -> GroupDetail:
    """Return the group `billing` in detail: two members at routers, one at the source's own address."""
    places = (Place.ROUTER, Place.ROUTER, Place.SOURCE)
    keys = [("invoices", n) for n in range(3)] + [("orders", n) for n in range(6)]
    members = tuple(
        MemberDetail(place, each.client_id, each.host, each.member_id, tuple(keys[n::3]))
        for n, (place, each) in enumerate(zip(places, _MEMBERS, strict=True))
    )
    parts = tuple(
        PartitionDetail(*key, 1_000 + n, 1_000 + n + (n % 3) * 4, _MEMBERS[n % 3].member_id)
        for n, key in enumerate(keys)
    )
    return GroupDetail("blue", "billing", members, parts)
