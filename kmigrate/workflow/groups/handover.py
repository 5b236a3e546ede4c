"""Carries a group's committed positions from the source to the target, exactly.

The order of the steps (C12):

1. No member is left on the source, except through a router.
2. Read the stable committed offsets on the source.
3. Wait until the target holds every record below these offsets.
4. Translate the offsets by the topic's offset map. Where offsets are identical the map is one run, and a position stays
   as it is.
5. Write the offsets with leader epoch −1 (V5) and the metadata string.
6. Read the offsets back.
7. Read the source once more.
8. Open the group.

Two kinds of positions change, and are counted. A position before the first mirrored offset becomes the first mirrored
offset; nobody reads the records between the two. A position that the group already has on the target is replaced by the
source's position, even where the target's position is ahead. The source is the truth: with the target's position
members would pass over records that nobody has read.

The handover is all or nothing. A group whose handover stops before `open` is mirrored as before. No consumer sees the
positions that were written to the target, because the routers still hold the group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import Admin, GroupMember
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient
from kmigrate.cluster.committed_offsets import CommittedOffset, read_positions, write_positions
from kmigrate.errors import Refused
from kmigrate.model.offset_map import OffsetMap
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
    """The positions that were written to the target, and the positions that changed on the way (`GroupRecord`)."""

    written: ByPartition
    unread: ByPartition = field(default_factory=dict)
    read_again: ByPartition = field(default_factory=dict)
    left_at: ByPartition = field(default_factory=dict)
    """The positions on the source, which stay there."""

    def on(self, record: GroupRecord) -> GroupRecord:
        """Return the group's record with these positions."""
        return replace(
            record, written=self.written, unread=self.unread, read_again=self.read_again, left_at=self.left_at
        )


async def members_left(source: Admin, group: str) -> Sequence[GroupMember]:
    """Return the members on the source cluster; these members came through no router."""
    return (await source.describe_groups([group]))[group].members


def refuse_members(link: str, group: str, members: Sequence[GroupMember]) -> None:
    """Refuse a promote while members are on the source, and name the members."""
    if not members:
        return
    raise Refused(
        "members-on-source",
        f"group {group} still has {len(members)} member(s) on the source: {named_members(members)}",
        still_true="the group reads on the source as before; members at the router wait",
        next_step=f"restart those consumers with the router's address, then: {advised('group promote', link, group)}",
    )


def refuse_target_members(link: str, group: str, members: Sequence[GroupMember]) -> None:
    """Refuse a promote while members are at the target: its coordinator then takes no offsets from outside the
    group."""
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

    A position in a topic that nobody mirrors is left out: the promote's guards have named the topic. A position in a
    topic that is mirrored and not copied yet (`unready`) is refused. That position would be lost, and the client's
    reset policy would choose where to begin.

    `maps_of` returns a topic's offset maps by partition, as they are at the time of the call. `outsiders` returns the
    members that may still commit on the source. `still_ours` refuses where the group has been opened meanwhile, for
    example by another controller while this process stood still. A write at that time would put the members back to
    positions that they have read long ago.
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
    """Count the records that the source still has between a group's positions and the first mirrored offset."""
    firsts = {key: starts[key[0]].get(key[1], 0) for key in positions if key[0] in starts}
    early = {key: first for key, first in firsts.items() if positions[key].offset < first}
    kept = await source.list_offsets(dict.fromkeys(early, EARLIEST)) if early else {}
    left = {key: first - max(positions[key].offset, kept[key].offset) for key, first in early.items()}
    return _by_partition({key: count for key, count in left.items() if count > 0})


def read_again(wanted: Wanted, on_target: Mapping[tuple[str, int], CommittedOffset]) -> ByPartition:
    """Count the records between the positions to be carried over and later positions that the group has on the target.

    A handover that was broken off behind its write has put the source's positions there, so the next handover counts
    nothing. The count informs people, and the plan has already shown the count. To keep the count, members would wait
    for one more write to the state log.
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
    """Translate the positions, and wait until the target holds the records below them.

    A group that opens before the records are on the target makes clients reset their positions.
    """
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
