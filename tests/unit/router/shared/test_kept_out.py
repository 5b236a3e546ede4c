"""Clients that the router keeps out: named once, with their library, for as long as they try."""

from __future__ import annotations

import pytest

from kmigrate.model.presences import KeptOutClient
from kmigrate.protocol.api import ApiKey, blank, entity
from kmigrate.router.shared.kept_out import KeptOutClients, library_of, why_kept_out
from tests.hostile.requests import request
from tests.unit.router.router_fakes import Stage


def _client(name: str) -> KeptOutClient:
    return KeptOutClient(name, "10.0.0.7", "", why_kept_out(ApiKey.PRODUCE, 2))


def test_a_client_that_tries_again_and_again_is_logged_once_and_reported_while_it_tries() -> None:
    kept = KeptOutClients()
    assert [kept.note(_client("old"), float(second)) for second in range(300)] == [True, *[False] * 299]
    assert kept.reported(800.0) == (_client("old"),)
    assert kept.count(800.0) == 1
    assert kept.reported(900.0) == ()
    assert not kept.note(_client("old"), 2_000.0)
    assert kept.count(2_000.0) == 1


def test_a_flood_of_names_takes_bounded_memory_and_log_lines() -> None:
    kept = KeptOutClients()
    logged = sum(kept.note(_client(f"c{number}"), 0.0) for number in range(5_000))
    assert logged == kept.count(0.0) == 1_000
    assert len(kept.reported(0.0)) == 10
    assert kept.note(_client("later"), 700.0)
    assert kept.count(700.0) == 1


@pytest.mark.parametrize(
    ("software", "client_id", "library"),
    [
        ("librdkafka 2.14.2", "rdkafka", "librdkafka 2.14.2"),
        ("", "kafka-python-2.0.2", "kafka-python 2.0.2"),
        ("", "kafka-python-producer-1", ""),
        ("", "sarama", "sarama"),
        ("", "orders", ""),
    ],
)
def test_a_library_is_known_by_its_own_word_or_by_its_usual_client_id(
    software: str, client_id: str, library: str
) -> None:
    assert library_of(software, client_id) == library


@pytest.mark.parametrize(
    ("key", "version", "why"),
    [
        (ApiKey.FETCH, 3, "it sends Fetch version 3, and the router takes 4 to 18"),
        (ApiKey.PUSH_TELEMETRY, 0, "it sends PushTelemetry, which the router hides"),
        (4, 1, "it sends API key 4"),
    ],
)
def test_the_reason_names_what_the_client_sends_and_what_the_router_takes(key: int, version: int, why: str) -> None:
    assert why_kept_out(key, version) == why


def test_a_session_names_its_client_once_and_ends_each_of_its_connections() -> None:
    stage = Stage()
    stage.session.host = "10.0.0.7"
    kind = entity(ApiKey.API_VERSIONS, 3, "request")
    stage.request(blank(kind, client_software_name="old-library", client_software_version="0.1"))
    for _ in range(3):
        stage.session.frame(bytearray(request(ApiKey.FETCH, 3, b"", client=b"orders")))
    (line,) = stage.backend.said
    assert line == (
        "orders at 10.0.0.7 (old-library 0.1) is kept out: it sends Fetch version 3, and the router takes 4 to 18; "
        "repetitions are not logged"
    )
    assert stage.edge.closed == ["", "", ""]
    assert len(stage.edge.sent) == 1, "only the question for versions"
    assert [client.client_id for client in stage.shared.kept_out.reported(stage.edge.clock)] == ["orders"]
