"""Answers that the router makes or changes; the generated codec reads each of them back in every version."""

from __future__ import annotations

import asyncio
import io
import random
import struct
import uuid
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance, GroupCoordinator
from aiokafka.errors import BrokerResponseError
from aiokafka.protocol.commit import OffsetFetchResponse_v3
from aiokafka.protocol.group import HeartbeatResponse_v1, SyncGroupResponse_v1
from kio.schema.errors import ErrorCode

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import (
    blank,
    decode_body,
    decode_request,
    element_type,
    encode_body,
    encode_request,
    entity,
    frame_answer,
    is_flexible,
    read_answer,
)
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import RequestHead, encode_request_head, peek_request, response_body_offset
from kmigrate.router.wire import addresses
from kmigrate.router.wire import metadata as layout
from kmigrate.router.wire.addresses import make_nodes_real, rewrite_answer
from kmigrate.router.wire.admin import answer_with, split_mirrored
from kmigrate.router.wire.api_versions import filter_api_versions, unsupported_api_versions
from kmigrate.router.wire.apis import OFFERED, Treatment, treated
from kmigrate.router.wire.fetch import rewrite_fetch
from kmigrate.router.wire.groups import group_error, groups_of, wait_answer
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.router.wire.produce import parse_answer, parse_request
from tests.hostile.requests import Nonsense

BOOK = AddressBook(1_000_000, {1: ("router", 9001), 2: ("router", 9002)})


def _frame(request: Any) -> tuple[bytearray, Any]:
    kind = type(request)
    key, version = int(kind.__api_key__), int(kind.__version__)
    raw = encode_request_head(key, version, 77, b"client", is_flexible(key, version)) + encode_body(request)
    frame = bytearray(len(raw).to_bytes(4, "big") + raw)
    return frame, peek_request(frame, is_flexible(key, version))


def _read(key: int, version: int, frame: bytes | bytearray) -> Any:
    kind = entity(key, version, "response")
    assert frame[4:8] == (77).to_bytes(4, "big")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    flexible = bool(kind.__flexible__) and key != 18
    return decode_body(kind, bytearray(frame), response_body_offset(bytearray(frame), flexible))


def _versions(*keys: int) -> list[tuple[int, int]]:
    return [(key, version) for key in keys for version in range(OFFERED[key].versions[0], OFFERED[key].versions[1] + 1)]


def _topics(kind: type[Any], name: str, inner: str, part: Any) -> tuple[Any, ...]:
    topic_type = element_type(kind, name)
    named = {"name": "t"} if "name" in topic_type.__dataclass_fields__ else {"topic_id": uuid.uuid4()}
    return (blank(topic_type, **named, **{inner: part}),)


def _group_request(key: int, version: int) -> Any:
    kind = entity(key, version, "request")
    if key == 9 and version >= 8:
        group_type = element_type(kind, "groups")
        topics = _topics(group_type, "topics", "partition_indexes", (3,))
        return blank(kind, groups=(blank(group_type, group_id="g", topics=topics),))
    values: dict[str, Any] = {"group_id": "g", "groups_names": ("g",)}
    if key == 9:
        values["topics"] = _topics(kind, "topics", "partition_indexes", (3,))
    if key == 8:
        topic_type = element_type(kind, "topics")
        part = blank(element_type(topic_type, "partitions"), partition_index=3)
        values["topics"] = _topics(kind, "topics", "partitions", (part,))
    return blank(kind, **values)


@pytest.mark.parametrize(("key", "version"), _versions(*sorted(treated(Treatment.GROUP))))
def test_a_held_group_is_told_to_wait_in_the_shape_of_every_version(key: int, version: int) -> None:
    request = _group_request(key, version)
    frame, head = _frame(request)
    seen = decode_request(frame, head)
    assert groups_of(seen) == ["g"]
    told = repr(_read(key, version, wait_answer(head, seen, {"g"})))
    of_members = {12: "none", 14: "rebalance_in_progress", 9: "unstable_offset_commit" if version >= 7 else ""}
    of_members[11] = "member_id_required" if version >= 4 else "unknown_member_id"
    times = 2 if key == 9 and version in (2, 3) else 1
    assert told.count(f"ErrorCode.{of_members.get(key) or 'coordinator_load_in_progress'}") == times
    assert ("partition_index=3" in told) == (key == 8 or (key == 9 and version not in (4, 5, 6)))


