"""Finds the error codes in answers of every API except Produce and Fetch, whose handlers know their answers' errors.

An error code at the same place in every answer of a version is read there. Other answers are read by kio if they are
short, and each text of an answer once: answers without an error are mostly alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache, lru_cache

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import ApiKey, decode_answer, entity
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.primitives import I16
from kmigrate.router.wire.apis import is_offered

__all__ = ["COUNTED_ELSEWHERE", "LONGEST_READ", "error_codes"]

LONGEST_READ = 2_048
"""Maximum bytes of an answer that is read for its errors; longer answers would cost milliseconds."""
_KEPT = 1_024
_BODY = 8
_SOMEWHERE = -1
"""Place of an error code that is not at the same place in every answer."""
COUNTED_ELSEWHERE = frozenset({int(ApiKey.PRODUCE), int(ApiKey.FETCH)})
"""APIs whose handlers count the errors in their answers."""


def error_codes(api_key: int, version: int, frame: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """Return the error codes of an answer that are not 0, each as often as the answer has the code."""
    if api_key in COUNTED_ELSEWHERE or not is_offered(api_key, version):
        return ()
    at = _place(api_key, version)
    if at >= 0:
        (code,) = I16.unpack_from(frame, at) if len(frame) >= at + I16.size else (0,)
        return (code,) if code else ()
    return _read(api_key, version, bytes(frame[_BODY:])) if len(frame) <= LONGEST_READ else ()


@cache
def _place(api_key: int, version: int) -> int:
    """Return the place of the error code behind at most a throttle time."""
    kind = entity(api_key, version, "response")
    at = _BODY + (kind.__flexible__ and api_key != ApiKey.API_VERSIONS)
    for field in dataclasses.fields(kind):
        if field.name == "error_code":
            return at
        if field.name != "throttle_time":
            break
        at += 4
    return _SOMEWHERE


@lru_cache(_KEPT)
def _read(api_key: int, version: int, body: bytes) -> tuple[int, ...]:
    try:
        answer = decode_answer(entity(api_key, version, "response"), bytearray(_BODY) + body)
    except ProtocolViolation:  # the client sees what is wrong with the answer
        return ()
    return tuple(_codes(answer))


def _codes(value: object) -> Iterator[int]:
    """Yield the error codes of a message, at any depth."""
    if isinstance(value, tuple):
        for each in value:
            yield from _codes(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if not field.name.endswith("error_code"):
                yield from _codes(inner)
            elif code := code_of(inner):
                yield code
