"""The operations that brokers report, with answers as brokers give them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.rights import operations_in, read_rights
from kmigrate.model.rights import HIDDEN, NOT_REPORTED, Operations, Standing
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import answer_type, blank, element_type
from kmigrate.protocol.codes import Code

READ, DESCRIBE, CREATE = 1 << 3, 1 << 8, 1 << 5
ALL_OF_GROUP = READ | DESCRIBE


class Brokers:
    """Two brokers; each coordinates the groups of `coordinated`; topics and groups in `hidden` may not be described."""

    def __init__(self, coordinated: dict[int, set[str]], hidden: set[str], acls: int = Code.NONE) -> None:
        self.settings = ClusterSettings("c", (("a", 1),))
        self.metadata = SimpleNamespace(brokers={1: ("a", 1), 2: ("b", 2)})
        self.coordinated, self.hidden, self.acls = coordinated, hidden, acls
        self.asked: list[tuple[int, tuple[str, ...]]] = []

    async def call(self, request: Any, node: int | None = None) -> Any:
        kind = answer_type(type(request))
        match int(request.__api_key__):
            case 3:
                assert not request.allow_auto_topic_creation
                topics = tuple(self._topic(element_type(kind, "topics"), str(each.name)) for each in request.topics)
                return blank(kind, topics=topics, cluster_authorized_operations=0)
            case 15:
                assert node is not None and request.include_authorized_operations
                self.asked.append((node, tuple(map(str, request.groups))))
                group = element_type(kind, "groups")
                return blank(kind, groups=tuple(self._group(group, node, str(each)) for each in request.groups))
            case 29:
                return blank(kind, error_code=self.acls, resources=())
        raise AssertionError(request)

    def _topic(self, kind: Any, name: str) -> Any:
        code = Code.TOPIC_AUTHORIZATION_FAILED if name in self.hidden else Code.NONE
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if name == "new" else code
        bits = CREATE | DESCRIBE if name == "new" else READ | DESCRIBE
        return blank(kind, name=name, error_code=code, topic_authorized_operations=bits)

    def _group(self, kind: Any, node: int, name: str) -> Any:
        code = Code.NONE if name in self.coordinated.get(node, ()) else Code.NOT_COORDINATOR
        code = Code.GROUP_AUTHORIZATION_FAILED if name in self.hidden else code
        return blank(kind, group_id=name, error_code=code, authorized_operations=ALL_OF_GROUP)


@pytest.mark.parametrize(
    ("bits", "operations"),
    [
        (READ | DESCRIBE, Operations.exactly({"READ", "DESCRIBE"})),
        (0, HIDDEN),
        (-(1 << 31), NOT_REPORTED),
        (1 << 30 | DESCRIBE, Operations.exactly({"DESCRIBE"})),
    ],
)
def test_a_bit_field_is_read_as_operations(bits: int, operations: Operations) -> None:
    assert operations_in(bits) == operations


def rights(brokers: Any, topics: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> Any:
    return asyncio.run(read_rights(brokers, topics, groups))


def test_topics_are_reported_also_where_the_cluster_does_not_have_them() -> None:
    found = rights(Brokers({}, {"secret"}), ("orders", "new", "secret"))
    assert found.absent == {"new"}
    assert found.standing("TOPIC", "READ", "orders") is Standing.GRANTED
    assert found.standing("TOPIC", "CREATE", "new") is Standing.GRANTED
    assert found.standing("TOPIC", "READ", "secret") is Standing.MISSING
    assert found.cluster == HIDDEN


def test_each_group_is_reported_by_its_coordinator_and_asked_about_no_more() -> None:
    brokers = Brokers({1: {"a"}, 2: {"b"}}, {"secret"}, acls=Code.CLUSTER_AUTHORIZATION_FAILED)
    found = rights(brokers, groups=("a", "b", "secret"))
    assert brokers.asked == [(1, ("a", "b", "secret")), (2, ("b",))]
    assert [found.standing("GROUP", "READ", each) for each in ("a", "b")] == [Standing.GRANTED] * 2
    assert found.standing("GROUP", "DESCRIBE", "secret") is Standing.MISSING


@pytest.mark.parametrize(
    ("acls", "standing"),
    [(54, Standing.GRANTED), (Code.CLUSTER_AUTHORIZATION_FAILED, Standing.UNKNOWN), (Code.NONE, Standing.UNKNOWN)],
)
def test_of_a_group_without_a_coordinator_acls_tell_if_they_may_be_read(acls: int, standing: Standing) -> None:
    assert rights(Brokers({}, set(), acls), groups=("a",)).standing("GROUP", "READ", "a") is standing


def test_many_groups_are_asked_about_in_parts() -> None:
    names = tuple(f"g{number}" for number in range(1100))
    brokers = Brokers({1: set(names)}, set())
    assert len(rights(brokers, groups=names).groups) == 1100
    assert [len(asked) for _, asked in brokers.asked] == [500, 500, 100]