class AioMember:
    """A stub for aiokafka's own code: requests return the answer that the router gives to a member of a held group."""

    def __init__(self, answer: Any) -> None:
        self.group_id, self.coordinator_id, self.generation, self.member_id = "g", 1, 1, "m"
        self._rebalance_timeout_ms = 1
        self._answer = answer
        self.rejoins = 0

    async def _send_req(self, _: object) -> Any:
        return self._answer

    def request_rejoin(self) -> None:
        self.rejoins += 1

    def coordinator_dead(self) -> None: ...


def _told_to_wait(key: int) -> io.BytesIO:
    frame, head = _frame(_group_request(key, 1))
    return io.BytesIO(wait_answer(head, decode_request(frame, head), {"g"})[8:])


def test_a_member_that_waits_for_its_assignment_is_told_to_join_anew() -> None:
    """Code 14 makes aiokafka and Java's consumer join anew; most other codes make both raise."""
    member = AioMember(SyncGroupResponse_v1.decode(_told_to_wait(14)))
    joining = CoordinatorGroupRebalance(member, "g", 1, None, (), 1, 1)
    assert asyncio.run(joining._send_sync_group_request(None)) is None
    assert member.rejoins == 1


def test_a_member_hears_of_nothing_at_its_heartbeats() -> None:
    member = AioMember(HeartbeatResponse_v1.decode(_told_to_wait(12)))
    assert asyncio.run(GroupCoordinator._do_heartbeat(member)) is True
    assert member.rejoins == 0


@pytest.mark.parametrize("code", [14, 16])
def test_a_member_whose_positions_cannot_be_told_now_does_not_take_its_group_for_one_without_any(code: int) -> None:
    """A retriable code keeps the member from starting at an end of the log."""
    frame, head = _frame(_group_request(9, 3))
    told = io.BytesIO(frame_answer(group_error(head, decode_request(frame, head), code), 1)[8:])
    member = AioMember(OffsetFetchResponse_v3.decode(told))
    with pytest.raises(BrokerResponseError) as raised:
        asyncio.run(GroupCoordinator._do_fetch_commit_offsets(member, [TopicPartition("t", 3)]))
    assert (raised.value.errno, raised.value.retriable) == (code, True)


def _admin_request(key: int, version: int) -> Any:
    kind = entity(key, version, "request")
    if key == 20 and version < 6:
        return blank(kind, topic_names=("t", "other"))
    if key in (33, 44):
        resource_type = element_type(kind, "resources")
        names = ("t", "other")
        return blank(kind, resources=tuple(blank(resource_type, resource_type=2, resource_name=n) for n in names))
    topic_type = element_type(kind, "topics")
    parts = (blank(element_type(topic_type, "partitions"), partition_index=3),) if key == 21 else ()
    return blank(kind, topics=tuple(blank(topic_type, name=n, partitions=parts) for n in ("t", "other")))


def _codes(answer: Any) -> dict[str, int]:
    """Return the code of each topic in an answer to an admin request: the first code where a topic has several."""
    (elements,) = (getattr(answer, where) for where in ("topics", "responses", "results") if hasattr(answer, where))
    out = {}
    for each in elements:
        named = each.resource_name if hasattr(each, "resource_name") else each.name
        told = each.partitions[0] if hasattr(each, "partitions") else each
        out[str(named)] = code_of(told.error_code)
    return out


@pytest.mark.parametrize(("key", "version"), _versions(*sorted(treated(Treatment.CHANGE))))
def test_a_mirrored_topic_is_answered_for_here_and_the_others_by_the_target(key: int, version: int) -> None:
    frame, head = _frame(_admin_request(key, version))
    seen = decode_request(frame, head)
    assert split_mirrored(head, seen, {"elsewhere": ""}) == (seen, (), ())
    rest, told, refused = split_mirrored(head, seen, {"t": ""})
    assert rest is not None
    target_told = answer_with(head, split_mirrored(head, rest, {"other": ""}).own)
    answer = _read(key, version, answer_with(head, told, target_told))
    code = 36 if key == 19 else 44
    assert _codes(answer) == {"t": code, "other": code}
    assert refused == (() if key == 19 else ("t",)), "to create what is there changes nothing"
    assert "error_message" not in repr(answer) or "mirrors it" in repr(answer) or "topic t is mirrored" in repr(answer)


