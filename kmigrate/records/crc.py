"""The new CRC-32C of a batch whose header changes, computed without reading the records.

CRC is linear. If only the head of a message changes, the change of the whole CRC follows from two things: the change of
the head's CRC, and the number of bytes behind the head. So a new header costs the same for every batch size.

Damage also stays visible. A batch that arrived damaged, or that our own memory damages, keeps a wrong CRC, and the
broker refuses the batch. A CRC computed from all bytes would vouch for the damaged bytes.

Whole blocks of zeros are table look-ups. The CRC function processes the zeros that do not fill a block. Tables for
single bytes would be ten times as many. A request of large batches would push such tables out of the processor's cache.
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
"""Mask that converts between a register and the CRC function, which takes and returns inverted registers."""
_Operator = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""A linear map of 32 bits: for each of the four bytes, the image of each value."""


def crc_of_changed_head(crc: int, head: int, changed: int, size: int) -> int:
    """Return a CRC after the head changed; `head`, `changed`: the head's CRCs, `size`: the bytes behind the head."""
    value = crc32c(_ZEROS[: size & _LESS_THAN_A_BLOCK], head ^ changed ^ _INVERTED) ^ _INVERTED
    return crc ^ _behind(value, size >> _BLOCK_BITS)


def crc_of_change_again(crc: int, difference: int, size: int) -> int:
    """Return the CRC after a head's CRC changed by `difference`, which recurs: most of the work is cached."""
    known = _behind_inverted(difference, size >> _BLOCK_BITS)
    return crc ^ crc32c(_ZEROS[: size & _LESS_THAN_A_BLOCK], known) ^ _INVERTED


@lru_cache(maxsize=4096)
def _behind_inverted(difference: int, blocks: int) -> int:
    return _behind(difference, blocks) ^ _INVERTED


def _behind(value: int, blocks: int) -> int:
    """Return a CRC register after `blocks` blocks of zeros."""
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
    """Return the map that `count` · 16^`digit` blocks of zeros apply to a CRC register."""
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
    """Return the operator for the images of its 32 single bits."""
    tables: list[Sequence[int]] = []
    for byte in range(4):
        table = array("I", bytes(4 * 256))
        for value in range(1, 256):
            low = value & -value
            table[value] = table[value ^ low] ^ images[8 * byte + low.bit_length() - 1]
        tables.append(table)
    return tables[0], tables[1], tables[2], tables[3]
