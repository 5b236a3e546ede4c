"""One group for a person: who reads what, where, and how far behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from kmigrate.cli.views.group_detail import group_detail_view, partitions_text, reader_names
from kmigrate.workflow.status.group_detail import GroupDetail, MemberDetail, Place
from tests.fakes.snapshots import billing


def shown(detail: GroupDetail, width: int = 120) -> str:
    console = Console(width=width)
    with console.capture() as said:
        console.print(group_detail_view(detail))
    return said.get()


def test_members_have_their_place_host_and_partitions() -> None:
    lines = shown(billing()).splitlines()
    assert any(line.split()[:3] == ["router", "billing-0", "/10.0.7.10"] for line in lines)
    assert any("invoices 2, orders 2,5" in line and line.startswith(("source", " source")) for line in lines)
    assert any(line.split() == ["orders", "5", "1,008", "1,016", "8", "billing-2"] for line in lines)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, shown(billing(), width).splitlines())) <= width


def test_a_group_without_members_and_a_cluster_that_is_away_say_so() -> None:
    nobody = shown(GroupDetail("l", "g", (), (), "no broker answers"))
    assert "! no broker answers" in nobody
    assert "no member on either cluster, or at a router" in nobody


def test_a_client_that_waits_says_so() -> None:
    waiting = GroupDetail("l", "g", (MemberDetail(Place.ROUTER, "app", "10.0.0.3"),), ())
    assert "waits for the promote" in shown(waiting)


def test_equal_client_ids_are_told_apart_by_their_hosts() -> None:
    detail = billing()
    same = replace(detail, members=tuple(replace(each, client_id="app") for each in detail.members))
    assert sorted(reader_names(same).values()) == ["app at /10.0.7.10", "app at /10.0.7.11", "app at /10.0.7.12"]


def test_partitions_are_written_as_runs() -> None:
    assert partitions_text([("b", 4), ("a", 0), ("a", 2), ("a", 1), ("b", 7), ("b", 5)]) == "a 0-2, b 4-5,7"
    assert partitions_text([]) == ""
