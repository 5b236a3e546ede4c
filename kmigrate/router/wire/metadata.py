"""Rewrites the topics of a Metadata answer in place: changes node ids, leaves out kmigrate's own topics.

A client that subscribes to a pattern, or lists topics, asks for all topics. kio took 0.4 s for the answer of a cluster
with 20,000 partitions, and all other clients waited meanwhile. Changed fields keep their length. Each list of replicas
is translated once. A thousand clients that come back at once ask for the same topics, so the results for the last few
large answers are kept. kio reads answers with something rare (tags, null lists, lists of 127 or more elements) or with
an early end, where kio says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from functools import lru_cache

from kmigrate.errors import ProtocolViolation
from kmigrate.model.ids import OWN_PREFIX
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import SIZE, response_body_offset
from kmigrate.protocol.primitives import read_uvarint, write_uvarint
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["put_topics", "show_topics"]

_LOWEST = 4
_WITH_OFFLINE, _WITH_EPOCH, _WITH_OPERATIONS, _FLEXIBLE, _WITH_ID, _WITH_ERROR = 5, 7, 8, 9, 10, 13
_WITHOUT_THE_CLUSTERS = 11
"""First version without the operations allowed on the cluster; the operations on topics stayed."""
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_NOT_YET = _I16.pack(Code.LEADER_NOT_AVAILABLE)
_OWN = OWN_PREFIX.encode()
_GREAT = 64 * 1024
_KEPT = 4
_LEADER = 6
"""Offset of the leader in a partition, behind error and index."""


class _OddError(Exception):
    """Something that kio must read."""


def show_topics(
    frame: bytearray, version: int, book: AddressBook, hidden: Collection[str]
) -> tuple[bytearray, bytes] | None:
    """Return an answer without its topics, and the topics as the client may see them; None where kio must read.

    Topics that are `hidden` have no leader and no partitions yet. No answer has a version below 4 (`old_metadata`).
    """
    if version < _LOWEST:
        return None
    try:
        begin = _Walk(bytes(frame), version, book.offset).brokers(response_body_offset(frame, version >= _FLEXIBLE))
        show = _shown if len(frame) < _GREAT else _shown_again
        shown, size = show(bytes(frame[begin:]), version, book.offset, frozenset(hidden))
    except (_OddError, ProtocolViolation, struct.error, IndexError):
        return None
    rest = frame[:begin] + _nothing(version) + frame[begin + size :]
    rest[: SIZE.size] = SIZE.pack(len(rest) - SIZE.size)
    return rest, shown


def put_topics(answer: bytes, version: int, topics: bytes) -> bytes:
    """Put the topics into an answer that was written without topics."""
    operations = 4 if _WITH_OPERATIONS <= version < _WITHOUT_THE_CLUSTERS else 0
    at = len(answer) - operations - (2 if version >= _WITH_ERROR else 0) - (1 if version >= _FLEXIBLE else 0)
    whole = bytearray(b"".join((answer[: at - len(_nothing(version))], topics, answer[at:])))
    whole[: SIZE.size] = SIZE.pack(len(whole) - SIZE.size)
    return bytes(whole)


def _nothing(version: int) -> bytes:
    """Return an empty array."""
    return b"\1" if version >= _FLEXIBLE else bytes(4)


def _shown(topics: bytes, version: int, offset: int, hidden: frozenset[str]) -> tuple[bytes, int]:
    """Return topics as clients may see them, and the topics' length; the bytes behind the topics are not read."""
    walk = _Walk(topics, version, offset, _encoded(hidden))
    size = walk.topics(0)
    return walk.shown(size), size


_shown_again = lru_cache(_KEPT)(_shown)


@lru_cache(_KEPT)
def _encoded(names: frozenset[str]) -> frozenset[bytes]:
    """Return names as they stand in answers; thousands of topics may be hidden from each of many answers."""
    return frozenset(name.encode() for name in names)


