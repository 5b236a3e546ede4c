"""A router's metrics, taken from the router's own account of a client's connection."""

from __future__ import annotations

from uuid import UUID

from kmigrate.model.presences import ClientWithoutCredential
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.observe.registry import Registry
from kmigrate.router.metrics import METRICS, show_router
from tests.prometheus_text import parse, text
from tests.unit.router.router_fakes import Stage, batch, route


def test_requests_forwards_and_holds_are_shown_by_router_topic_and_partition() -> None:
    stage = Stage(route("orders", Serve.FORWARD))
    registry = Registry()
    show_router(registry, stage.shared, lambda: 4, lambda: "target-id")
    stage.turn(g=GroupRoute("l"), quiet=GroupRoute("l"))
    stage.shared.followers.withhold("g", "m", frozenset({UUID(int=1), UUID(int=2)}), 0.0)
    stage.shared.followers.withhold("g", "n", frozenset({UUID(int=1)}), 0.0)
    stage.produce(("orders", 2, batch()))
    stage.produce(("orders", 2, batch(sequence=1)))
    stage.edge.sent[0].answer()
    stage.swap(route("orders", Serve.HOLD, fence_epoch=2))
    stage.produce(("orders", 2, batch(sequence=2)))
    stage.shared.own_refused[1] += 1
    stage.shared.failed_logins["PLAIN"] += 2
    stage.shared.certificate_expires_at = lambda: 2_000_000_000.0
    stage.shared.missing_credentials.refused(ClientWithoutCredential("orders", "c", "h", "l", "old", writes=True), 0.0)
    stage.shared.served.failed(1, [6, 6])

    held = parse(text(registry))
    assert held.value("kmigrate_router_waiting_connections") == 1
    assert held.value("kmigrate_router_requests_total", api="produce") == 3
    assert held.value("kmigrate_router_forwarded_batches_total") == 2
    assert held.value("kmigrate_router_forwarded_bytes_total") == sum(len(sent.frame) for sent in stage.edge.sent)
    assert held.value("kmigrate_router_forwards_in_flight", link="l", topic="orders") == 1
    assert held.value("kmigrate_router_open_transactions", link="l") == 0
    assert held.value("kmigrate_router_withheld_topics", link="l", group="g") == 2
    assert held.value("kmigrate_router_withheld_topics", link="l", group="quiet") == 0

    assert held.value("kmigrate_router_failed_logins_total", by="PLAIN") == 2
    assert held.value("kmigrate_router_clients_without_credential", link="l") == 1
    assert held.value("kmigrate_router_certificate_expires_timestamp_seconds") == 2_000_000_000

    stage.edge.clock += 0.075
    stage.swap(route("orders", Serve.FORWARD))
    told = parse(text(registry))
    assert set(told.families) == {metric.name for metric in METRICS}
    name = stage.shared.settings.name
    assert told.value("kmigrate_router_connections", router=name) == 4
    assert told.value("kmigrate_router_waiting_connections", router=name) == 0
    assert told.value("kmigrate_router_errors_total", api="fetch", error="NOT_LEADER_OR_FOLLOWER") == 2
    assert told.value("kmigrate_router_held_requests_total", api="produce") == 1
    assert told.value("kmigrate_router_held_seconds_total", api="produce") == 0.075
    assert told.value("kmigrate_router_kept_out_requests_total", router=name) == 0
    assert told.value("kmigrate_router_hold_seconds", link="l", topic="orders", partition="2") == 0.075
    assert told.value("kmigrate_router_table_epoch", router=name, target="target-id") == stage.shared.table.epoch
