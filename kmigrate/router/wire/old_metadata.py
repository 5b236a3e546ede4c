"""Metadata requests before version 4: sent to the target in version 4, answered in the client's version.

Such a request cannot say that no topic shall be created, and the router must be able to say so (`admin.handler`). The
bytes of topics are the same in versions 1 to 4. A topic of version 0 has no internal flag. Brokers leave replicas whose
broker is unknown out of a version 0 answer, with an error, because old clients look up every replica's broker.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from functools import lru_cache

from kmigrate.model.ids import OWN_PREFIX
from kmigrate.protocol.api import (
    ApiKey,
    decode_answer,
    decode_request,
    encode_request,
    entity,
    frame_answer,
    recast,
    replace,
)
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead, correlation_id
from kmigrate.protocol.primitives import I16, I32
from kmigrate.router.wire.metadata import put_topics, show_topics
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["answer_in_version", "ask_in_version_4", "is_old_metadata"]

_CAN_FORBID_CREATION = 4
"""First version in which a request can say that no topic shall be created."""
_VERSION_AT = 6
_OWN = OWN_PREFIX.encode()
_AS_THEY_ARE = AddressBook(0)
_PARTITION = struct.Struct(">hii")
"""Error, index and leader of a partition."""
_LARGE = 64 * 1024
_KEPT = 4
"""Number of large answers whose topics are kept for clients that ask for the same."""


def is_old_metadata(head: RequestHead) -> bool:
    """Return whether a request asks for metadata in a version that always creates unknown topics."""
    return head.api_key == ApiKey.METADATA and head.version < _CAN_FORBID_CREATION


def ask_in_version_4(head: RequestHead, frame: bytearray) -> tuple[RequestHead, bytearray]:
    """Return an old request in version 4; in version 0, an empty list means all topics."""
    request = decode_request(frame, head)
    all_topics = not head.version and not request.topics
    newer = recast(request, entity(ApiKey.METADATA, _CAN_FORBID_CREATION, "request"))
    newer = replace(newer, topics=None if all_topics else newer.topics, allow_auto_topic_creation=True)
    asked = encode_request(frame, head, newer)
    I16.pack_into(asked, _VERSION_AT, _CAN_FORBID_CREATION)
    return head._replace(version=_CAN_FORBID_CREATION), asked


def answer_in_version(frame: bytearray, version: int) -> bytes:
    """Return an answer of version 4 in an older version."""
    # only kio's reading keeps a refusal that names a topic of kmigrate's own
    apart = show_topics(frame, _CAN_FORBID_CREATION, _AS_THEY_ARE, ()) if _OWN not in frame else None
    kind = entity(ApiKey.METADATA, _CAN_FORBID_CREATION, "response")
    answer = decode_answer(kind, apart[0] if apart is not None else frame)
    older = frame_answer(recast(answer, entity(ApiKey.METADATA, version, "response")), correlation_id(frame))
    if apart is None:
        return older
    topics = apart[1]
    if not version:
        brokers = frozenset(int(broker.node_id) for broker in answer.brokers)
        topics = (_in_version_0 if len(topics) < _LARGE else _in_version_0_again)(topics, brokers)
    return put_topics(older, version, topics)


def _in_version_0(topics: bytes, brokers: frozenset[int]) -> bytes:
    """Return topics without internal flags, and without replicas whose broker is not among `brokers`."""
    (count,) = I32.unpack_from(topics, 0)
    out, at = bytearray(topics[:4]), 4
    known: dict[bytes, bytes] = {}
    for _ in range(count):
        flag = at + 2 + 2 + int(I16.unpack_from(topics, at + 2)[0])
        (partitions,) = I32.unpack_from(topics, flag + 1)
        out += topics[at:flag] + topics[flag + 1 : flag + 5]
        at = flag + 5
        for _ in range(partitions):
            error, index, leader = _PARTITION.unpack_from(topics, at)
            lists = at + _PARTITION.size
            at = _end_of_list(topics, _end_of_list(topics, lists))
            nodes = topics[lists:at]
            if nodes not in known:
                known[nodes] = _known_nodes(nodes, brokers)
            if len(known[nodes]) < len(nodes) and not error:
                error = Code.REPLICA_NOT_AVAILABLE
            out += _PARTITION.pack(error, index, leader) + known[nodes]
    return bytes(out)


_in_version_0_again = lru_cache(_KEPT)(_in_version_0)


def _end_of_list(topics: bytes, at: int) -> int:
    return at + 4 + 4 * int(I32.unpack_from(topics, at)[0])


def _known_nodes(lists: bytes, brokers: Collection[int]) -> bytes:
    """Return lists of node ids without the nodes that are not among `brokers`."""
    out, at = b"", 0
    while at < len(lists):
        end = _end_of_list(lists, at)
        nodes = [node for (node,) in I32.iter_unpack(lists[at + 4 : end]) if node in brokers]
        out += I32.pack(len(nodes)) + b"".join(map(I32.pack, nodes))
        at = end
    return out
