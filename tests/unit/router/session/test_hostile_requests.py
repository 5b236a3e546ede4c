"""Nonsense sent to a session:

each request is answered, passed on or refused as a violation, and nothing else happens.
"""

from __future__ import annotations

import struct

import pytest

from kmigrate.errors import KmigrateError
from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import Code
from kmigrate.router.wire.produce import parse_request
from tests.hostile.requests import Nonsense, framed, request
from tests.unit.router.router_fakes import Stage, batch, route

TOPICS = ("away", "held", "home", "free")


def stage() -> Stage:
    routes = (route("away", Serve.FORWARD), route("held", Serve.HOLD, fence_epoch=1), route("home", Serve.LOCAL))
    return Stage(*routes, held=("waits",))


@pytest.mark.parametrize("seed", range(8))
def test_nonsense_is_answered_or_refused_as_what_it_is(seed: int) -> None:
    outcomes = set()
    here = stage()
    for _, frame in zip(range(400), Nonsense(seed, TOPICS, ("waits", "free")), strict=False):
        if len(frame) != 4 + struct.unpack_from(">i", frame)[0]:
            continue  # No stream would cut such a frame out.
        try:
            here.session.frame(bytearray(frame))
        except KmigrateError as violation:
            outcomes.add(violation.ref)
            here = stage()
        else:
            outcomes.add("taken")
        if here.edge.closed and here.shared.kept_out.count(here.edge.clock):
            outcomes.add("not offered")
        here.edge.clock += 10
        here.session.advance()
        if here.edge.closed:
            here = stage()
    assert {"taken", "not offered"} <= outcomes


@pytest.mark.parametrize("seed", range(3))
def test_damaged_answers_of_brokers_are_read_or_refused(seed: int) -> None:
    """A request that passes to the target gets an answer of the same API with nonsense as its body."""
    here, nonsense = stage(), Nonsense(seed, ("free",), ("free",))
    for _ in range(300):
        frame = nonsense.next()
        try:
            here.session.frame(bytearray(frame))
            for sent in here.edge.sent:
                if sent.done is not None:
                    damaged = bytearray(framed(frame[8:12] + nonsense.next()[12:]))
                    sent.answered_with(damaged)
        except KmigrateError:
            here = stage()
        here.edge.sent.clear()


def test_a_client_id_of_any_bytes_and_the_longest_length_is_forwarded_as_one() -> None:
    """Decoding 32 KB of invalid UTF-8 makes the client id longer; a split request must still be a valid request."""
    here = stage()
    body = b"\0\xff\xff\0\0\x75\x30\3"
    for topic, records in (("away", batch()), ("free", batch())):
        size = struct.pack(">B", len(topic) + 1) + topic.encode() + b"\2" + struct.pack(">i", 0)
        body += size + bytes([len(records) + 1]) + bytes(records) + b"\0\0"
    here.session.frame(bytearray(request(0, 9, body + b"\0", client=b"\xff" * 32_767)))
    assert sorted(sent.where for sent in here.edge.sent) == ["source 1", "target"]


def test_a_producer_id_that_no_cluster_hands_out_is_an_invalid_record() -> None:
    """After translation the id would belong to another producer, or would not fit into the field."""
    here = stage()
    for producer in ((1 << 63) - 1, 1 << 40):
        here.produce(("away", 0, batch(producer=producer)))
    assert here.edge.sent == []
    assert [told for _, told in here.told()] == [[("away", 0, Code.INVALID_RECORD)]] * 2


def test_a_request_of_more_partitions_than_any_client_has_is_refused_before_they_are_objects() -> None:
    """A partition takes six bytes on the wire: a request of the greatest length would need gigabytes here."""
    topic = b"\0\1t" + struct.pack(">i", 60_000) + struct.pack(">ii", 0, 0) * 60_000
    frame = bytearray(framed(b"\xff\xff" + struct.pack(">hii", -1, 1, 2)))
    frame += topic * 2
    with pytest.raises(KmigrateError, match="announces 60000 elements"):
        parse_request(frame, 7, 4)
