"""Tests of the Grafana dashboard: current, and made of metrics and labels that exist."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from kmigrate.cli.reference.dashboard import ROWS, Panel, dashboard
from tests.promql import unknown_names

FILE = Path(__file__).parents[3] / "deploy" / "grafana" / "kmigrate.json"
PANELS: list[dict[str, Any]] = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_the_dashboard_is_current() -> None:
    made = json.loads(FILE.read_text(encoding="utf-8"))
    assert made == dashboard(), (
        "make it anew: python -m kmigrate.cli.reference.dashboard > deploy/grafana/kmigrate.json"
    )


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert unknown_names(target["expr"]) == []


@pytest.mark.parametrize("panel", [p for row in ROWS.values() for p in row], ids=lambda panel: panel.title)
def test_a_legend_names_labels_that_the_query_keeps(panel: Panel) -> None:
    for legend, query in panel.queries.items():
        for label in {part.split("}}")[0] for part in legend.split("{{")[1:]}:
            assert label in query or label in {"instance", "router"}


def test_no_two_panels_overlap_and_none_leaves_the_page() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_variables_ask_for_labels_that_exist() -> None:
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            asked, _, label = variable["query"]["query"].removeprefix("label_values(").rstrip(")").rpartition(", ")
            assert unknown_names(f"sum by ({label}) ({asked})") == []
