"""Computes how far a partition's copy is behind its source, in records, bytes and seconds. Pure.

Records are offsets, also offsets without a record, because the copy has to pass them. Bytes are an estimate: offsets
times the partition's bytes per offset that the mirror has lately read. Exact bytes would require reading the records.

Seconds are the age of the next record to copy, as an upper bound. The copy is `fresh` up to the later of two times:
- The timestamp of the record copied last. Alone, this time would be wrong for a partition without records for an hour:
  with the next record, the partition would seem an hour behind.
- The time when the copy last stood at the source's reported end. Alone, this time would say nothing about a backlog.
A record with a timestamp in the future counts as of now.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CAUGHT_UP", "UNKNOWN", "UNPACED", "Lag", "Pace", "lag_of"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The figures that turn records into bytes and seconds; 0 for an unknown figure."""

    fresh_ms: int = 0
    """Moment up to which the source's records are on the target, ms since the epoch."""
    offset_bytes: float = 0.0
    """Bytes per offset."""


UNPACED = Pace()


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a partition's copy; −1 for an unknown figure."""

    records: int = -1
    bytes: int = -1
    seconds: float = -1.0


UNKNOWN = Lag()
CAUGHT_UP = Lag(0, 0, 0.0)


def lag_of(records: int, pace: Pace, now_ms: int) -> Lag:
    """Return the lag of a partition whose copy lacks this number of offsets; −1 means an unknown number."""
    if records <= 0:
        return UNKNOWN if records < 0 else CAUGHT_UP
    return Lag(
        records,
        round(records * pace.offset_bytes) if pace.offset_bytes > 0 else -1,
        max(0, now_ms - pace.fresh_ms) / 1000 if pace.fresh_ms > 0 else -1.0,
    )
