"""How far a partition's copy is behind its source, in records, bytes and seconds. Pure.

Records are offsets: those that hold no record count, too, because the copy has to pass them.

Bytes are *about*: offsets times the bytes per offset that the mirror has lately read from this partition. To know
them exactly somebody would have to read them.

Seconds are the age of the next record to be copied, as an upper bound: the copy is `fresh` up to some moment, which
is the later of two. One is the time of the record copied last; alone it would call a partition that slept for an
hour an hour behind as soon as one record arrives. The other is when the copy last stood at the source's end, as the
source said then; alone it would know nothing of a backlog. A record that lies in the future counts as of now.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CAUGHT_UP", "UNKNOWN", "UNPACED", "Lag", "Pace", "lag_of"]


@dataclass(frozen=True, slots=True)
class Pace:
    """What turns records into bytes and seconds; 0 where it is not known."""

    fresh_ms: int = 0
    """The moment up to which the source's records are on the target, ms since the epoch."""
    offset_bytes: float = 0.0
    """Bytes per offset."""


UNPACED = Pace()


@dataclass(frozen=True, slots=True)
class Lag:
    """Each figure is −1 where it is not known."""

    records: int = -1
    bytes: int = -1
    seconds: float = -1.0


UNKNOWN = Lag()
CAUGHT_UP = Lag(0, 0, 0.0)


def lag_of(records: int, pace: Pace, now_ms: int) -> Lag:
    """The lag of a partition whose copy lacks so many offsets; −1: nobody knows how many."""
    if records <= 0:
        return UNKNOWN if records < 0 else CAUGHT_UP
    return Lag(
        records,
        round(records * pace.offset_bytes) if pace.offset_bytes > 0 else -1,
        max(0, now_ms - pace.fresh_ms) / 1000 if pace.fresh_ms > 0 else -1.0,
    )
