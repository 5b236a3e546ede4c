"""Stray records: records in kmigrate's own topics that kmigrate did not write.

Every client with the permission to write these topics may put anything there. A stray record is void for every reader:
the record decides nothing, and no process ends because of the record. `status`, `doctor` and metrics count and name
strays instead, because an operator has to keep their writer out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from kmigrate.errors import KmigrateError
from kmigrate.records.batch import Batch

__all__ = ["StrayRecordError", "Strays", "read_json", "why_stray"]

_LONGEST_WHY = 120
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrayRecordError(Exception):
    """A record that kmigrate did not write, and the reason for that verdict."""


@dataclass(slots=True)
class Strays:
    """The number of stray records of a topic, with offset and reason of the newest."""

    count: int = 0
    offset: int = -1
    why: str = ""

    def note(self, batch: Batch, error: Exception) -> None:
        """Count the records of a stray batch."""
        self.count += max(1, batch.count)
        self.offset, self.why = batch.base_offset, why_stray(error)

    def told(self, topic: str) -> str:
        """Return the strays in words, '' if there are none."""
        if not self.count:
            return ""
        return (
            f"topic {topic} holds {self.count:,} records that kmigrate did not write; the newest, at offset "
            f"{self.offset}, {self.why}. They count for nothing"
        )


def why_stray(error: Exception) -> str:
    """Return why a record is stray, in a few printable words: the record's content may be anything."""
    text = error.what if isinstance(error, KmigrateError) else str(error)
    words = f"{text}" if isinstance(error, StrayRecordError) else f"cannot be read ({type(error).__name__}: {text})"
    return ascii(words[:_LONGEST_WHY])[1:-1]


def read_json(value: bytes) -> dict[str, Any]:
    """Return the JSON object of a record; raise StrayRecordError for JSON that kmigrate cannot have written.

    Python's parser accepts NaN and halves of surrogate pairs, and each of these would break a reader later.
    """
    try:
        body = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # nested too deeply for the parser
        raise StrayRecordError("is no JSON") from error
    if not isinstance(body, dict):
        raise StrayRecordError("is no JSON object")
    if _SURROGATE.search(value):
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except ValueError as error:
            raise StrayRecordError("holds half a surrogate pair") from error
    return body


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of kmigrate's")
