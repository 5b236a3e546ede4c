"""A lag in a cell: records, the approximate bytes, and the maximum age of the next record."""

from __future__ import annotations

from kmigrate.model.amounts import bytes_text, time_text
from kmigrate.model.lag import Lag

__all__ = ["disk_text", "lag_text"]


def lag_text(lag: Lag) -> str:
    """Return a lag as in `1,500 (~45 kB, 3.2 s)`, without unknown parts; `?` where everything is unknown."""
    if lag.records <= 0:
        return "?" if lag.records < 0 else "0"
    size = [f"~{bytes_text(lag.bytes)}"] if lag.bytes >= 0 else []
    more = [*size, *([time_text(lag.seconds)] if lag.seconds >= 0 else [])]
    about = f" ({', '.join(more)})" if more else ""
    return f"{lag.records:,}{about}"


def disk_text(size: int | None, per_hour: int | None) -> str:
    """Return a size and growth as in `1.2 GB, +300 MB/h`; `?` stands for an unknown figure."""
    sign = "-" if per_hour is not None and per_hour < 0 else "+"
    growth = "?" if per_hour is None else f"{sign}{bytes_text(abs(per_hour))}"
    return f"{'?' if size is None else bytes_text(size)}, {growth}/h"
