"""A router's limits in `kmigrate status`: the distance to each limit, and connections ended because of a limit."""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text

from kmigrate.cli.views.routers import limits_line, served_line
from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.model.presences import EndedClients, KeptOutClient, RouterLimits, RouterPresence, ServedApi
from kmigrate.model.records import RouterRecord
from kmigrate.workflow.status.snapshot import Snapshot
from tests.unit.cli.views.test_leaving_view import _text

LIMITS = RouterLimits(10_000, 3, 0, 3_000_000, 1_000_000_000)
WORD = RouterPresence("r1", "edge", 1, 500, connections=12, limits=LIMITS)


def yellow(line: Text) -> list[str]:
    return [line.plain[span.start : span.end] for span in line.spans if span.style == "yellow"]


def shot(word: RouterPresence) -> Snapshot:
    record = RouterRecord("edge", "r1", "h", "h:1", 1)
    return Snapshot(0, 0, (), (), (), (record,), frozenset({"r1"}), (), (), {"r1": word})


def test_a_router_with_room_is_one_quiet_line() -> None:
    said = _text(snapshot_view(shot(WORD)))
    assert "router edge: 12 of 10,000 connections; 3 MB of 1 GB kept for clients" in said
    assert yellow(limits_line(WORD)) == []


def test_what_is_near_its_bound_or_has_ended_somebody_stands_out() -> None:
    ended = {"memory": EndedClients(2, "deaf at 10.0.0.9"), "idle": EndedClients(7, "app at h")}
    limits = replace(LIMITS, most_of_one_host=4, buffered=900_000_000, ended=ended)
    assert yellow(limits_line(replace(WORD, limits=limits))) == [
        "900 MB of 1 GB kept for clients",
        "ended for memory: 2, last deaf at 10.0.0.9",
    ]
    full = limits_line(replace(WORD, limits=replace(limits, of_one_host=4), connections=8_000))
    assert yellow(full)[:2] == ["8,000 of 10,000 connections", "4 of 4 connections of one host"]


def test_a_program_is_told_the_same() -> None:
    (router,) = shot(WORD).as_json()["routers"]
    assert router["connections"] == 12
    assert router["limits"]["most_connections"] == 10_000
    assert (router["limits"]["buffered"], router["limits"]["most_buffered"]) == (3_000_000, 1_000_000_000)


def test_errors_and_waits_of_clients_are_a_line_of_their_router() -> None:
    assert served_line(replace(WORD, served=(ServedApi("fetch", 9_000, 0.5, 0, 0.0),))) is None
    served = (
        ServedApi("produce", 1_200, 0.01, 34, 61.5, {"NOT_LEADER_OR_FOLLOWER": 2, "INVALID_RECORD": 1}),
        ServedApi("fetch", 9_000, 0.5, 0, 0.0),
    )
    line = served_line(replace(WORD, served=served))
    assert line is not None
    assert line.plain == (
        "router edge, errors and waits of its clients in the last minute: "
        "produce of 1,200: INVALID_RECORD × 1, NOT_LEADER_OR_FOLLOWER × 2; 34 produce held, 61.5 s together"
    )
    assert "INVALID_RECORD × 1" in _text(snapshot_view(shot(replace(WORD, served=served))))
    (told,) = shot(replace(WORD, served=served)).as_json()["routers"]
    assert [(api["api"], api["errors"].get("INVALID_RECORD")) for api in told["served"]] == [
        ("produce", 1),
        ("fetch", None),
    ]


def test_a_client_that_is_kept_out_is_named_to_people_and_programs() -> None:
    client = KeptOutClient("old", "10.0.0.7", "", "it sends Fetch version 3, and the router takes 4 to 18")
    (router,) = shot(replace(WORD, kept_out=(client,))).as_json()["routers"]
    assert [each["why"] for each in router["kept_out"]] == [client.why]
    assert client.text.startswith("old at 10.0.0.7 is kept out: it sends Fetch version 3")


def test_a_router_of_an_earlier_version_tells_its_connections_only() -> None:
    old = replace(WORD, limits=None)
    assert limits_line(old).plain == "router edge: 12 connections"
    assert shot(old).as_json()["routers"][0]["limits"] is None