@pytest.mark.parametrize(("key", "version"), _versions(*sorted(treated(Treatment.CHANGE))))
def test_of_mirrored_topics_alone_the_target_is_not_asked(key: int, version: int) -> None:
    frame, head = _frame(_admin_request(key, version))
    rest, told, _ = split_mirrored(head, decode_request(frame, head), {"t": "", "other": ""})
    assert rest is None
    assert _codes(_read(key, version, answer_with(head, told))).keys() == {"t", "other"}


def test_a_mirrored_topic_is_not_deleted_by_its_id_either() -> None:
    kind = entity(20, 6, "request")
    topic_type = element_type(kind, "topics")
    mirrored, other = uuid.uuid4(), uuid.uuid4()
    frame, head = _frame(blank(kind, topics=tuple(blank(topic_type, topic_id=one) for one in (mirrored, other))))
    seen = decode_request(frame, head)
    assert split_mirrored(head, seen, {"elsewhere": str(uuid.uuid4())}).rest == seen
    rest, told, refused = split_mirrored(head, seen, {"t": str(mirrored)})
    assert rest is not None and [topic.topic_id for topic in rest.topics] == [other]
    answer = _read(20, 6, answer_with(head, told))
    assert [(r.topic_id, int(r.error_code)) for r in answer.responses] == [(mirrored, 44)]
    assert refused == ("t",)


def test_replica_assignments_reach_the_target_with_its_own_node_ids() -> None:
    kind = entity(19, 7, "request")
    topic_type = element_type(kind, "topics")
    assignment = blank(element_type(topic_type, "assignments"), partition_index=0, broker_ids=(1_000_002, 1_000_001))
    frame, head = _frame(blank(kind, topics=(blank(topic_type, name="n", assignments=(assignment,)),)))
    changed = make_nodes_real(head, decode_request(frame, head), BOOK)
    assert changed is not None
    again = encode_request(frame, head, changed)
    read = decode_request(again, peek_request(again, flexible=True))
    assert tuple(read.topics[0].assignments[0].broker_ids) == (2, 1)


# Node ids and addresses


@pytest.mark.parametrize("version", range(4, 14))
def test_metadata_shows_the_router_and_hides_topics_that_still_align(version: int) -> None:
    kind = entity(3, version, "response")
    broker_type, topic_type = element_type(kind, "brokers"), element_type(kind, "topics")
    part = blank(
        element_type(topic_type, "partitions"),
        partition_index=0,
        leader_id=1,
        leader_epoch=4,
        replica_nodes=(1, 2),
        isr_nodes=(1,),
        offline_replicas=(2,),
    )
    brokers = tuple(blank(broker_type, node_id=n, host="real", port=9) for n in (1, 2, 3))
    topics = tuple(blank(topic_type, name=n, topic_id=uuid.uuid4(), partitions=(part,)) for n in ("shown", "aligning"))
    message = blank(kind, brokers=brokers, controller_id=2, topics=topics)
    frame, head = bytearray(frame_answer(message, 77)), _head(3, version)
    shown, stranger = rewrite_answer(frame, head, BOOK, {"aligning"})
    answer = _read(3, version, shown)
    assert stranger, "broker 3 has no listener yet"
    assert [(int(b.node_id), b.host, int(b.port)) for b in answer.brokers] == [
        (1_000_001, "router", 9001),
        (1_000_002, "router", 9002),
    ]
    seen = answer.topics[0].partitions[0]
    assert int(seen.leader_id) == 1_000_001
    assert [int(n) for n in seen.replica_nodes] == [1_000_001, 1_000_002]
    assert int(answer.controller_id) == 1_000_002
    assert version < 5 or [int(n) for n in seen.offline_replicas] == [1_000_002]
    assert int(answer.topics[1].error_code) == 5 and answer.topics[1].partitions == ()


