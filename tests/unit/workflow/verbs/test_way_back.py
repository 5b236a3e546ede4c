"""A promote opens a way back where the source allows the copy, and says of each topic why not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.errors import BrokerRefused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import (
    GroupRecord,
    LatePolicy,
    PromoteTerms,
    RouterRecord,
    TopicRecord,
    TransactionRecord,
)
from kmigrate.model.rights import Operations, Rights
from kmigrate.workflow.verbs import way_back
from kmigrate.workflow.verbs.way_back import _of_unit, way_back_findings, without_way_back
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
TERMS = PromoteTerms(1, way_back=True)
ALLOWED = Rights(Operations(), {"t": Operations.exactly({"READ", "WRITE"})})


class Admin:
    def __init__(self, **configs: str) -> None:
        self._configs = {key.replace("_", "."): ConfigValue(value, own=True) for key, value in configs.items()}

    async def broker_config(self, node: int, key: str) -> ConfigValue | None:
        assert (node, key) == (1, "message.max.bytes")
        return ConfigValue("1500", own=False)

    async def topic_configs(self, names: Any) -> dict[str, dict[str, ConfigValue]]:
        return dict.fromkeys(names, self._configs)


def reasons(
    record: TopicRecord = TOPIC,
    terms: PromoteTerms = TERMS,
    *others: Any,
    source: Admin | None = None,
    target: Admin | None = None,
    rights: Rights = ALLOWED,
    tells: bool = True,
    takes_markers: bool = True,
    takes_transactions: bool = True,
    shows_ids: bool = True,
) -> list[str]:
    async def read_rights(*_: Any) -> Rights:
        return rights

    async def tells_transactions(_: Any) -> bool:
        return tells

    async def may_write_markers(_: Any) -> bool:
        return takes_markers

    async def listed_ids(_: Any) -> set[str]:
        return set()

    async def id_state(_: Any, name: str) -> None:
        if not shows_ids:
            raise BrokerRefused("transactional-id-denied", f"{name} may not be described", code=53)

    async def refuse_unwritable_id(_: Any, name: str) -> None:
        if not takes_transactions:
            raise BrokerRefused("transactional-id-denied", f"{name} may not be written", code=53)

    settings = SimpleNamespace(name="new", security=SimpleNamespace(principal="User:k"))
    on_target = SimpleNamespace(metadata=SimpleNamespace(brokers={1: ("h", 2)}), settings=settings)
    it: Any = SimpleNamespace(log=MemoryLog(LINK, record, *others), target_admin=target or Admin(), target=on_target)
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(name="old", security=SimpleNamespace(principal="User:k")))
    admin: Any = source or Admin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(way_back, "read_rights", read_rights)
        patch.setattr(way_back, "tells_transactions", tells_transactions)
        patch.setattr(way_back, "refuse_unwritable_id", refuse_unwritable_id)
        patch.setattr(way_back, "may_write_markers", may_write_markers)
        patch.setattr(way_back, "listed_ids", listed_ids)
        patch.setattr(way_back, "id_state", id_state)
        return asyncio.run(without_way_back(it, cluster, admin, [record], terms))["t"]


def test_a_topic_whose_source_takes_the_copy_has_a_way_back() -> None:
    assert reasons() == []
    (found,) = way_back_findings("l", {"t": []})
    assert (found.level, found.ref) == ("ok", "way-back")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"record": replace(TOPIC, mapped=True)}, "its offsets are mapped"),
        ({"record": replace(TOPIC, generation=63)}, "it was rolled back 63 times"),
        ({"terms": replace(TERMS, accept_direct=True)}, "direct writers are accepted"),
        ({"terms": replace(TERMS, late=LatePolicy(seal=False))}, "stays open for other writers (--no-seal)"),
        ({"source": Admin(message_timestamp_type="LogAppendTime")}, "would give copied records its own times"),
        (
            {"source": Admin(max_message_bytes="1000"), "target": Admin(max_message_bytes="2000")},
            "max.message.bytes is 1,000 at the source and 2,000 at the target",
        ),
        (
            {
                "source": Admin(max_message_bytes="5"),
                "record": replace(TOPIC, restore_configs={"max.message.bytes": "6"}),
            },
            "max.message.bytes is 5 at the source and 6 at the target",
        ),
        (
            {
                "source": Admin(max_message_bytes="1000"),
                "target": Admin(max_message_bytes="900"),
                "record": replace(TOPIC, drop_configs=("max.message.bytes",)),
            },
            "max.message.bytes is 1,000 at the source and 1,500 at the target",
        ),
        (
            {"rights": Rights(Operations(), {"t": Operations.exactly({"READ"})})},
            "User:k lacks WRITE on the topic at old",
        ),
    ],
)
def test_each_reason_against_a_way_back_is_named(given: dict[str, Any], reason: str) -> None:
    (found,) = reasons(**given)
    assert reason in found


WRITER = TransactionRecord("l", "till", 1, 0, 2, 0, ("t",))


def test_a_topic_that_is_written_in_transactions_has_a_way_back_where_the_source_takes_markers() -> None:
    assert reasons(TOPIC, TERMS, WRITER) == []
    assert reasons(TOPIC, TERMS, WRITER, takes_markers=False) == []


def test_a_source_that_takes_neither_markers_nor_transactions_is_named() -> None:
    (found,) = reasons(TOPIC, TERMS, WRITER, takes_markers=False, takes_transactions=False)
    assert "User:k may write no markers at old: ALTER or CLUSTER_ACTION on the cluster" in found
    assert reasons(TOPIC, TERMS, takes_markers=False, takes_transactions=False) == []


def test_a_target_that_does_not_tell_its_open_transactions_is_named() -> None:
    (found,) = reasons(TOPIC, TERMS, WRITER, tells=False)
    assert found == "it is written in transactions, and new does not tell which are open (Kafka before 3.0)"


def test_a_target_that_hides_a_transactional_id_is_named() -> None:
    (found,) = reasons(TOPIC, TERMS, WRITER, shows_ids=False)
    assert "User:k lacks DESCRIBE on transactional id till at new" in found


@pytest.mark.parametrize(
    ("writer", "reason"),
    [
        (replace(WRITER, topics=("t", "n")), "together with topic n, which link l does not mirror"),
        (replace(WRITER, groups=("g",)), "together with the offsets of group g, which link l does not mirror"),
    ],
)
def test_a_topic_that_transactions_couple_has_no_way_back(writer: TransactionRecord, reason: str) -> None:
    (found,) = reasons(TOPIC, TERMS, writer)
    assert reason in found


def test_a_topic_whose_transactions_commit_for_a_group_that_follows_has_a_way_back() -> None:
    group = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
    assert reasons(TOPIC, TERMS, replace(WRITER, groups=("g",)), group) == []


def test_a_unit_has_a_way_back_if_each_of_its_topics_has_one() -> None:
    both, other = replace(WRITER, topics=("t", "u")), replace(TOPIC, topic="u")
    without = "it is written in transactions together with u, which has no way back"
    goes_along = replace(other, phase=TopicPhase.PROMOTE_PENDING, terms=TERMS)
    assert reasons(TOPIC, TERMS, both, goes_along) == []
    for stays in (other, replace(goes_along, terms=PromoteTerms(1))):
        assert reasons(TOPIC, TERMS, both, stays) == [without]


def test_a_topic_whose_promote_beside_it_has_no_way_back_has_none_either() -> None:
    found = _of_unit(
        MemoryLog(LINK, TOPIC, replace(WRITER, topics=("t", "u"))).state, "l", "t", {"t": [], "u": ["its offsets"]}
    )
    assert found == ["it is written in transactions together with u, which has no way back"]


def test_a_router_that_a_seal_would_stand_in_for_leaves_no_way_back() -> None:
    (found,) = reasons(TOPIC, TERMS, RouterRecord("quiet", "r9", "elsewhere", "host:9", 1))
    assert "a process of router quiet may live" in found


def test_all_reasons_stand_in_one_warning() -> None:
    (found,) = way_back_findings("l", {"t": ["one", "two"]})
    assert (found.level, found.ref) == ("warn", "no-way-back")
    assert found.what == "topic t is promoted without a way back: one; two"


def test_nothing_is_asked_where_nobody_wants_a_way_back() -> None:
    assert reasons(replace(TOPIC, mapped=True), PromoteTerms(1)) == []
