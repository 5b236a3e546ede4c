"""Which comparison a report is about: the words that a parity report itself does not hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from kmigrate.model.words import one_line
from kmigrate.parity.verdict import Anomaly, Place

__all__ = ["Check", "differs", "escaped", "place_text", "printable"]

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Check:
    """One run of `verify`."""

    link: str
    source: str
    target: str
    at: str  # ISO 8601, UTC


def printable(text: str) -> str:
    """The text without what neither XML nor HTML can hold, escaped or not."""
    return _NOT_XML.sub("\ufffd", text)


def escaped(text: str) -> str:
    """Return the text as markup shows it, also in an attribute; what a browser would act on is told by its escape."""
    return escape(printable(one_line(text)))


def place_text(place: Place | None) -> str:
    """A record's place as partition @ offset."""
    return "–" if place is None else f"{place.partition} @ {place.offset:,}"


def differs(each: Anomaly) -> str:
    """What a finding has to add to its name: the parts that were altered, or how many records moved."""
    return ", ".join(each.parts) if each.parts else (f"{each.records:,} records" if each.records != 1 else "")
