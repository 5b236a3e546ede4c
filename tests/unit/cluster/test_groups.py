"""Placeholder members of a group, and groups of both protocols, with brokers of different versions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.groups import PlaceholderMember, is_mixed, placeholder_id, protocol_type, remove_members
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import answer_type, blank, element_type, field_type
from kmigrate.protocol.codes import Code


class Broker:
    """A broker with these newest versions; its group has members of these types."""

    def __init__(self, versions: dict[int, int], types: tuple[int, ...] = ()) -> None:
        self.versions = versions
        self.types = types
        self.heard: list[Any] = []
        self.away = False

    async def find_coordinator(self, group: str) -> int:
        if self.away:
            raise Unreachable("broker-unreachable", "it is away")
        return 3

    async def call(self, request: Any, node: int, *, purpose: str = "control") -> Any:
        assert node == 3, "the group's coordinator"
        kind, key, version = answer_type(type(request)), int(request.__api_key__), int(request.__version__)
        if key == 18:
            made = element_type(kind, "api_keys")
            keys = (blank(made, api_key=key, min_version=0, max_version=most) for key, most in self.versions.items())
            return blank(kind, api_keys=tuple(keys))
        assert version <= self.versions[key], "a broker closes the connection on what it does not know"
        self.heard.append(request)
        if key == 68:
            return blank(kind)
        group = element_type(kind, "groups")
        member = element_type(group, "members")
        nothing = blank(field_type(member, "assignment"), topic_partitions=())
        fields = {"assignment": nothing, "target_assignment": nothing}
        members = (blank(member, **fields, **({"member_type": each} if version else {})) for each in self.types)
        return blank(kind, groups=(blank(group, members=tuple(members)),))


@pytest.mark.parametrize(
    ("versions", "types", "mixed"),
    [
        ({}, (0,), False),
        ({69: 0}, (1, 1), True),
        ({69: 0}, (), False),
        ({69: 1}, (1, 1), False),
        ({69: 1}, (1, 0), True),
        ({69: 9}, (1, -1), False),
    ],
)
def test_a_group_is_mixed_where_it_has_classic_members_or_may_have_some(
    versions: dict[int, int], types: tuple[int, ...], mixed: bool
) -> None:
    broker: Any = Broker(versions, types)
    assert asyncio.run(is_mixed(broker, "g")) == mixed


def test_a_place_is_the_same_whoever_holds_it_and_reads_nothing() -> None:
    broker: Any = Broker({68: 1})
    asyncio.run(PlaceholderMember(broker, "g").take())
    asyncio.run(PlaceholderMember(broker, "g").leave())
    asyncio.run(PlaceholderMember(broker, "other").take())
    taken, left, other = broker.heard
    assert (str(taken.group_id), int(taken.member_epoch), taken.subscribed_topic_names) == ("g", 0, ())
    assert (taken.topic_partitions, int(left.member_epoch)) == ((), -1)
    assert taken.member_id == left.member_id == placeholder_id("g") != other.member_id


def test_what_cannot_be_had_is_done_without() -> None:
    old: Any = Broker({})
    asyncio.run(PlaceholderMember(old, "g").take())
    assert old.heard == []
    old.away = True
    asyncio.run(PlaceholderMember(old, "g").take())
    asyncio.run(PlaceholderMember(old, "g").leave())


class Describer(ClusterClient):
    """A coordinator that describes any group as one of workers, and answers each request with the next code."""

    def __init__(self, *codes: int) -> None:
        super().__init__(ClusterSettings("source", ()))
        self.codes = list(codes)

    async def find_coordinator(self, key: str, *, kind: int = 0) -> int:
        return 3

    async def call(self, request: Any, node: int | None = None, *, purpose: str = "control") -> Any:
        kind, code = answer_type(type(request)), self.codes.pop(0)
        group = blank(element_type(kind, "groups"), error_code=code, protocol_type="" if code else "connect")
        return blank(kind, groups=(group,))


def test_a_coordinator_that_loads_is_asked_again_for_a_groups_type() -> None:
    loading = Describer(Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR, 0)
    assert asyncio.run(protocol_type(loading, "g")) == "connect"
    assert loading.codes == []


@dataclass
class Leaver(ClusterClient):
    """A coordinator that takes members out of a group, and answers each request with the next code."""

    codes: list[int]
    left: list[tuple[str, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(ClusterSettings("source", ()))

    async def find_coordinator(self, key: str, *, kind: int = 0) -> int:
        return 3

    async def call(self, request: Any, node: int | None = None, *, purpose: str = "control") -> Any:
        code = self.codes.pop(0)
        if not code:
            self.left += [(str(each.member_id), each.group_instance_id) for each in request.members]
        return blank(answer_type(type(request)), error_code=code)


def test_members_are_removed_by_their_ids_once_the_coordinator_has_loaded() -> None:
    source = Leaver([Code.COORDINATOR_LOAD_IN_PROGRESS, 0])
    asyncio.run(remove_members(source, "g", ["m-1", "m-2"]))
    assert source.left == [("m-1", None), ("m-2", None)]


def test_who_may_not_remove_members_hears_so() -> None:
    with pytest.raises(BrokerRefused):
        asyncio.run(remove_members(Leaver([Code.GROUP_AUTHORIZATION_FAILED]), "g", ["m-1"]))


def test_a_group_that_nobody_knows_has_no_type() -> None:
    assert asyncio.run(protocol_type(Describer(Code.GROUP_ID_NOT_FOUND), "g")) == ""
