"""The offered APIs against Kafka's own message schemas, which ship in the kafka-clients jar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.index import schema_name_map

from kmigrate.cli.reference.apis import client_apis, not_offered, with_table
from kmigrate.kafka_jars.jars import message_schemas
from kmigrate.protocol.api import API_NAMES, ApiKey
from kmigrate.router.wire.apis import APIS, OFFERED, Treatment
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION

LEFT_ALONE = {
    "request.ReplicaId": "−1 from every client; only followers set it, and they do not come through a router",
    "request.ReplicaState": "the same, from Fetch 15 on",
    "response.Groups.Members.ClientHost": "the host of a client, not of a broker",
    "request.HostFilter": "an ACL's client host",
    "response.Resources.Acls.Host": "an ACL's client host",
    "request.Creations.Host": "an ACL's client host",
    "request.Filters.HostFilter": "an ACL's client host",
    "response.Nodes.Listeners.Host": "where a controller listens, which no client of a router dials",
    "response.Nodes.Listeners.Port": "the same",
    "response.FilterResults.MatchingAcls.Host": "an ACL's client host",
}
_NAMES = re.compile(r"host|port$|nodeid|brokerid|leaderid|replicaid", re.IGNORECASE)


def _schemas() -> dict[int, dict[str, Any]]:
    """Return request and response schema by API key."""
    return message_schemas(TARGET_VERSION)


def _spans(text: str, low: int, high: int) -> bool:
    """Tell whether a versions expression ("3+", "0-2", "4", "none") meets an offered range."""
    if text == "none":
        return False
    first, _, last = text.partition("-")
    start = int(first.rstrip("+"))
    end = high if first.endswith("+") else int(last or first)
    return start <= high and end >= low


def _fields(schema: dict[str, Any], span: tuple[int, int]) -> Iterator[str]:
    """Yield the paths of the fields that hold a node id or an address in any offered version."""
    structs = {one["name"]: one for one in schema.get("commonStructs", [])}

    def walk(fields: list[dict[str, Any]], path: str) -> Iterator[str]:
        for one in fields:
            if not _spans(one["versions"], *span):
                continue
            here = f"{path}.{one['name']}"
            if one.get("entityType") == "brokerId" or _NAMES.search(one["name"]):
                yield here
            inner = one.get("fields") or structs.get(one["type"].removeprefix("[]"), {}).get("fields", [])
            yield from walk(inner, here)

    yield from walk(schema["fields"], schema["type"])


@pytest.mark.parametrize("api_key", sorted(OFFERED))
def test_every_node_id_and_address_of_an_offered_api_is_rewritten_or_left_alone_for_a_reason(api_key: int) -> None:
    rewritten = set(APIS[api_key].node_fields)
    for kind in ("request", "response"):
        for path in _fields(_schemas()[api_key][kind], OFFERED[api_key].versions):
            covered = any(path == known or path.startswith(known + ".") for known in rewritten | set(LEFT_ALONE))
            assert covered, f"api {api_key}: nobody rewrites {path}"


@pytest.mark.parametrize("api_key", sorted(OFFERED))
def test_no_offered_version_is_beyond_what_kafka_and_our_codec_know(api_key: int) -> None:
    low, high = OFFERED[api_key].versions
    stable = _schemas()[api_key]["request"]["validVersions"]
    last = int(stable.rpartition("-")[2])
    known = [int(version) for version in schema_name_map[API_NAMES[api_key]]]
    by_hand = api_key == ApiKey.PRODUCE and low == 0
    assert by_hand or min(known) <= low
    assert low <= high <= min(max(known), last)


@pytest.mark.parametrize("version", [SOURCE_VERSION, TARGET_VERSION])
def test_every_api_that_brokers_have_for_clients_is_offered_or_hidden_for_a_reason(version: str) -> None:
    for api_key, (name, _) in client_apis(version).items():
        hidden = APIS[api_key].note if APIS[api_key].treatment is Treatment.HIDDEN else ""
        assert (api_key in OFFERED) != bool(hidden), name


def test_fewer_versions_than_the_newest_kafka_has_are_offered_for_a_reason_only() -> None:
    for api_key, (name, versions) in client_apis(TARGET_VERSION).items():
        if api_key in OFFERED and OFFERED[api_key].versions[1] < int(versions.rpartition("-")[2]):
            assert APIS[api_key].cap, name


@pytest.mark.parametrize("source", [SOURCE_VERSION, TARGET_VERSION])
def test_a_version_that_both_clusters_take_is_offered_or_left_out_for_a_reason(source: str) -> None:
    """With a target of Kafka 4, no old version is left out."""
    for api_key, versions in not_offered(source, TARGET_VERSION).items():
        assert APIS[api_key].cap, API_NAMES[api_key]
        assert min(versions) > OFFERED[api_key].versions[1], API_NAMES[api_key]


def test_old_versions_are_left_out_only_where_kafka_4_dropped_them() -> None:
    for api_key, versions in not_offered(SOURCE_VERSION, SOURCE_VERSION).items():
        lowest = int(client_apis(TARGET_VERSION)[api_key][1].partition("-")[0])
        assert all(version < lowest or version > OFFERED[api_key].versions[1] for version in versions)


def test_the_table_of_apis_is_current() -> None:
    page = (Path(__file__).parents[4] / "docs" / "apis.md").read_text(encoding="utf-8")
    assert page == with_table(page), "make it anew: python -m kmigrate.cli.reference.apis docs/apis.md"


@pytest.mark.parametrize("hidden", [27, 64, 71, 72, 80, 81, 83, 88, 89])
def test_what_nobody_checked_or_must_not_be_used_is_hidden(hidden: int) -> None:
    assert hidden not in OFFERED


def test_versions_that_belong_to_transaction_version_2_are_not_offered() -> None:
    assert (OFFERED[0].versions[1], OFFERED[26].versions[1], OFFERED[28].versions[1], OFFERED[24].versions[1]) == (
        11,
        4,
        4,
        3,
    )
