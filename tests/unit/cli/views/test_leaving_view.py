"""The output while clients leave: the remaining clients, and whether the routers may stop."""

from __future__ import annotations

import pytest
from rich.console import Console

from kmigrate.cli.views.routers import clients_table, ending
from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.model.records import RouterRecord
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads
from kmigrate.workflow.status.snapshot import LinkStatus, Snapshot

CLIENT = ConnectedClient("app", "10.0.0.7", "User:app", "librdkafka 2.8.0", brokers=2)
ASKED = [Bootstrap("kafka:9092", Leads.ROUTER, ""), Bootstrap("broker:9092", Leads.TARGET, "")]


def _text(view: object) -> str:
    console = Console(width=200)
    with console.capture() as said:
        console.print(view)
    return said.get()


@pytest.mark.parametrize(
    ("gone", "may_stop", "words"),
    [
        (False, False, "until the other links are finished"),
        (True, True, "The routers may be stopped; no client need be restarted"),
        (True, False, "Do not stop the router behind kafka:9092 before"),
    ],
)
def test_the_end_says_whether_routers_may_be_stopped(gone: bool, may_stop: bool, words: str) -> None:
    said = _text(ending(ASKED, gone=gone, may_stop=may_stop))
    assert words in said
    assert "broker:9092" not in said


def test_each_client_is_named_with_what_it_is() -> None:
    said = _text(clients_table([CLIENT]))
    assert all(word in said for word in ("app", "10.0.0.7", "User:app", "librdkafka 2.8.0", "2"))


def test_status_names_who_has_not_left_a_finished_links_routers() -> None:
    word = RouterPresence("r1", "r", 1, 500, on_brokers=2, clients=(CLIENT,), more_clients=3)
    shot = Snapshot(
        0,
        0,
        (LinkStatus("blue", "s", "t", "", finished_ms=5),),
        (),
        (),
        (RouterRecord("r", "r1", "h", "h:1", 1),),
        frozenset({"r1"}),
        (),
        (),
        {"r1": word},
    )
    said = _text(snapshot_view(shot))
    assert "blue  s → t  finished" in said
    assert "still at router r: app at 10.0.0.7 as User:app (librdkafka 2.8.0) and 3 clients more" in said
    (router,) = shot.as_json()["routers"]
    assert (router["on_brokers"], router["more_clients"], router["clients"][0]["client_id"]) == (2, 3, "app")
