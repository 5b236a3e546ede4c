"""Carries a group's committed positions from the source to the target, exactly, in this order (C12).

1. No member is left on the source, except through a router.
2. Read the stable committed offsets on the source.
3. Wait until the target holds every record below these offsets.
4. Translate the offsets by the topic's offset map. Identical offsets have a map of one run, and stay.
5. Write the offsets with leader epoch −1 (V5) and the metadata string.
6. Read the offsets back.
7. Read the source once more.
8. Open the group.

docs/groups.md names the two kinds of positions that change, and are counted. The handover is all or nothing: a group
that does not open is mirrored as before. No consumer sees the written positions, because the routers hold the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient
from kmigrate.cluster.committed_offsets import CommittedOffset, read_positions, write_positions
from kmigrate.cluster.groups import group_members
from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.lifecycle import NOT_COPIED_YET, GroupEvent, GroupPhase, advance_group
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LinkRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms
from kmigrate.net.retry import Backoff
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.open_transactions import named_if_open
from kmigrate.workflow.groups.admission import refuse_unadmitted
from kmigrate.workflow.groups.membership import named_members, outsiders, refuse_members
from kmigrate.workflow.groups.misplaced import members_at_target

__all__ = ["ByPartition", "GroupHandover", "HandedOver", "Wanted", "by_partition", "read_again", "unread"]

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


@dataclass(frozen=True, slots=True)
class GroupHandover:
    """The handover of one group: the group's record from the look at its intent, and both clusters of its link."""

    connections: Connections
    link: LinkRecord
    record: GroupRecord
    timeout_s: float

    @property
    def _again(self) -> str:
        return advised("group promote", self.link.name, self.record.group)

    async def open_source(self) -> tuple[ClusterClient, Admin]:
        return await self.connections.source(self.link)

    async def promote(self) -> None:
        """Promote a group whose members wait: carry the positions over and open the group, or give up."""
        try:
            await self.admits()
            changed = replace(
                (await self.carry()).on(self.record), promoted_ms=self.connections.log.now_ms(), reason=""
            )
            await self._finish(GroupEvent.OPEN, changed)
        except KmigrateError as error:
            given_up = replace(self.record, reason=error.summary, way_on=error.next_step)
            await self._finish(GroupEvent.GIVE_UP, given_up)

    async def _finish(self, event: GroupEvent, changed: GroupRecord) -> None:
        def decide(state: State) -> Record | None:
            if state.records.get(self.record.key) != self.record:
                return None
            return replace(changed, phase=advance_group(self.record.phase, event), since_ms=now_ms())

        await self.connections.log.append(decide)

    async def admits(self) -> None:
        """Raise Refused where the target would not take the positions, or not admit the members."""
        group = self.record.group
        at_target = await members_at_target(self.connections.target, group)
        if at_target:  # its coordinator then takes no offsets from outside the group
            raise Refused(
                "member-on-target",
                f"group {group} has {len(at_target)} member(s) on the target, past every router: "
                f"{named_members(at_target)}",
                still_true="the group is mirrored as before; no position was written",
                next_step=f"restart those consumers with the router's address, then: {self._again}",
            )
        source, _ = await self.open_source()
        members = [member.client_id for member in await group_members(source, group)]
        await refuse_unadmitted(self.connections, self.record, members)

    async def refuse_outsiders(self) -> None:
        _, admin = await self.open_source()
        refuse_members(self.record, await outsiders(self.connections.log, admin, self.record))

    async def still_ours(self) -> None:
        """Refuse if another process has handed the group over or given up; the state log is read to its end first.

        A process that stood still would put the members back to positions that they have read long ago.
        """
        now = (await self.connections.log.read_to_end()).group(self.record.link, self.record.group)
        if now is None or now.phase is not GroupPhase.PROMOTING or now.staged or now.asked_ms != self.record.asked_ms:
            what = f"group {self.record.group} was handed over, or given up, by somebody else"
            raise Refused("changed-meanwhile", what)

    async def carry(self) -> HandedOver:
        """Carry the positions over; where an open transaction keeps positions back, name the transaction."""
        source, _ = await self.open_source()
        return await named_if_open(self._carry(source), self.connections.log, source, self.record)

    async def _carry(self, source: ClusterClient) -> HandedOver:
        """Carry the positions over, except in topics that nobody mirrors: the promote's guards have named these.

        A position in a topic that is not copied yet is refused: the client's reset policy would choose where to begin.
        """
        group, target = self.record.group, self.connections.target
        await self.refuse_outsiders()
        # Members may have taken a minute to join, so the topics' records are read now.
        topics = self.connections.log.state.topics(self.record.link)
        starts = {topic.topic: topic.starts for topic in topics if topic.phase not in NOT_COPIED_YET}
        on_source = await read_positions(source, group, self.timeout_s)
        early = sorted({topic for topic, _ in on_source} & {topic.topic for topic in topics} - starts.keys())
        if early:
            raise Refused(
                "topic-not-ready",
                f"group {group} has positions in {', '.join(early)}, which the mirror does not copy yet",
                still_true="the group is still mirrored; its members at the router wait",
                next_step=f"when status shows these topics as mirroring: {self._again}",
            )
        mirrored = {
            (topic, partition): CommittedOffset(max(at.offset, starts[topic].get(partition, 0)), at.metadata)
            for (topic, partition), at in on_source.items()
            if topic in starts
        }
        left_unread = await unread(source, on_source, starts)
        wanted = await self._translate(mirrored)
        again = read_again(wanted, await read_positions(target, group, self.timeout_s))
        failed = await write_positions(target, group, wanted, self.still_ours)
        if failed:
            (topic, partition), why = next(iter(failed.items()))
            raise Refused(
                "offsets-not-written",
                f"the target refused {len(failed)} position(s) of group {group}, first {topic}-{partition}: {why}",
                still_true="the group is still mirrored; its members at the router wait",
                next_step="see whether somebody runs this group on the target itself",
            )
        back = await read_positions(target, group, self.timeout_s)
        wrong = [key for key, offset in wanted.items() if back.get(key) != offset]
        if wrong:
            raise Refused("offsets-not-read-back", f"the target does not show what was written for {wrong[:3]}")
        await self.refuse_outsiders()
        if await read_positions(source, group, self.timeout_s) != on_source:
            raise Refused(
                "offsets-moved",
                f"positions of group {group} moved on the source while they were handed over",
                still_true="the group is still mirrored",
                next_step=f"find who commits for {group} on the source, then: {self._again}",
            )
        written, left_at = (
            by_partition({key: committed.offset for key, committed in positions.items()})
            for positions in (wanted, on_source)
        )
        return HandedOver(written, left_unread, again, left_at)

    async def _translate(self, wanted: Wanted) -> Wanted:
        """Translate the positions, and wait for the records below: without these, clients reset their positions."""
        tries = Backoff(0.05, within_s=self.timeout_s)
        target, positions = self.connections.target, Positions(self.connections.target, self.connections.log)
        while True:
            maps = {topic: await self._maps(positions, topic) for topic in sorted({topic for topic, _ in wanted})}
            moved: Wanted = {}
            for (topic, partition), committed in wanted.items():
                made = maps[topic].get(partition)
                translated = made.to_target(committed.offset) if made is not None else None
                if translated is not None:
                    moved[(topic, partition)] = CommittedOffset(translated.offset, committed.metadata)
            ends = await target.list_offsets(dict.fromkeys(moved, LATEST))
            missing = [k for k in wanted if k not in moved or ends[k].error or ends[k].offset < moved[k].offset]
            if not missing:
                return moved
            await target.refresh({topic for topic, _ in missing})
            topic, partition = missing[0]
            made = maps[topic].get(partition)
            behind = Refused(
                "target-behind-group",
                f"group {self.record.group} has read {topic}-{partition} up to {wanted[missing[0]].offset}, the mirror "
                f"has copied it up to {made.covered if made is not None else 0}",
                still_true="the group is still mirrored; nothing was written",
                next_step="wait until the mirror has caught up (kmigrate status), or look at a position beyond the log",
            )
            await tries.pause(behind)

    async def _maps(self, positions: Positions, topic: str) -> Mapping[int, OffsetMap]:
        record = self.connections.log.state.topic(self.record.link, topic)
        return {} if record is None else await positions.maps(record)


