"""The values of `--from`: earliest, latest, or a moment as ISO-8601 or as ms since the epoch."""

from __future__ import annotations

import datetime as dt

from kmigrate.errors import UsageError
from kmigrate.model.digits import whole_number

__all__ = ["start_position"]


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
            still_true="nothing was changed",
            next_step="expected: earliest, latest, ISO-8601 (2026-03-01T08:00:00Z) or ms since the epoch",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise UsageError(
            "bad-start-position",
            f"--from {text}: before 1970",
            still_true="nothing was changed",
            next_step="expected: a moment from 1970 on, or earliest",
        )
    return str(milliseconds)
