"""Values as a person types them: a rate in bytes per second, a range of offsets, a start position."""

from __future__ import annotations

import datetime as dt
import re

from kmigrate.errors import UsageError
from kmigrate.model.digits import whole_number

__all__ = ["byte_rate", "moment", "offset_range", "start_position"]

_RATE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([kMG]?)(i?)(?:B(?:/s)?)?")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3}


def byte_rate(text: str) -> int:
    """Return the bytes per second that `text` stands for; 0 stands for `off`."""
    if text == "off":
        return 0
    found = _RATE.fullmatch(text.replace("K", "k"))
    rate = round(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2]]) if found else 0
    if rate < 1:
        raise UsageError(
            "bad-rate",
            f"{text}: not a rate",
            next_step="expected: bytes a second as 500kB, 10MB, 1GiB or a number; or off",
        )
    return rate


def offset_range(text: str) -> tuple[int, int]:
    """Return the first and the last offset of a range; the range includes both."""
    first, last = (whole_number(end) for end in text.partition("..")[::2])
    if first is None or last is None or first > last:
        raise UsageError(
            "bad-range",
            f"--accept-loss {text}: not a range of offsets",
            next_step="expected: FROM..TO as status names it, both included, for example 120..180",
        )
    return first, last


_SPAN = re.compile(r"\+(\d{1,9}(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def moment(text: str, flag: str, now_ms: int) -> int:
    """Return a moment from now on, in ms since the epoch: ISO 8601 (UTC where no zone is named), or +duration."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return now_ms + round(float(span[1]) * _SECONDS[span[2]] * 1000)
    try:
        given = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            "bad-moment",
            f"{flag} {text}: not a moment",
            still_true="nothing was changed",
            next_step="expected: ISO 8601 (2026-03-01T08:00:00Z), or a duration from now on: +90s, +15m, +2h, +1d",
        ) from None
    at_ms = round((given if given.tzinfo is not None else given.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    if at_ms < now_ms:
        raise UsageError(
            "bad-moment",
            f"{flag} {text}: this moment is over",
            still_true="nothing was changed",
            next_step="name a moment that is still to come; a moment without a zone is in UTC",
        )
    return at_ms


def start_position(text: str) -> str:
    """Return the position in the form of the state log: a word, or milliseconds as a number."""
    if text in ("earliest", "latest") or whole_number(text) is not None:
        return text
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            "bad-start-position",
            f"--from {text}: not a start position",
            next_step="expected: earliest, latest, ISO-8601 (2026-03-01T08:00:00Z) or ms since the epoch",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise UsageError(
            "bad-start-position",
            f"--from {text}: before 1970",
            next_step="expected: a moment from 1970 on, or earliest",
        )
    return str(milliseconds)