async def unread(
    source: ClusterClient,
    positions: Mapping[tuple[str, int], CommittedOffset],
    starts: Mapping[str, Mapping[int, int]],
) -> ByPartition:
    """Count the records that the source still has between a group's positions and the first mirrored offset."""
    firsts = {key: starts[key[0]].get(key[1], 0) for key in positions if key[0] in starts}
    early = {key: first for key, first in firsts.items() if positions[key].offset < first}
    kept = await source.list_offsets(dict.fromkeys(early, EARLIEST)) if early else {}
    return _counts({key: first - max(positions[key].offset, kept[key].offset) for key, first in early.items()})


def read_again(wanted: Wanted, on_target: Mapping[tuple[str, int], CommittedOffset]) -> ByPartition:
    """Count the records between the positions to be carried over and later positions that the group has on the target.

    The count is for people, and the plan has shown the count. A handover repeated after its write counts none: to keep
    the count, members would wait for one more write to the state log.
    """
    return _counts({key: on_target[key].offset - at.offset for key, at in wanted.items() if key in on_target})


def _counts(numbers: Mapping[tuple[str, int], int]) -> ByPartition:
    return by_partition({key: count for key, count in numbers.items() if count > 0})


def by_partition(numbers: Mapping[tuple[str, int], int]) -> ByPartition:
    """Return numbers of partitions by topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), number in sorted(numbers.items()):
        found.setdefault(topic, {})[partition] = number
    return found
