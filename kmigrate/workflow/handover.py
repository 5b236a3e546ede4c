"""How a group's committed positions go from the source to the target, exactly.

Order (C12): nobody on the source (but through a router) → read stable offsets → wait until the target holds every
record below them → translate by the topic's offset map (one run where offsets are identical: a position stays what it
is) → write with leader epoch −1 and the metadata string → read back → look at the source once more → open.
Two kinds of positions are not what they were, and are counted: one before the first mirrored offset goes to that, and
what lies between is read by nobody; one that the group has on the target already gives way to the source's, which its
members there may have been ahead of. The source is the truth (AL-22): who believed the target's would pass over what
nobody has read.
All or nothing: a group whose handover stops anywhere before `open` is mirrored as before, and nothing that was
written to the target is seen by a consumer, because the routers still hold the group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import Admin, GroupMember
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient
from kmigrate.cluster.positions import CommittedOffset, read_positions, write_positions
from kmigrate.errors import Refused
from kmigrate.model.offsetmap import OffsetMap
from kmigrate.model.records import GroupRecord
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, sleep

__all__ = [
    "ByPartition", "HandedOver", "Wanted", "hand_over", "members_left", "named_members", "read_again", "refuse_members",
    "refuse_target_members", "unread",
]  # fmt: skip

ByPartition = Mapping[str, Mapping[int, int]]
"""A number for each partition, by topic."""
Wanted = dict[tuple[str, int], CommittedOffset]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What was written to the target, and what of it was moved (`GroupRecord`)."""

    written: ByPartition
    unread: ByPartition = field(default_factory=dict)
    read_again: ByPartition = field(default_factory=dict)
    left_at: ByPartition = field(default_factory=dict)
    """The positions on the source, which stay there."""

    def on(self, record: GroupRecord) -> GroupRecord:
        """The group's record with this in it."""
        return replace(
            record, written=self.written, unread=self.unread, read_again=self.read_again, left_at=self.left_at
        )


async def members_left(source: Admin, group: str) -> Sequence[GroupMember]:
    """Members that are on the source cluster: they came through no router (AL-29)."""
    return (await source.describe_groups([group]))[group].members


def refuse_members(link: str, group: str, members: Sequence[GroupMember]) -> None:
    """Refuse by naming who is still there."""
    if not members:
        return
    raise Refused(
        "members-on-source",
        f"group {group} still has {len(members)} member(s) on the source: {named_members(members)}",
        still_true="the group reads on the source as before; members at the router wait",
        next_step=f"restart those consumers with the router's address, then: {advised('group promote', link, group)}",
    )


def refuse_target_members(link: str, group: str, members: Sequence[GroupMember]) -> None:
    """Refuse a promote while members are at the target: its coordinator takes no positions from outside then."""
    if not members:
        return
    raise Refused(
        "member-on-target",
        f"group {group} has {len(members)} member(s) on the target, past every router: {named_members(members)}",
        still_true="the group is mirrored as before; no position was written",
        next_step=f"restart those consumers with the router's address, then: {advised('group promote', link, group)}",
    )


def named_members(members: Sequence[GroupMember]) -> str:
    """Name the first five members by client id, host and member id, and count the others."""
    more = f" and {len(members) - 5} more" if len(members) > 5 else ""
    return ", ".join(f"{m.client_id} at {m.host} ({m.member_id})" for m in members[:5]) + more


