"""The CRC-32C of a batch whose header changes, without reading its records again.

CRC is linear: where only the head of a message changes, the CRC changes by what the change of the head's own CRC
becomes when as many zero bytes follow it as the message goes on. So new header fields cost the same whatever the
batch's size, and, better still, a batch that arrived damaged, or that our own memory damages, keeps a CRC
that does not fit: the broker that stores it refuses it, where a CRC computed anew would have vouched for it.

Whole blocks of zeros are table look-ups, what is left over is run through the CRC. Tables down to single bytes would be
ten times as many: they would be out of the processor's cache whenever a request of large batches has passed through it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache

from crc32c import crc32c

__all__ = ["crc_of_change_again", "crc_of_changed_head"]

_BLOCK_BITS = 12
_LESS_THAN_A_BLOCK = (1 << _BLOCK_BITS) - 1
_ZEROS = memoryview(bytes(1 << _BLOCK_BITS))
_DIGIT_BITS = 4
_INVERTED = 0xFFFFFFFF
"""The CRC function takes and gives the register inverted."""
_Operator = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""A linear map of 32 bits: the image of each value of each byte."""


def crc_of_changed_head(crc: int, head: int, changed: int, size: int) -> int:
    """The CRC of a message, from its CRC before its head changed, the head's CRCs, and the size of what follows it."""
    value = crc32c(_ZEROS[: size & _LESS_THAN_A_BLOCK], head ^ changed ^ _INVERTED) ^ _INVERTED
    return crc ^ _behind(value, size >> _BLOCK_BITS)


def crc_of_change_again(crc: int, difference: int, size: int) -> int:
    """The same, where heads change by one `difference` of their CRCs over and over: most of it is known then."""
    known = _behind_inverted(difference, size >> _BLOCK_BITS)
    return crc ^ crc32c(_ZEROS[: size & _LESS_THAN_A_BLOCK], known) ^ _INVERTED


@lru_cache(maxsize=4096)
def _behind_inverted(difference: int, blocks: int) -> int:
    return _behind(difference, blocks) ^ _INVERTED


def _behind(value: int, blocks: int) -> int:
    """What so many blocks of zeros make of a CRC register."""
    digit = 0
    while blocks:
        part = blocks & 15
        if part:
            a, b, c, d = _blocks(digit, part)
            value = a[value & 255] ^ b[value >> 8 & 255] ^ c[value >> 16 & 255] ^ d[value >> 24]
        blocks >>= _DIGIT_BITS
        digit += 1
    return value


@cache
def _blocks(digit: int, count: int) -> _Operator:
    """What `count` · 16^`digit` blocks of zeros make of a CRC register."""
    if count > 1:
        return _after(_blocks(digit, count - 1), _blocks(digit, 1))
    if digit:
        return _after(_blocks(digit - 1, 15), _blocks(digit - 1, 1))
    return _expanded([crc32c(_ZEROS, 1 << bit ^ _INVERTED) ^ _INVERTED for bit in range(32)])


def _after(first: _Operator, second: _Operator) -> _Operator:
    a, b, c, d = second
    images = []
    for bit in range(32):
        value = first[bit >> 3][1 << (bit & 7)]
        images.append(a[value & 255] ^ b[value >> 8 & 255] ^ c[value >> 16 & 255] ^ d[value >> 24])
    return _expanded(images)


def _expanded(images: list[int]) -> _Operator:
    """The operator, from the images of its 32 single bits."""
    tables: list[Sequence[int]] = []
    for byte in range(4):
        table = array("I", bytes(4 * 256))
        for value in range(1, 256):
            low = value & -value
            table[value] = table[value ^ low] ^ images[8 * byte + low.bit_length() - 1]
        tables.append(table)
    return tables[0], tables[1], tables[2], tables[3]