@pytest.mark.parametrize("version", [4, 13])
def test_each_of_ten_thousand_partitions_keeps_its_own_leader_under_its_name_here(version: int) -> None:
    kind = entity(3, version, "response")
    broker_type, topic_type = element_type(kind, "brokers"), element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")

    def nodes(index: int) -> list[int]:
        return [1 + index % 2, 2 - index % 2]

    def topic(name: str, indexes: range) -> Any:
        parts = (blank(part_type, partition_index=i, leader_id=nodes(i)[0], replica_nodes=nodes(i)) for i in indexes)
        return blank(topic_type, name=name, topic_id=uuid.uuid4(), partitions=tuple(parts))

    brokers = tuple(blank(broker_type, node_id=n, host="real", port=9) for n in (1, 2))
    topics = (topic("wide", range(9_000)), topic("other", range(1_000)))
    frame = bytearray(frame_answer(blank(kind, brokers=brokers, topics=topics), 77))
    shown, stranger = rewrite_answer(frame, _head(3, version), BOOK, set())
    assert not stranger
    for told, asked in zip(_read(3, version, shown).topics, topics, strict=True):
        seen = [(int(p.partition_index), int(p.leader_id), [int(n) for n in p.replica_nodes]) for p in told.partitions]
        assert seen == [
            (index, 1_000_000 + nodes(index)[0], [1_000_000 + node for node in nodes(index)])
            for index in range(len(asked.partitions))
        ]


def _estate(version: int, topics: int, seed: int = 1) -> bytearray:
    """Return metadata of all topics of ordinary clusters:

    some partitions have no leader, some have no replica in sync.
    """
    chance, kind = random.Random(seed), entity(3, version, "response")
    broker_type, topic_type = element_type(kind, "brokers"), element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")

    def part(index: int) -> Any:
        nodes = chance.sample(range(1, 6), chance.randint(1, 4))
        values = {"replica_nodes": nodes, "isr_nodes": nodes[1:], "offline_replicas": nodes[:1] if index % 3 else ()}
        leader = chance.choice([-1, *nodes])
        return blank(part_type, partition_index=index, leader_id=leader, leader_epoch=index, error_code=5, **values)

    def topic(number: int) -> Any:
        operations = {"topic_authorized_operations": number} if version >= 8 else {}
        parts = tuple(map(part, range(chance.randint(0, 130))))
        name = f"t{number}" + "n" * (number % 150)
        named = {"name": name, "topic_id": uuid.UUID(int=number + 1), "is_internal": number % 2 == 0}
        return blank(topic_type, partitions=parts, **named, **operations)

    brokers = tuple(blank(broker_type, node_id=n, host="real", port=9, rack=[None, "r"][n % 2]) for n in (1, 2, 3))
    asked = {"brokers": brokers, "topics": tuple(map(topic, range(topics))), "controller_id": 2}
    return bytearray(frame_answer(blank(kind, cluster_id=[None, "c"][topics % 2], **asked), 77))


