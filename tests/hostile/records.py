"""Records that a careless stranger may write into any topic: bytes, JSON of odd types, damaged copies, deep nesting.

A seed names a stream of such records.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

__all__ = ["HOSTILE_NAMES", "Rubbish"]

HOSTILE_NAMES = (
    "team[/prod]", "[bold]x[/]", ":smile:", r"orders\.[a-z]+", "a\nb", "\x1b[31mred\x1b[0m", "\u202egnp", "<script>",
    "'\"\\", "a/b/c", "%s%n", "x" * 200,
)  # fmt: skip
_KINDS = ("LeaseRecord", "TopicRecord", "LinkRecord", "RouterPresence", "MirrorPresence", "FencedProgress", "Nothing")
_FIELDS = ("kind", "schema", "at", "prev", "nonce", "record", "instance", "link", "topics", "applied", "name")
_NUMBERS = (-1, 0, 1, 2, 99, 1 << 31, 1 << 63, 10**40, 1e308, -0.0)


class Rubbish:
    """An endless stream of keys and values. `known` are real records, from which damaged copies are made."""

    def __init__(self, seed: int, known: Sequence[tuple[bytes, bytes]]) -> None:
        self._chance = random.Random(seed)
        self._known = known

    def next(self) -> tuple[bytes | None, bytes | None]:
        """Return a key and a value. A null of either is as likely as anything else."""
        chance = self._chance
        keys = [key for key, _ in self._known] + [b"router/i", b"mirror/l/i", b"u/t/0/1/0", chance.randbytes(6)]
        return chance.choice(keys), self._value()

    def _value(self) -> bytes | None:
        chance = self._chance
        what = chance.randrange(7)
        if what == 0:
            return None
        if what == 1:
            return chance.randbytes(chance.choice((0, 1, 40, 4000)))
        if what == 2:
            return chance.choice((b"[", b'{"a":')) * chance.choice((10, 990, 3_000))
        if what == 3 and self._known:
            copy = bytearray(chance.choice(self._known)[1])
            for _ in range(chance.choice((0, 1, 1, 3))):
                copy[chance.randrange(len(copy))] = chance.randrange(256)
            return bytes(copy)
        if what == 4 and self._known:
            return self._odd(json.loads(chance.choice(self._known)[1]))
        return json.dumps(self._json(4)).encode()

    def _odd(self, body: Any) -> bytes:
        """Return a real record with a part of another type. The record's offset is never the right offset."""
        part = body
        while isinstance(part, dict) and part:
            key = self._chance.choice(list(part))
            if not isinstance(part[key], dict) or self._chance.random() < 0.3:
                part[key] = self._json(2)
                break
            part = part[key]
        return json.dumps(body).encode()

    def _json(self, depth: int) -> Any:
        chance = self._chance
        if not depth or chance.random() < 0.4:
            return chance.choice((*_NUMBERS, None, True, "", "x", *_KINDS, *HOSTILE_NAMES))
        if chance.random() < 0.3:
            return [self._json(depth - 1) for _ in range(chance.randrange(4))]
        return {chance.choice((*_FIELDS, "\ud800")): self._json(depth - 1) for _ in range(chance.randrange(5))}
