"""The copy from the target back to the source, in one process (docs/decisions/0017).

The reverse copy is a second copier with source and target swapped. The copier exists only while a topic of the link has
an open way back. The source's own properties decide how the copier writes: the size of requests, the memory of
producers, the disks, and whether a batch and the markers behind the batch may leave together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kmigrate.cluster.producer_expiration import producer_memory
from kmigrate.errors import Failed, KmigrateError, StateLogBroken, WaitTimedOut
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier
from kmigrate.mirror.copy.foreign import ForeignWatch, foreign_batch
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.lanes import Lanes
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.metrics import LinkMeter
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.mirror.settings import OLD_MS
from kmigrate.mirror.upkeep.activation import request_limit
from kmigrate.mirror.upkeep.stops import StopKeeper
from kmigrate.model.eras import Direction
from kmigrate.model.records import CopyIdentity, LinkRecord, TopicRecord
from kmigrate.net.clock import sleep
from kmigrate.net.tasks import accompanied

__all__ = ["ReverseCopy"]

_RETRY_S = 1.0
_LOOK_S = 0.25
_OLD = 0.8
"""Part of the source's `producer.id.expiration.ms` from which on a record's age lets the batch go alone (W1)."""
_NO_IDENTITY = CopyIdentity(-1, -1)
"""Producer id of the copier: each topic that is copied back has a producer id of its own."""


class ReverseCopy:
    """Copies this process's share of the topics that have an open way back."""

    def __init__(
        self,
        link: MirroredLink,
        *,
        owner_term: Callable[[Key], int],
        may_write: Callable[[], bool],
        is_free: Callable[[Key], bool],
        on_move: Callable[[Lane], None],
        on_begin: Callable[[], None],
    ) -> None:
        """Create a reverse copy; `on_begin` is called when a new copier waits for its topics."""
        self._link = link
        self._owner_term = owner_term
        self._may_write = may_write
        self._is_free = is_free
        self._on_move = on_move
        self._on_begin = on_begin
        self._left: Collection[Key] = ()
        """The last copier's `late_writes`, for the next copier."""
        self.copier: Copier | None = None
        """The copier; None while no topic of the link is copied back."""
        self.trouble = ""
        """The reason why the copier cannot begin, or ''."""
        self.meter = LinkMeter(link.target.settings.name, link.source.settings.name)
        self._seen: tuple[int, bool] = -1, False
        """Epoch of the known state, and whether a topic is copied back then."""

    async def run(self) -> None:
        """Copy back while the link has topics with an open way back, for ever."""
        while True:
            link = self._link.record
            if link is not None and self._is_wanted():
                await self._try(link)
            else:
                self._left = ()
            await self._link.log.changed(_LOOK_S)

    def close(self) -> None:
        """Forget the copier, whose tasks have ended."""
        if self.copier is not None:
            self._left = self.copier.late_writes
        self.copier, self.meter.lanes = None, {}

    @property
    def late_writes(self) -> Collection[Key]:
        """Partitions of the source that may still get writes of this process (`Lane.has_late_writes`)."""
        return self.copier.late_writes if self.copier is not None else self._left

    def holds(self, key: Key) -> bool:
        """Return whether the copier may still write to a partition."""
        return self.copier is not None and self.copier.holds(key)

    def _is_wanted(self) -> bool:
        epoch = self._link.state.epoch
        if self._seen[0] != epoch:
            self._seen = epoch, bool(self._link.state.topics_that(_is_copied_back, self._link.name))
        return self._seen[1]

    async def _try(self, link: LinkRecord) -> None:
        try:
            context = await self._context(link)
        except StateLogBroken:
            raise
        except KmigrateError as error:
            self.trouble = f"way-back: {error.summary}" if isinstance(error, Failed | WaitTimedOut) else error.summary
            await sleep(_RETRY_S)
            return
        self.trouble = ""
        await self._copy(context)

    async def _context(self, link: LinkRecord) -> CopyContext:
        source, admin, settings = self._link.source, self._link.source_admin, self._link.settings
        lanes = Lanes()
        memory = await producer_memory(source, admin)
        return CopyContext(
            self._link.target,
            source,
            _NO_IDENTITY,
            HoleMaker(
                source,
                _NO_IDENTITY,
                link_uuid=link.uuid,
                filler=settings.hole_filler,
                windows=settings.windows,
                long_windows=False,
                producer_of=lanes.producer_of,
            ),
            settings,
            link_settings=lambda: self._link.link_settings,
            owner_term=self._owner_term,
            may_write=self._may_write,
            pipelining=memory is not None,
            old_ms=min(OLD_MS, int(int(memory.value) * _OLD)) if memory is not None else OLD_MS,
            request_limit=await request_limit(source, admin),
            late_writes=self._left,
            is_free=self._is_free,
            on_move=self._on_move,
            meter=self.meter,
            lanes=lanes,
        )

    async def _copy(self, context: CopyContext) -> None:
        """Copy until no topic of the link is copied back, and no write is under way."""
        copier = self.copier = Copier(context)
        self.meter.lanes = copier.lanes
        self._on_begin()
        stops = StopKeeper(
            self._link.log,
            self._link.name,
            self._link.instance,
            Direction.BACK,
            explain=lambda lane: foreign_batch(context.target, lane),
        )
        await accompanied(
            self._until_unwanted(copier), copier.run(), stops.run(copier.lanes), ForeignWatch(context).run()
        )
        self.close()

    async def _until_unwanted(self, copier: Copier) -> None:
        while self._is_wanted() or copier.lanes or copier.leaving:
            await self._link.log.changed(_LOOK_S)


def _is_copied_back(record: TopicRecord) -> bool:
    return record.copied_back