@pytest.mark.parametrize("version", range(4, 14))
def test_the_topics_of_metadata_are_shown_as_they_were_when_kio_read_and_wrote_them(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, seen = {"t0", "t7" + "n" * 7, "t29" + "n" * 29}, list[int]()

    def reading(head: RequestHead, frame: bytearray) -> Any:
        message = read_answer(head, frame)
        seen.append(len(message.topics))
        return message

    monkeypatch.setattr(addresses, "read_answer", reading)
    for topics in (0, 1, 30):
        frame, head = _estate(version, topics), _head(3, version)
        quick = rewrite_answer(bytearray(frame), head, BOOK, hidden)
        with monkeypatch.context() as slowly:
            slowly.setattr(addresses, "show_topics", lambda *_: None)
            assert quick == rewrite_answer(bytearray(frame), head, BOOK, hidden)
        assert seen[-2:] == [0, topics]


def test_the_names_of_hidden_topics_are_encoded_once_for_all_answers() -> None:
    """Clients ask all the time while thousands of topics are not ready."""
    head, hidden = _head(3, 12), frozenset(f"t{number}" + "n" * number for number in range(40))
    layout._encoded.cache_clear()
    for _ in range(5):
        shown, _ = rewrite_answer(_estate(12, 3), head, BOOK, hidden)
        assert {int(topic.error_code) for topic in _read(3, 12, shown).topics} == {5}
    assert layout._encoded.cache_info().misses == 1


def test_a_great_answer_that_comes_again_is_shown_as_before_and_as_what_is_hidden_now() -> None:
    """A thousand clients that reconnect at once get the same answer; only the correlation ids differ."""
    frame, head = _estate(12, 60), _head(3, 12)
    assert len(frame) > 1 << 16
    first, _ = rewrite_answer(bytearray(frame), head, BOOK, frozenset())
    before = layout._shown_again.cache_info().hits
    frame[4:8] = (78).to_bytes(4, "big")
    second, _ = rewrite_answer(bytearray(frame), head, BOOK, frozenset())
    assert second[:8] + first[8:] == second
    assert layout._shown_again.cache_info().hits == before + 1
    hidden, _ = rewrite_answer(bytearray(frame), head, BOOK, frozenset({"t0"}))
    shown = [int(topic.error_code) for topic in _read(3, 12, hidden).topics]
    assert (shown[0], set(shown[1:])) == (5, {0})
    frame[-8] ^= 1  # The changed byte belongs to the last topic's authorized operations.
    third, _ = rewrite_answer(bytearray(frame), head, BOOK, frozenset())
    assert third != second


@pytest.mark.parametrize("version", range(4, 14))
def test_metadata_that_is_cut_off_or_odd_is_kios_to_read(version: int) -> None:
    frame, head = _estate(version, 3, seed=4), _head(3, version)
    for size in range(8, len(frame), 1 + len(frame) // 60):
        with pytest.raises(ProtocolViolation):
            rewrite_answer(frame[:size], head, BOOK, set())
    sample = Nonsense(11, ("topic",), ("group",))
    for _ in range(30):
        odd = bytearray(frame_answer(sample.message(entity(3, version, "response")), 77))
        quick = rewrite_answer(bytearray(odd), head, BOOK, {"topic"})
        with pytest.MonkeyPatch.context() as slowly:
            slowly.setattr(addresses, "show_topics", lambda *_: None)
            assert quick == rewrite_answer(odd, head, BOOK, {"topic"})


def _head(key: int, version: int) -> Any:
    raw = encode_request_head(key, version, 77, b"c", is_flexible(key, version))
    return peek_request(bytearray(len(raw).to_bytes(4, "big") + raw), is_flexible(key, version))


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_found_at_the_router(version: int) -> None:
    kind = entity(10, version, "response")
    one = {"node_id": 2, "host": "real", "port": 9}
    if version >= 4:
        message = blank(kind, coordinators=(blank(element_type(kind, "coordinators"), key="g", **one),))
    else:
        message = blank(kind, **one)
    shown, _ = rewrite_answer(bytearray(frame_answer(message, 77)), _head(10, version), BOOK, ())
    answer = _read(10, version, shown)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (int(found.node_id), found.host, int(found.port)) == (1_000_002, "router", 9002)


@pytest.mark.parametrize("version", range(4, 7))
def test_of_several_coordinators_one_without_a_listener_is_looked_for_again_and_the_others_are_found(
    version: int,
) -> None:
    kind = entity(10, version, "response")
    one = element_type(kind, "coordinators")
    found = tuple(
        blank(one, key=key, error_code=code, node_id=node, host="real", port=9)
        for key, code, node in (("g", 0, 2), ("stranger", 0, 3), ("refused", 30, -1))
    )
    frame = bytearray(frame_answer(blank(kind, coordinators=found), 77))
    shown, stranger = rewrite_answer(frame, _head(10, version), BOOK, ())
    assert stranger, "broker 3 has no listener yet"
    told = [(c.key, code_of(c.error_code), int(c.node_id), c.host) for c in _read(10, version, shown).coordinators]
    assert told == [("g", 0, 1_000_002, "router"), ("stranger", 15, -1, ""), ("refused", 30, -1, "real")]


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_answers_keep_their_records_and_name_the_routers_nodes(version: int) -> None:
    kind = entity(1, version, "response")
    topic_type = element_type(kind, "responses")
    part_type = element_type(topic_type, "partitions")
    values: dict[str, Any] = {"high_watermark": 9, "preferred_read_replica": 2, "records": b"r" * 300}
    if version >= 12:
        leader = part_type.__dataclass_fields__["current_leader"].default
        values["current_leader"] = replace(leader, leader_id=1, leader_epoch=3)
    named = {"topic": "t"} if version < 13 else {"topic_id": uuid.uuid4()}
    message = blank(kind, responses=(blank(topic_type, **named, partitions=(blank(part_type, **values),)),))
    if version >= 16:
        endpoint = element_type(kind, "node_endpoints")
        message = replace(message, node_endpoints=(endpoint(node_id=1, host="real", port=9, rack="a"),))
    answer = _read(1, version, bytes(rewrite_fetch(bytearray(frame_answer(message, 77)), version, BOOK).frame))
    seen = answer.responses[0].partitions[0]
    assert bytes(seen.records) == b"r" * 300
    assert version < 11 or int(seen.preferred_read_replica) == 1_000_002
    assert version < 12 or int(seen.current_leader.leader_id) == 1_000_001
    if version >= 16:
        (end,) = answer.node_endpoints
        assert (int(end.node_id), end.host, int(end.port), end.rack) == (1_000_001, "router", 9001, "a")


# ApiVersions


@pytest.mark.parametrize("version", range(5))
def test_api_versions_are_cut_to_what_the_router_offers(version: int) -> None:
    kind = entity(18, version, "response")
    key_type = element_type(kind, "api_keys")
    keys = tuple(
        key_type(api_key=k, min_version=low, max_version=high)
        for k, low, high in ((0, 0, 13), (3, 0, 12), (71, 0, 0), (24, 4, 5))
    )
    body = encode_body(blank(kind, api_keys=keys))
    frame = bytearray((len(body) + 4).to_bytes(4, "big") + (77).to_bytes(4, "big") + body)
    answer = _read(18, version, filter_api_versions(frame, version))
    assert [(int(k.api_key), int(k.min_version), int(k.max_version)) for k in answer.api_keys] == [
        (0, 0, 11),
        (3, 0, 12),
    ]


def test_the_feature_of_transaction_version_2_is_hidden() -> None:
    kind = entity(18, 4, "response")
    feature = element_type(kind, "finalized_features")
    features = tuple(
        feature(name=n, max_version_level=2, min_version_level=1) for n in ("transaction.version", "group.version")
    )
    body = encode_body(blank(kind, finalized_features=features))
    frame = bytearray((len(body) + 4).to_bytes(4, "big") + (77).to_bytes(4, "big") + body)
    answer = _read(18, 4, filter_api_versions(frame, 4))
    assert [f.name for f in answer.finalized_features] == ["group.version"]


def test_an_api_versions_request_of_the_future_is_answered_in_version_0() -> None:
    answer = _read(18, 0, unsupported_api_versions(77))
    assert answer.error_code is ErrorCode(35)
    assert [(int(k.api_key), int(k.max_version)) for k in answer.api_keys] == [(18, 4)]


# Hostile bytes


@pytest.mark.parametrize("version", [3, 8, 9, 11])
def test_no_cut_or_padded_produce_message_is_believed(version: int) -> None:
    body = struct.pack(">hhi", -1, -1, 1000) + struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iii", 1, 0, 4) + b"abcd"
    if version >= 9:
        body = b"\0" + struct.pack(">hi", -1, 1000) + b"\2\2t\2" + struct.pack(">i", 0) + b"\5abcd\0\0\0"
    whole = bytearray(b"\0\0\0\0" + body)
    assert len(parse_request(whole, version, 4).parts) == 1
    for cut in range(4, len(whole)):
        with pytest.raises(ProtocolViolation):
            parse_request(whole[:cut], version, 4)
    with pytest.raises(ProtocolViolation):
        parse_request(whole + b"\0", version, 4)
    with pytest.raises(ProtocolViolation):
        parse_answer(bytearray(8) + b"\xff\xff\xff\xff\x0f", version)
