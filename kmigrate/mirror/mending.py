"""What a lane needs beside being read and written: to learn where it stands, and to have its holes filled.

Both read the target's own log before they say anything; neither decides by itself, the lane does.
"""

from __future__ import annotations

from collections.abc import Callable

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.cluster.producer import LogTail, read_tail, settled_end
from kmigrate.errors import Diverged, Failed, ProtocolViolation, Unreachable
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.lane import Lane, LaneState
from kmigrate.mirror.steps import Hole
from kmigrate.model.records import CopyIdentity
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import Batch
from kmigrate.records.old_messages import OldMessages, walk_all
from kmigrate.records.rewrite import contents

__all__ = ["Mender"]

_SETTLE_S = 0.1
"""After an unknown outcome the log end must stay the same this long before it is believed."""
_FENCED = frozenset({Code.TRANSACTION_COORDINATOR_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})


class Mender:
    """Recovers lanes and fills their holes on one target."""

    def __init__(
        self,
        source: ClusterClient,
        target: ClusterClient,
        identity: CopyIdentity,
        holes: HoleMaker,
        may_fill: Callable[[], bool],
        look_again: Callable[[], None],
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._holes = holes
        self._may_fill = may_fill
        self._look_again = look_again

    async def recover(self, lane: Lane) -> None:
        """Read the target's tail until it is known where the lane stands."""
        delay = 0.02
        try:
            while lane.state is LaneState.LOST:
                try:
                    tail = await read_tail(
                        self._target,
                        *lane.key,
                        self._identity.data_id,
                        settle_s=_SETTLE_S if lane.unknown else 0.0,
                    )
                    if lane.compacted and lane.doubtful:
                        await self._compare_last(lane, tail)
                except Diverged as error:
                    lane.stop(f"{error.ref}: {error.what}")
                except ProtocolViolation as error:
                    lane.stop(f"{error.ref}: {error.what}")
                except Unreachable as error:
                    lane.trouble = error.what
                    self._look_again()
                    await sleep(delay)
                    delay = min(delay * 2, 1.0)
                else:
                    if tail.end < lane.log_start:
                        lane.stop(f"not-aligned: the target ends at {tail.end}, before the start {lane.log_start}")
                    lane.recovered(tail.end, tail.sequence, max(tail.data_end, lane.log_start))
        finally:
            lane.busy = False

    async def _compare_last(self, lane: Lane, tail: LogTail) -> None:
        """Raise Diverged where the target's last batch holds other records than the source at those offsets.

        Records that a cleaner has since removed from the source cannot be compared and need not be: no reader
        of the source is given them any more.
        """
        if tail.data_end <= lane.log_start:
            return
        ours = await self._batches(self._target, lane, tail.data_end - 1, tail.data_end)
        first = min((batch.base_offset for batch in ours), default=tail.data_end)
        copied = {offset: record for batch in ours for offset, record in _contents(batch).items()}
        for batch in await self._batches(self._source, lane, first, tail.data_end):
            for offset, record in _contents(batch).items():
                if first <= offset < tail.data_end and copied.get(offset) != record:
                    raise Diverged(
                        "diverged",
                        f"{lane.topic}-{lane.partition} holds another record at offset {offset} on the target than "
                        "on the source: a copier that had been stopped wrote after its place was taken",
                        still_true="no later record was copied; the source is untouched",
                        next_step="delete the target topic and mirror it again, before any client reads it",
                    )

    async def _batches(self, client: ClusterClient, lane: Lane, start: int, end: int) -> list[Batch | OldMessages]:
        """The data batches that hold offsets start … end − 1; raises Unreachable."""
        found: list[Batch | OldMessages] = []
        at = start
        while at < end:
            answer = await fetch_one(
                client, client.leader(*lane.key), FetchPartition(*lane.key, at, 4 << 20), purpose="compare"
            )
            if answer.error == Code.OFFSET_OUT_OF_RANGE:
                return found  # deleted meanwhile: nothing is left there to compare
            if answer.error:
                await client.refresh([lane.topic])
                raise Unreachable("tail-unreadable", f"{lane.topic}-{lane.partition}: {row(answer.error).name}")
            batches = [batch for batch in walk_all(answer.records) if batch.next_offset > at]
            if not batches:
                return found
            found += [batch for batch in batches if not _is_control(batch) and batch.base_offset < end]
            at = batches[-1].next_offset
        return found

    async def fill(self, lane: Lane, hole: Hole) -> None:
        """Fill one hole: nothing in flight, the true end before and after (W5, design of holes)."""
        try:
            await self._fill_checked(lane, hole)
        except Failed as error:
            if lane.state is LaneState.FILLING:
                lane.fill_failed(error.what, unknown=True)
        finally:
            lane.busy = False

    async def _fill_checked(self, lane: Lane, hole: Hole) -> None:
        if not self._may_fill():
            await sleep(0.05)
            lane.fill_failed("the lease is not confirmed", unknown=False)
            return
        end = await settled_end(self._target, *lane.key)
        if end != hole.start or not self._may_fill():
            lane.fill_failed("the target's log moved", unknown=False)
            return
        code = await self._holes.make(*lane.key, hole.end - hole.start)
        if code in _FENCED:
            await sleep(0.1)
            lane.fill_failed("a newer mirror owns this link", unknown=False)
        elif code and not row(code).retriable:
            lane.stop(f"hole-refused: offset {hole.start} cannot be filled: {row(code).name} ({code})")
        elif code:
            self._look_again()
            lane.fill_failed(row(code).name, unknown=True)
        else:
            await self._confirm_hole(lane, hole)

    async def _confirm_hole(self, lane: Lane, hole: Hole) -> None:
        deadline = monotonic() + self._target.settings.request_timeout_s
        while True:
            end = await settled_end(self._target, *lane.key)
            if end >= hole.end or monotonic() > deadline:
                break
            await sleep(0.002)  # EndTxn answers before its marker is written
        if lane.state is not LaneState.FILLING:
            return
        if end == hole.end:
            lane.filled(end)
        else:
            lane.fill_failed("the target's log moved", unknown=True)


def _contents(batch: Batch | OldMessages) -> dict[int, tuple[int, bytes]]:
    return batch.contents() if isinstance(batch, OldMessages) else contents(batch)


def _is_control(batch: Batch | OldMessages) -> bool:
    return not isinstance(batch, OldMessages) and batch.is_control
