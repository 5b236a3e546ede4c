"""What is left of copies that have begun, in offsets of the source; status tells of lags, from moment to moment."""

from __future__ import annotations

from kmigrate.model.lifecycle import NOT_COPIED_YET
from kmigrate.model.records import TopicRecord
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.positions import Positions

__all__ = ["copied_up_to", "padding_left"]


async def copied_up_to(estate: Estate, record: TopicRecord) -> dict[int, int]:
    """From where each partition is still to be copied; its start where the copy has not begun.

    Where offsets are mapped the map says so, for the target's log ends do not. Raises Unreachable where the target
    does not tell how far it is.
    """
    found = dict(record.starts)
    if record.phase not in NOT_COPIED_YET:
        for partition, made in (await Positions(estate.target, estate.log).maps(record)).items():
            found[partition] = max(found.get(partition, 0), made.covered)
    return found


async def padding_left(estate: Estate, record: TopicRecord) -> int:
    """Filler offsets that its target's logs still lack below its starts; all of them where there is no such topic."""
    if record.mapped or record.phase not in NOT_COPIED_YET:
        return 0
    ends = await estate.target.log_ends((record.topic, partition) for partition in record.starts)
    return sum(max(0, record.starts[partition] - max(0, end.offset)) for (_, partition), end in ends.items())
