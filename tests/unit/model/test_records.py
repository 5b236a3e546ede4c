"""State-log records survive JSON, and fields or values that this version does not know are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.errors import StateLogBroken
from kmigrate.model.acls import Acl
from kmigrate.model.lag import Pace
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.link_settings import DefaultsFrom, LinkSettings
from kmigrate.model.patterns import NamePattern
from kmigrate.model.presences import (
    ControllerPresence,
    EndedClients,
    FenceAck,
    GroupReport,
    MirrorPresence,
    PartitionProgress,
    RouterLimits,
    RouterPresence,
    Upkept,
    Withheld,
)
from kmigrate.model.record_json import Record, decode_record, encode_record
from kmigrate.model.records import (
    AssignmentRecord,
    BarrierRecord,
    ClusterRef,
    CopyIdentity,
    DeniedWriters,
    GroupRecord,
    LeaseRecord,
    LinkRecord,
    PartitionBarrier,
    ProducerMark,
    PromotedUnit,
    PromoteTerms,
    ProvenTopic,
    RouterRecord,
    TopicRecord,
)
from kmigrate.model.stops import AcceptedLoss, PartitionStop, Remedy

_RULE = Acl("topic", "t", "User:ann", "*", "READ", allow=False)
_MARK = ProducerMark(7, 0, 41)
_SETTINGS = LinkSettings(
    hole_limit=7, acl_exclude=("User:x",), use_defaults_from=DefaultsFrom.TARGET, fence_timeout_s=2.5
)
_RECORDS: list[Record] = [
    LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "id"), 5, CopyIdentity(1, 0), ""),
    LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 5),
    LinkRecord("l", "u", ClusterRef("s", "h"), ClusterRef("t", "h"), 5, settings=_SETTINGS),
    LinkRecord(
        "l", "u", ClusterRef("s", "h"), ClusterRef("t", "h"), 5, topic_patterns=(NamePattern("a.*", ("ab", "ac")),)
    ),
    TopicRecord(
        "l",
        "t",
        TopicPhase.FENCED,
        1,
        partitions=2,
        starts={0: 5, 1: 0},
        restore_configs={"retention.ms": "1"},
        drop_configs=("x",),
        terms=PromoteTerms(1),
        fence_epoch=9,
        barrier={0: PartitionBarrier(10, 3)},
        paused=True,
        stops={1: PartitionStop("source-range-lost", "gone", Remedy.ACCEPT_LOSS, 5, 9, 7)},
        losses={0: (AcceptedLoss(1, 3, "source-range-lost", 7, "me@here"),)},
        granted_acls=(_RULE,),
        promote_acls=(_RULE,),
        unsettled=True,
        unit=PromotedUnit({"u": ProvenTopic(8, {0: 12})}, ("g",)),
        denied=DeniedWriters((_RULE,), in_force=True),
    ),
    GroupRecord("l", "g", GroupPhase.PROMOTED, 1, written={"t": {0: 5}}, unread={"t": {0: 3}}),
    BarrierRecord("l", "t", 0, 9, {0: (_MARK,)}),
    RouterRecord("r", "i", "h", "h:1", 1),
    LeaseRecord("w", "i", 2),
    AssignmentRecord("l", 7, ("i", "j"), {"t": (0, 1, ~1)}),
    MirrorPresence(
        "i",
        "l",
        5,
        True,
        500,
        {"t": {0: PartitionProgress(1, pace=Pace(9, 1.5))}},
        {"t": Upkept(3, "why")},
        ("note",),
        shares=True,
        generation=7,
        problems={"u": "why"},
    ),
    RouterPresence("i", "r", 5, 500, {"topic/l/t": FenceAck(9, 0, {0: (_MARK,)})}, {"topic/l/t": {0: 1.5}}),
    RouterPresence("i", "r", 5, 500, limits=RouterLimits(9, 3, 4, 5, 6, {"memory": EndedClients(2, "app at h")})),
    RouterPresence("i", "r", 5, 500, groups={"g": GroupReport(1, ("m",), ("m",), (Withheld("id", 2, "t"),), 3)}),
    ControllerPresence("i", 5, True, 500),
]


@pytest.mark.parametrize("record", _RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_comes_back_from_json_as_it_was(record: Record) -> None:
    assert decode_record(json.loads(json.dumps(encode_record(record)))) == record


@pytest.mark.parametrize("record", _RECORDS, ids=lambda r: type(r).__name__)
def test_a_field_of_a_later_version_is_ignored(record: Record) -> None:
    assert decode_record({**encode_record(record), "added_later": {"x": 1}}) == record


def test_a_record_of_an_earlier_version_is_read_with_what_it_did_not_know_left_empty() -> None:
    record = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
    old = {k: v for k, v in encode_record(record).items() if k in ("kind", "link", "topic", "phase", "since_ms")}
    assert decode_record({**old, "partitions": 1}) == record


def test_a_routers_report_on_a_group_may_leave_fields_out_and_have_further_fields() -> None:
    word = RouterPresence("i", "r", 5, 500, groups={"g": GroupReport(1, ("m",), (), (Withheld("id", 2),))})
    told = encode_record(word)
    told["groups"]["g"]["added_later"] = told["groups"]["g"]["withheld"][0]["added_later"] = 7
    assert decode_record(told) == word
    shorter = {name: told["groups"]["g"][name] for name in ("in_flight", "members")}
    read = decode_record({**told, "groups": {"g": shorter}})
    assert isinstance(read, RouterPresence) and read.groups == {"g": GroupReport(1, ("m",))}


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "Nonsense"},
        {},
        {"kind": "LeaseRecord", "what": "w", "holder": "h"},
        {"kind": "LeaseRecord", "what": "w", "holder": "h", "term": "many"},
        {"kind": "TopicRecord", "link": "l", "topic": "t", "phase": "dancing", "since_ms": 1},
        {"kind": "TopicRecord", "link": "l", "topic": "t", "phase": "mirroring", "since_ms": 1, "partitions": False},
        {"kind": "TopicRecord", "link": "l", "topic": "t", "phase": "mirroring", "since_ms": 1, "paused": 0},
        {"kind": "TopicRecord", "link": "l", "topic": "t", "phase": "mirroring", "since_ms": 1, "starts": []},
    ],
)
def test_an_unknown_or_broken_record_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(StateLogBroken):
        decode_record(data)


@pytest.mark.parametrize(
    "wrong", [{"target_topic_id": "zzz"}, {"source_topic_id": "1-2"}, {"partitions": -1}, {"partitions": 1 << 40}]
)
def test_a_topic_that_no_cluster_has_is_refused(wrong: dict[str, object]) -> None:
    """Routers and mirrors parse a topic's ids and list its partitions; a bad record would end each process."""
    told = encode_record(TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1))
    with pytest.raises(StateLogBroken) as caught:
        decode_record({**told, **wrong})
    assert caught.value.ref == "malformed-record"


def test_a_record_of_an_earlier_version_reads_as_nothing_held_back() -> None:
    written = encode_record(TopicRecord("l", "t", TopicPhase.MIRRORING, 1))
    old = {key: value for key, value in written.items() if key not in ("paused", "stops", "losses")}
    read = decode_record(old)
    assert isinstance(read, TopicRecord)
    assert (read.paused, read.stops, read.losses) == (False, {}, {})


def test_the_presence_of_five_thousand_partitions_fits_into_one_message() -> None:
    idle = PartitionProgress(1_234_567_890, 1_234_567_890, 1_234_567_890, pace=Pace(1_700_000_000_000, 1_024.5))
    presence = MirrorPresence("i", "l", 5, True, 500, {"a-topic-of-usual-length": dict.fromkeys(range(5_000), idle)})
    assert len(json.dumps(encode_record(presence))) < 1_000_000


@given(st.dictionaries(st.integers(0, 10_000), st.integers(0, 2**62), max_size=20))
def test_offsets_of_any_size_survive(starts: dict[int, int]) -> None:
    record = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, starts=starts)
    assert decode_record(json.loads(json.dumps(encode_record(record)))) == record