async def hand_over(
    link: str,
    group: str,
    *,
    starts: Mapping[str, Mapping[int, int]],
    unready: Collection[str],
    maps_of: Callable[[str], Awaitable[Mapping[int, OffsetMap]]],
    outsiders: Callable[[], Awaitable[Sequence[GroupMember]]],
    still_ours: Callable[[], Awaitable[None]],
    source: ClusterClient,
    target: ClusterClient,
    timeout: float,
) -> HandedOver:
    """Carry one group's positions over; `starts` is the first mirrored offset of each mirrored partition.

    A position in a topic that nobody mirrors is left out: the promote's guards have named it. One in a topic that is
    mirrored and not copied yet (`unready`) is refused, for it would be lost, and the client choose where to begin.
    `maps_of` tells a topic's offset maps by partition, as they are at the time of the call; `outsiders` who may still
    commit on the source. `still_ours` refuses where the group has been opened meanwhile, as by another controller while
    this one stood still: what is written then would put its members back to where they have read long ago.
    """
    refuse_members(link, group, await outsiders())
    told = await read_positions(source, group, timeout)
    wanted: Wanted = {}
    early = sorted({topic for topic, _ in told} & set(unready))
    if early:
        raise Refused(
            "topic-not-ready",
            f"group {group} has positions in {', '.join(early)}, which the mirror does not copy yet",
            still_true="the group is still mirrored; its members at the router wait",
            next_step=f"when status shows these topics as mirroring: {advised('group promote', link, group)}",
        )
    for (topic, partition), committed in told.items():
        if topic not in starts:
            continue
        first = starts[topic].get(partition, 0)
        wanted[(topic, partition)] = CommittedOffset(max(committed.offset, first), committed.metadata)
    left = await unread(source, told, starts)
    wanted = await _translate(group, target, wanted, maps_of, timeout)
    again = read_again(wanted, await read_positions(target, group, timeout))
    failed = await write_positions(target, group, wanted, still_ours)
    if failed:
        (topic, partition), why = next(iter(failed.items()))
        raise Refused(
            "offsets-not-written",
            f"the target refused {len(failed)} position(s) of group {group}, first {topic}-{partition}: {why}",
            still_true="the group is still mirrored; its members at the router wait",
            next_step="see whether somebody runs this group on the target itself",
        )
    back = await read_positions(target, group, timeout)
    wrong = [key for key, offset in wanted.items() if back.get(key) != offset]
    if wrong:
        raise Refused("offsets-not-read-back", f"the target does not show what was written for {wrong[:3]}")
    refuse_members(link, group, await outsiders())
    if await read_positions(source, group, timeout) != told:
        raise Refused(
            "offsets-moved",
            f"positions of group {group} moved on the source while they were handed over",
            still_true="the group is still mirrored",
            next_step=f"find who commits for {group} on the source, then: {advised('group promote', link, group)}",
        )
    written, left_at = (
        _by_partition({key: committed.offset for key, committed in positions.items()}) for positions in (wanted, told)
    )
    return HandedOver(written, left, again, left_at)


async def unread(
    source: ClusterClient,
    positions: Mapping[tuple[str, int], CommittedOffset],
    starts: Mapping[str, Mapping[int, int]],
) -> ByPartition:
    """Records from a group's positions on that the source still has, and that lie before the first mirrored offset."""
    firsts = {key: starts[key[0]].get(key[1], 0) for key in positions if key[0] in starts}
    early = {key: first for key, first in firsts.items() if positions[key].offset < first}
    kept = await source.list_offsets(dict.fromkeys(early, EARLIEST)) if early else {}
    left = {key: first - max(positions[key].offset, kept[key].offset) for key, first in early.items()}
    return _by_partition({key: count for key, count in left.items() if count > 0})


def read_again(wanted: Wanted, on_target: Mapping[tuple[str, int], CommittedOffset]) -> ByPartition:
    """Records between the positions to be carried over and those that the group has on the target already.

    A handover that was broken off behind its writing has put the source's there, so that the next one counts nothing.
    It is a count for people, whom the plan has told: to save it, members would wait for one more write of the log.
    """
    ahead = {key: on_target[key].offset - at.offset for key, at in wanted.items() if key in on_target}
    return _by_partition({key: count for key, count in ahead.items() if count > 0})


def _by_partition(numbers: Mapping[tuple[str, int], int]) -> ByPartition:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), number in sorted(numbers.items()):
        found.setdefault(topic, {})[partition] = number
    return found


async def _translate(
    group: str,
    target: ClusterClient,
    wanted: Wanted,
    maps_of: Callable[[str], Awaitable[Mapping[int, OffsetMap]]],
    timeout: float,
) -> Wanted:
    """The positions on the target; opening reads before the records are there makes clients reset (G-07): wait."""
    deadline = monotonic() + timeout
    while True:
        maps = {topic: await maps_of(topic) for topic in sorted({topic for topic, _ in wanted})}
        moved: Wanted = {}
        for (topic, partition), committed in wanted.items():
            made = maps[topic].get(partition)
            place = made.to_target(committed.offset) if made is not None else None
            if place is not None:
                moved[(topic, partition)] = CommittedOffset(place.offset, committed.metadata)
        ends = await target.list_offsets(dict.fromkeys(moved, LATEST))
        missing = [k for k in wanted if k not in moved or ends[k].error or ends[k].offset < moved[k].offset]
        if not missing:
            return moved
        if monotonic() > deadline:
            topic, partition = missing[0]
            made = maps[topic].get(partition)
            raise Refused(
                "target-behind-group",
                f"group {group} has read {topic}-{partition} up to {wanted[missing[0]].offset}, the mirror has copied "
                f"it up to {made.covered if made is not None else 0}",
                still_true="the group is still mirrored; nothing was written",
                next_step="wait until the mirror has caught up (kmigrate status), or look at a position beyond the log",
            )
        await target.refresh({topic for topic, _ in missing})
        await sleep(0.05)
