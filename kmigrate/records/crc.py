"""The CRC-32C of a batch whose header changes, without reading its records again.

CRC is linear: where only the head of a message changes, the CRC changes by what the change of the head's own CRC
becomes when as many zero bytes follow it as the message goes on. So new header fields cost some table look-ups
whatever the batch's size, and, better still, a batch that arrived damaged, or that our own memory damages, keeps a CRC
that does not fit: the broker that stores it refuses it, where a CRC computed anew would have vouched for it.
"""

from __future__ import annotations

from functools import cache

__all__ = ["crc_of_changed_head"]

_POLYNOMIAL = 0x82F63B78
_DIGIT_BITS = 4
_Operator = tuple[list[int], list[int], list[int], list[int]]
"""A linear map of 32 bits: the image of each value of each byte."""


def crc_of_changed_head(crc: int, head: int, changed: int, size: int) -> int:
    """The CRC of a message, from its CRC before its head changed, the head's CRCs, and the size of what follows it."""
    value = head ^ changed
    digit = 0
    while size:
        part = size & 15
        if part:
            a, b, c, d = _zeros(digit, part)
            value = a[value & 255] ^ b[value >> 8 & 255] ^ c[value >> 16 & 255] ^ d[value >> 24]
        size >>= _DIGIT_BITS
        digit += 1
    return crc ^ value


@cache
def _zeros(digit: int, count: int) -> _Operator:
    """What `count` · 16^`digit` zero bytes make of a CRC register."""
    if count > 1:
        return _after(_zeros(digit, count - 1), _zeros(digit, 1))
    if digit:
        return _after(_zeros(digit - 1, 15), _zeros(digit - 1, 1))
    return _expanded([_one_zero(1 << bit) for bit in range(32)])


def _one_zero(register: int) -> int:
    for _ in range(8):
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
    return register


def _after(first: _Operator, second: _Operator) -> _Operator:
    a, b, c, d = second
    images = []
    for bit in range(32):
        value = first[bit >> 3][1 << (bit & 7)]
        images.append(a[value & 255] ^ b[value >> 8 & 255] ^ c[value >> 16 & 255] ^ d[value >> 24])
    return _expanded(images)


def _expanded(images: list[int]) -> _Operator:
    """The operator, from the images of its 32 single bits."""
    tables: list[list[int]] = []
    for byte in range(4):
        table = [0] * 256
        for value in range(1, 256):
            low = value & -value
            table[value] = table[value ^ low] ^ images[8 * byte + low.bit_length() - 1]
        tables.append(table)
    return tables[0], tables[1], tables[2], tables[3]
