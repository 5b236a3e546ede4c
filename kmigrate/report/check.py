"""Names the comparison that a report is about; a parity report itself does not hold these facts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from kmigrate.model.words import one_line
from kmigrate.parity.report import PartitionRow
from kmigrate.parity.verdict import Anomaly, Place

__all__ = ["Check", "by_topic", "differs", "escaped", "place_text", "printable"]

_OfTopic = TypeVar("_OfTopic", PartitionRow, Anomaly)
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Check:
    """A run of `verify`."""

    link: str
    source: str
    target: str
    at: str  # ISO 8601, UTC


def by_topic(each_of: Iterable[_OfTopic]) -> Mapping[str, list[_OfTopic]]:
    found: dict[str, list[_OfTopic]] = defaultdict(list)
    for each in each_of:
        found[each.topic].append(each)
    return found


def printable(text: str) -> str:
    """Return the text with a replacement for characters that neither XML nor HTML can hold, even if escaped."""
    return _NOT_XML.sub("\ufffd", text)


def escaped(text: str) -> str:
    """Return the text for markup, also in an attribute; escapes replace characters on which a browser would act."""
    return escape(printable(one_line(text)))


def place_text(place: Place | None) -> str:
    """Return a record's place as partition @ offset."""
    return "–" if place is None else f"{place.partition} @ {place.offset:,}"


def differs(each: Anomaly) -> str:
    """Return what a finding adds to its name: the parts that were altered, or how many records moved."""
    return ", ".join(each.parts) if each.parts else (f"{each.records:,} records" if each.records != 1 else "")
