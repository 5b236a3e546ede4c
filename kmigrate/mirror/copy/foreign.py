"""The search for other writers of a topic that is copied back: their records end the way back.

A lane finds a foreign record at its next write. For an idle lane, the written log's end is looked up every two seconds.
If the log ends beyond the lane's position, the lane reads the tail, which names the writer.
"""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.errors import Failed
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.partition.lane import Lane
from kmigrate.net.clock import sleep
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import walk

__all__ = ["ForeignWatch", "foreign_batch"]

_LOOK_S = 2.0
_READ_BYTES = 64 << 10


class ForeignWatch:
    """Looks at the log ends of a copier's idle partitions on the written cluster."""

    def __init__(self, context: CopyContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Make each idle lane read the tail if the written log ends beyond the lane's position."""
        resting = {lane: lane.target.position for lane in self._context.lanes.values() if lane.rests}
        if not resting:
            return
        try:
            ends = await self._context.target.log_ends([lane.key for lane in resting])
        except Failed:
            return  # the next look asks again
        for lane, position in resting.items():
            end = ends[lane.key]
            if not end.error and lane.rests and lane.target.position == position < end.offset:
                lane.suspect(end.offset)
                self._context.signals.call_for_look()


async def foreign_batch(client: ClusterClient, lane: Lane) -> str:
    """Return in words the first batch of another writer from the lane's position on; '' if none is found."""
    position = max(0, lane.target.position)
    asked = FetchPartition(*lane.key, position, _READ_BYTES)
    try:
        answer = await fetch_one(client, client.leader(*lane.key), asked, purpose="tail")
    except Failed:
        return ""
    for batch in walk(answer.records) if not answer.error else ():
        if batch.base_offset >= position and batch.producer_id != lane.target.producer_id and not batch.is_control:
            return f"offset {batch.base_offset} holds a batch of producer {batch.producer_id}"
    return ""
