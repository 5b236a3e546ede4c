"""Clients' requests that are nearly right: every offered API and version with some content, then random damage.

A seed names a stream of requests, so that a finding can be repeated. kio makes and writes the messages from Kafka's own
schemas. The damage knows nothing of the schemas.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import random
import struct
import types
import typing
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from kmigrate.protocol.api import ApiKey, encode_body, entity, is_flexible
from kmigrate.records.build import one_record_batch
from kmigrate.router.wire.apis import OFFERED

__all__ = ["HARMLESS", "Nonsense", "framed", "request"]


HARMLESS = frozenset({0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 22, 23, 24, 26, 28, 32, 60, 61, 65, 66, 68, 69})
"""APIs that change nothing but what the names in the request stand for. These may be sent to clusters of others."""
_LENGTHS = (-(1 << 31), -2, -1, 0, 1, 0x7F, 0x80, 0xFFFF, 100_001, 1 << 24, (1 << 31) - 1)
_NUMBERS = (-(1 << 63), -1, 0, 1, 1 << 31, 1 << 40, (1 << 62) + 3, (1 << 63) - 1)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(
    api: int, version: int, body: bytes, *, correlation: int = 1, client: bytes | None = b"x", tags: bytes = b"\0"
) -> bytes:
    """Return a whole request. `tags` are the header's tagged fields, in versions that have them."""
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    known = api in OFFERED and OFFERED[api].versions[0] <= version <= OFFERED[api].versions[1]
    has_tags = known and version >= _least_of_kio(api) and is_flexible(api, version)
    head = struct.pack(">hhi", api, version, correlation) + name
    return framed(head + (tags if has_tags else b"") + body)


def _least_of_kio(api: int) -> int:
    """Return the lowest version that kio writes; an older Produce request is a request of version 3 from acks on."""
    return 3 if api == ApiKey.PRODUCE else 0


class Nonsense:
    """An endless stream of damaged requests. `topics` and `groups` are the names in the requests."""

    def __init__(
        self, seed: int, topics: Sequence[str], groups: Sequence[str], apis: frozenset[int] = frozenset(OFFERED)
    ) -> None:
        self._chance = random.Random(seed)
        self._topics = topics
        self._groups = groups
        self._apis = sorted(apis)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.next()

    def next(self) -> bytes:
        chance = self._chance
        api = chance.choice(self._apis) if chance.random() < 0.7 else ApiKey.PRODUCE
        version = chance.randint(*OFFERED[api].versions)
        message = self.message(entity(api, max(version, _least_of_kio(api)), "request"))
        if version < _least_of_kio(api):
            body = encode_body(dataclasses.replace(message, transactional_id=None))[2:]
        else:
            body = encode_body(message)
        whole = bytearray(
            request(
                api,
                version,
                body,
                correlation=chance.randrange(1 << 31),
                client=chance.choice((None, b"", b"app", b"\xff" * 300)),
                tags=b"\1\x70\2ab" if chance.random() < 0.1 else b"\0",
            )
        )
        for _ in range(chance.choice((0, 1, 1, 1, 2, 5))):
            self._damage(whole)
        if chance.random() < 0.8:
            struct.pack_into(">i", whole, 0, len(whole) - 4)
        return bytes(whole)

    def _damage(self, whole: bytearray) -> None:
        chance, at = self._chance, self._chance.randrange(4, len(whole))
        what = chance.randrange(6)
        if what == 0:
            whole[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            whole[at:] = b""
            whole.extend(b"\0" * max(0, 14 - len(whole)))
        elif what == 2 and at + 4 <= len(whole):
            struct.pack_into(">i", whole, at, chance.choice(_LENGTHS))
        elif what == 3 and at + 8 <= len(whole):
            struct.pack_into(">q", whole, at, chance.choice(_NUMBERS))
        elif what == 4:
            whole[at:at] = chance.choice((b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\0", bytes(40)))
        else:
            whole[at : at + 3] = bytes(chance.randrange(256) for _ in range(3))

    # messages

    def message(self, kind: type[Any]) -> Any:
        """Return a message with at most two elements in each array, and nulls by chance."""
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: self._value(field.name, hints[field.name]) for field in dataclasses.fields(kind)})

    def _value(self, name: str, hint: Any) -> Any:
        origin = typing.get_origin(hint)
        if origin in (types.UnionType, typing.Union):
            if self._chance.random() < 0.2:
                return None
            hint = next(each for each in typing.get_args(hint) if each is not type(None))
            return self._value(name, hint)
        if origin is tuple:
            element = typing.get_args(hint)[0]
            return tuple(self._value(name, element) for _ in range(self._chance.choice((0, 1, 1, 2))))
        return self._plain(name, hint)

    def _plain(self, name: str, hint: Any) -> Any:
        chance = self._chance
        if dataclasses.is_dataclass(hint):
            return self.message(typing.cast("type[Any]", hint))
        if hint is ErrorCode:
            return ErrorCode(0)
        if issubclass(hint, enum.Enum):
            return chance.choice(list(hint))
        if issubclass(hint, bool):
            return chance.random() < 0.5
        if issubclass(hint, int):
            number = chance.choice((-1, 0, 1) if "acks" in name else (-1, 0, 0, 1, 2))
            return hint(number if isinstance(number, hint) else 1)
        if issubclass(hint, str):
            names = self._groups if "group" in name or "key" in name else self._topics
            return hint(chance.choice((*names, *names, "", "n" * 249)))
        if issubclass(hint, bytes):
            return hint(self._records() if "records" in name else b"abc")
        return self._rare(hint)

    def _rare(self, hint: Any) -> Any:
        chance = self._chance
        if issubclass(hint, dt.timedelta):
            return dt.timedelta(milliseconds=chance.choice((0, 1, 1000)))
        if issubclass(hint, dt.datetime):
            return dt.datetime.fromtimestamp(chance.randrange(1 << 31), dt.UTC)
        if issubclass(hint, uuid.UUID):
            return uuid.UUID(int=chance.randrange(1 << 128))
        return hint(0.5)

    def _records(self) -> bytes:
        chance = self._chance
        batch = one_record_batch(
            b"k",
            b"v",
            timestamp=1,
            producer_id=chance.choice((-1, 5, 7, (1 << 63) - 1)),
            epoch=chance.choice((-1, 0, 1)),
            sequence=chance.choice((-1, 0, 1, (1 << 31) - 1)),
        )
        return bytes(batch) * chance.choice((0, 1, 1, 1, 1, 2))
