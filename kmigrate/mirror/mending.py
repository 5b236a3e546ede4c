"""What a lane needs beside being read and written: to learn where it stands, and to have its holes filled.

Both read the target's own log before they say anything; neither decides by itself, the lane does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.cluster.producer import LogTail, read_tail, settled_end
from kmigrate.errors import Diverged, Failed, ProtocolViolation, Unreachable
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.lane import Lane, LaneState
from kmigrate.mirror.reactions import Action, Asked, Found, reaction_to
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
_COMPARED_BYTES = 64 << 10
"""A look at one batch; a broker gives a larger one whole all the same."""


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
        check_topic: Callable[[ClusterClient, str], Coroutine[Any, Any, None]],
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._holes = holes
        self._may_fill = may_fill
        self._look_again = look_again
        self._check_topic = check_topic

    async def recover(self, lane: Lane) -> None:
        """Read the target's tail until it is known where the lane stands."""
        delay = 0.02
        try:
            await sleep(lane.write_pause_s)
            while lane.state is LaneState.LOST:
                try:
                    tail = await read_tail(
                        self._target,
                        *lane.key,
                        self._identity.data_id,
                        settle_s=_SETTLE_S if lane.unknown else 0.0,
                    )
                    if tail.end < lane.position:
                        # Cut by an unclean election, then it is filled up again; or another topic by that name.
                        await self._check_topic(self._target, lane.topic)
                    if lane.doubtful and (lane.compacted or lane.position < 0):
                        await self._compare_last(lane, tail)
                except Diverged as error:
                    lane.stop(f"{error.ref}: {error.what}")
                except ProtocolViolation as error:
                    lane.stop(f"{error.ref}: {error.what}")
                except Unreachable as error:
                    lane.trouble = f"{error.ref}: {error.what}"
                    self._look_again()
                    await sleep(delay)
                    delay = min(delay * 2, 1.0)
                else:
                    if tail.end < lane.log_start:
                        ref = reaction_to(Asked.PRODUCE, Found.NOT_ALIGNED).ref
                        lane.stop(f"{ref}: the target ends at {tail.end}, before the start {lane.log_start}")
                    lane.recovered(tail.end, tail.sequence, max(tail.data_end, lane.log_start))
        finally:
            lane.busy = False

    async def _compare_last(self, lane: Lane, tail: LogTail) -> None:
        """Raise Diverged where the target's last batch holds other records than the source at those offsets.

        Asked once when a copy begins in this process, because what happened to either log before is not known here:
        a source cut and regrown (W7), or a stop by A14 that did not get into the state log any more. Records that a
        cleaner has since removed from the source cannot be compared and need not be: no reader of the source is
        given them any more.
        """
        if tail.data_end <= lane.log_start:
            return
        ours = await self._batches(self._target, lane, tail.data_end - 1, tail.data_end)
        first = min((batch.base_offset for batch in ours), default=tail.data_end)
        copied = {offset: record for batch in ours for offset, record in _contents(batch).items()}
        for batch in await self._batches(self._source, lane, first, tail.data_end):
            for offset, record in _contents(batch).items():
                if any(loss.covers(offset, offset) for loss in lane.losses):
                    continue
                if first <= offset < tail.data_end and copied.get(offset) != record:
                    raise Diverged(
                        reaction_to(Asked.PRODUCE, Found.OTHER_CONTENT).ref,
                        f"{lane.topic}-{lane.partition} holds another record at offset {offset} on the target than "
                        "on the source: another wrote to the target, or the source was cut and written anew",
                        still_true="no later record was copied; the source is untouched",
                        next_step="delete the target topic and mirror it again, before any client reads it",
                    )

    async def _batches(self, client: ClusterClient, lane: Lane, start: int, end: int) -> list[Batch | OldMessages]:
        """The data batches that hold offsets start … end − 1; raises Unreachable."""
        found: list[Batch | OldMessages] = []
        at = start
        while at < end:
            answer = await fetch_one(
                client, client.leader(*lane.key), FetchPartition(*lane.key, at, _COMPARED_BYTES), purpose="compare"
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
                unknown = reaction_to(Asked.MARKERS, Found.NO_ANSWER).action is Action.SETTLE
                lane.fill_failed(error.what, unknown=unknown)
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
        hole = Hole(hole.start, min(hole.end, hole.start + self._holes.portion))
        code = await self._holes.make(*lane.key, hole.end - hole.start)
        if not code:
            await self._confirm_hole(lane, hole)
            return
        if reaction_to(Asked.MARKERS, code).action is Action.READ_TAIL:
            await sleep(0.1)  # a newer owner of the lease writes; our own lease is about to end
        self._look_again()
        lane.fill_refused(hole, code)

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
