"""Tests of the check that finds unknown metrics and labels in PromQL."""

from __future__ import annotations

import pytest

from tests.promql import unknown_names


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ('max by (link, topic) (kmigrate_mirror_lag_seconds{link="blue"}) > 60', []),
        ("kmigrate_mirror_lag_minutes", ["kmigrate_mirror_lag_minutes"]),
        ('kmigrate_mirror_lag_seconds{group="billing"}', ["kmigrate_mirror_lag_seconds{group}"]),
        ("sum by (router) (kmigrate_mirror_lag_seconds)", ["router"]),
        ('up{job="kmigrate"} == 0', []),
        ("histogram_quantile(0.99, sum by (le) (rate(kmigrate_mirror_link_latency_seconds_bucket[5m])))", []),
        ("kmigrate_mirror_link_latency_seconds", ["kmigrate_mirror_link_latency_seconds"]),
        ('kmigrate_mirror_record_bytes{quantile="0.5"}', []),
        ("a and on (instance, brokr) kmigrate_router_connections", ["brokr"]),
    ],
)
def test_a_name_that_no_process_serves_is_found(expression: str, unknown: list[str]) -> None:
    assert unknown_names(expression) == unknown
