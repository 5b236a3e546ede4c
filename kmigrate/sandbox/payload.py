"""The content of a record from its unique value id: key, value and headers follow from the id alone.

A judge without a copy of the source derives the content again from the value's id, and sees altered records. An id
reads `<producer>.<run>:<seq>`. `seq` goes on over a producer's runs (process incarnations), so the order of records is
judged across a restart, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["AnyHeaders", "Content", "Headers", "ValueId", "content_of", "id_in", "parse_id", "plain_headers"]

Headers = tuple[tuple[str, bytes | None], ...]
AnyHeaders = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None

_ID = re.compile(r"([A-Za-z0-9][\w-]*)\.(\d+):(\d+)", re.ASCII)
_SEPARATOR = b"|"
_LONGEST_ID = 100
_SMALLEST = 160
_SPREAD = 80  # values are 160 to 239 bytes long, about 200 on average
_KEYS = 997


class ValueId(NamedTuple):
    """The name of a record: the producer, the producer's run and the number."""

    producer: str
    run: int
    seq: int

    @property
    def text(self) -> str:
        return f"{self.producer}.{self.run}:{self.seq}"


class Content(NamedTuple):
    """The bytes that belong to a value id."""

    key: bytes | None
    value: bytes
    headers: Headers


def parse_id(text: str) -> ValueId | None:
    match = _ID.fullmatch(text)
    return ValueId(match[1], int(match[2]), int(match[3])) if match else None


def id_in(value: bytes | None) -> str | None:
    """Return the id at the head of a value, or None if the value does not start with an id."""
    if value is None:
        return None
    end = value.find(_SEPARATOR, 0, _LONGEST_ID)
    if end < 0:
        return None
    try:
        text = value[:end].decode("ascii")
    except UnicodeDecodeError:
        return None
    return text if _ID.fullmatch(text) else None


def content_of(text: str, seq: int) -> Content:
    """Return key, value and headers of an id. Every fifth record has no key, every third has headers."""
    head = text.encode("ascii")
    digest = blake2b(head, digest_size=32).digest()
    size = _SMALLEST + digest[0] % _SPREAD
    filler = digest.hex().encode("ascii") * 4
    value = (head + _SEPARATOR + filler)[:size]
    key = None if seq % 5 == 0 else b"k%d" % (seq % _KEYS)
    headers: Headers = (("id", head), ("nothing", None), ("id", digest[:8])) if seq % 3 == 0 else ()
    return Content(key, value, headers)


def plain_headers(headers: AnyHeaders) -> Headers:
    """Return the headers of any client library in a comparable form."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
