"""Ports of a router's listeners: by node id, or counted through the sorted ids where an id exceeds the ports."""

from __future__ import annotations

import asyncio

import pytest

from kmigrate.errors import Refused
from kmigrate.router.process.ports import Ports
from kmigrate.router.settings import RouterSettings

GIVEN = 9_100


def _never_accepts(key: object) -> asyncio.BaseProtocol:
    raise AssertionError(f"no client connects here: {key}")


def _ports(**settings: int | dict[int, int]) -> Ports:
    return Ports(RouterSettings(**settings), _never_accepts, None)  # type: ignore[arg-type]


def _asked(ports: Ports, *nodes: int) -> list[list[int]]:
    return [ports.wanted(node) for node in nodes]


def test_a_brokers_port_is_the_first_port_plus_its_node_id() -> None:
    ports = _ports(port=9_092, node_port_base=GIVEN)
    ports.assign([1, 2, 3_001])
    assert _asked(ports, 1, 2, 3_001) == [[9_101], [9_102], [12_101]]


@pytest.mark.parametrize("nodes", [(60_001, 60_002, 70_000), (1, 2, 60_001)])
def test_ports_are_counted_through_the_sorted_ids_if_an_id_exceeds_the_ports(nodes: tuple[int, ...]) -> None:
    ports = _ports(port=9_092, node_port_base=GIVEN)
    ports.assign(nodes[::-1])
    assert _asked(ports, *nodes) == [[9_100], [9_101], [9_102]]
    ports.assign([nodes[0], 5])
    assert _asked(ports, 5) == [[9_103]]
    assert _asked(ports, *nodes) == [[9_100], [9_101], [9_102]], "listeners do not move while clients know them"


def test_without_broker_ports_the_same_is_tried_and_any_free_port_is_better_than_none() -> None:
    ports = _ports(port=9_092)
    ports.assign([1, 70_000])
    assert _asked(ports, 1, 70_000) == [[9_093, 0], [9_094, 0]]
    ports = _ports()
    ports.assign([1, 70_000])
    assert _asked(ports, 1, 70_000) == [[0], [0]]


def test_a_broker_that_comes_later_and_does_not_fit_gets_the_lowest_free_place() -> None:
    ports = _ports(port=9_092, node_port_base=GIVEN)
    ports.assign([0, 1, 3])
    ports.assign([70_000])
    assert _asked(ports, 0, 1, 3, 70_000) == [[9_100], [9_101], [9_103], [9_102]]
    ports.assign([2])
    assert _asked(ports, 2) == [[9_104]], "port 9102 is taken"


def test_brokers_for_which_no_port_is_left_are_refused_by_their_ids() -> None:
    ports = _ports(port=9_092, node_port_base=65_534)
    with pytest.raises(Refused) as refused:
        ports.assign([60_001, 60_002, 60_003, 60_004])
    assert refused.value.ref == "broker-ports-exceeded"
    assert refused.value.what == "broker_ports = 65534 leaves no port for target broker 60003, 60004"
    assert "there are 4 brokers" in refused.value.next_step


def test_a_table_names_the_port_of_each_broker() -> None:
    ports = _ports(port=9_092, node_ports={40_001: 9_201, 7: 9_200})
    ports.assign([7, 40_001])
    assert _asked(ports, 7, 40_001) == [[9_200], [9_201]], "no other port is tried"


def test_brokers_that_a_table_of_ports_does_not_name_are_refused_by_their_ids() -> None:
    ports = _ports(port=9_092, node_ports={1: 9_201})
    with pytest.raises(Refused) as refused:
        ports.assign([9, 1, 7])
    assert refused.value.ref == "broker-ports-missing"
    assert refused.value.what == "the table broker_ports names no port for target broker 7, 9"
    assert refused.value.next_step == "add 7 = PORT, 9 = PORT to broker_ports of [router]"
    assert _asked(ports, 9) == [[0]], "a broker that is added while clients are served gets any free port"


def test_a_listener_is_bound_at_the_counted_port() -> None:
    async def bound() -> int:
        probe = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        free = int(probe.sockets[0].getsockname()[1])
        probe.close()
        await probe.wait_closed()
        ports = _ports(node_port_base=free)
        ports.assign([65_535, 65_000 + 1])
        try:
            return (await ports.listen(65_001))[1] - free
        finally:
            ports.close()

    assert asyncio.run(bound()) == 0
