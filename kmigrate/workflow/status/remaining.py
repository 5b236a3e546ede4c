"""Counts what copies that have begun have still to copy, in offsets of the source; `status.snapshot` shows lags
instead."""

from __future__ import annotations

from kmigrate.model.lifecycle import NOT_COPIED_YET
from kmigrate.model.records import TopicRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions

__all__ = ["copied_up_to", "padding_left"]


async def copied_up_to(connections: Connections, record: TopicRecord) -> dict[int, int]:
    """Return the source offset from which each partition is still to be copied; its start where no copy has begun.

    With mapped offsets the offset map gives that offset, because the target's log ends do not. Raises Unreachable where
    the target does not tell its log ends.
    """
    found = dict(record.starts)
    if record.phase not in NOT_COPIED_YET:
        for partition, made in (await Positions(connections.target, connections.log).maps(record)).items():
            found[partition] = max(found.get(partition, 0), made.covered)
    return found


async def padding_left(connections: Connections, record: TopicRecord) -> int:
    """Count the filler offsets that the target lacks below a topic's starts.

    Where the topic does not exist yet, all of them count.
    """
    if record.mapped or record.phase not in NOT_COPIED_YET:
        return 0
    ends = await connections.target.log_ends((record.topic, partition) for partition in record.starts)
    return sum(max(0, record.starts[partition] - max(0, end.offset)) for (_, partition), end in ends.items())