class _Walk:
    """The way through an answer; `_out` is the client's answer, except for the bytes that `_cuts` leaves out."""

    def __init__(self, raw: bytes, version: int, offset: int, hidden: Collection[bytes] = ()) -> None:
        self._raw = raw
        self._out = bytearray(raw)
        self._version = version
        self._flexible = version >= _FLEXIBLE
        self._lists = 3 if version >= _WITH_OFFLINE else 2
        self._book = AddressBook(offset)
        self._hidden = hidden
        self._cuts: list[tuple[int, int, bytes]] = []
        """Begin and end of the bytes that are left out, and the bytes that replace them."""
        self._count_behind = 0
        """End of the array's count of topics."""
        self._topics_left = 0
        """Number of topics that the answer still has."""
        self._leaders: dict[bytes, bytes] = {}
        self._replicas: dict[bytes, bytes] = {}
        """Lists of replicas, replicas in sync and offline replicas, one behind the other."""

    def topics(self, at: int) -> int:
        """Return the end of an array of topics."""
        count, at = self._count(at)
        self._topics_left, self._count_behind = count, at
        for _ in range(count):
            at = self._topic(at)
        if at > len(self._raw):
            raise _OddError
        return at

    def shown(self, end: int) -> bytes:
        count = write_uvarint(self._topics_left + 1) if self._flexible else _I32.pack(self._topics_left)
        out, at = bytearray(count), self._count_behind
        for cut, behind, instead in self._cuts:
            out += self._out[at:cut] + instead
            at = behind
        return bytes(out + self._out[at:end])

    def brokers(self, at: int) -> int:
        """Return the end of brokers, cluster and controller, which stand before the topics; the body begins at `at`."""
        count, at = self._count(at + 4)
        for _ in range(count):
            at = self._text(self._text(at + 4) + 4)
            at = self._no_tags(at)
        return self._text(at) + 4

    def _topic(self, begin: int) -> int:
        name = begin + 2
        at = self._text(name)
        named = self._named(name, at)
        hidden, own = named in self._hidden, named.startswith(_OWN)
        array = at + (16 if self._version >= _WITH_ID else 0) + 1
        count, at = self._count(array)
        fixed = _LEADER + (8 if self._version >= _WITH_EPOCH else 4)
        raw, out, lists, leaders, shown = self._raw, self._out, self._lists, self._leaders, self._replicas
        end_of: Callable[[bytes, int, int], int] = _end_of_compact if self._flexible else _end_of_plain
        for _ in range(count):
            leader, replicas = at + _LEADER, at + fixed
            nodes = raw[leader : leader + 4]
            if nodes not in leaders:
                leaders[nodes] = self._shown(nodes, lists=False)
            out[leader : leader + 4] = leaders[nodes]
            at = end_of(raw, replicas, lists)
            nodes = raw[replicas:at]
            if nodes not in shown:
                shown[nodes] = self._shown(nodes, lists=True)
            out[replicas:at] = shown[nodes]
            if self._flexible:
                at = self._no_tags(at)
        end = self._no_tags(at + 4 if self._version >= _WITH_OPERATIONS else at)
        if own:
            self._cuts.append((begin, end, b""))
            self._topics_left -= 1
        elif hidden:
            out[begin:name] = _NOT_YET
            self._cuts.append((array, at, _nothing(self._version)))
        return end

    def _shown(self, nodes: bytes, *, lists: bool) -> bytes:
        """Return a node id, or lists of node ids, as clients see them."""
        out, at = bytearray(nodes), 0
        while at < len(nodes):
            count = 1
            if lists:
                count, at = self._count_in(nodes, at)
            for _ in range(count):
                _I32.pack_into(out, at, self._book.shown(_I32.unpack_from(nodes, at)[0]))
                at += 4
        return bytes(out)

    def _count(self, at: int) -> tuple[int, int]:
        return self._count_in(self._raw, at)

    def _count_in(self, data: bytes, at: int) -> tuple[int, int]:
        """Return the number of an array's elements, and the offset of the first element."""
        if self._flexible:
            size, at = read_uvarint(data, at)
            count = size - 1
        else:
            (count,) = _I32.unpack_from(data, at)
            at += 4
        if count < 0:
            raise _OddError
        return count, at

    def _text(self, at: int) -> int:
        """Return the end of a text that may be null."""
        if self._flexible:
            size, at = read_uvarint(self._raw, at)
            return at + max(0, size - 1)
        return at + 2 + max(0, int(_I16.unpack_from(self._raw, at)[0]))

    def _named(self, at: int, end: int) -> bytes:
        """Return a topic's name, which ends at `end`."""
        begin = read_uvarint(self._raw, at)[1] if self._flexible else at + 2
        return self._raw[begin:end]

    def _no_tags(self, at: int) -> int:
        if not self._flexible:
            return at
        if self._raw[at]:
            raise _OddError
        return at + 1


def _end_of_compact(raw: bytes, at: int, lists: int) -> int:
    for _ in range(lists):
        size = raw[at]
        if not 0 < size < 0x80:
            raise _OddError
        at += 4 * size - 3
    return at


def _end_of_plain(raw: bytes, at: int, lists: int) -> int:
    for _ in range(lists):
        (count,) = _I32.unpack_from(raw, at)
        if count < 0:
            raise _OddError
        at += 4 + 4 * count
    return at
