"""Tests of the alert rules: the metrics exist, each rule has its runbook, and each rule is fired by promtool's test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import unknown_names

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
SECTIONS = re.split(r"^### ", (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
RUNBOOKS = {section.split("\n", 1)[0]: section for section in SECTIONS}
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


@each_rule
def test_a_rule_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert unknown_names(rule["expr"]) == []


@each_rule
def test_a_rule_has_a_severity_and_says_what_happens(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook"} == rule["annotations"].keys()


@each_rule
def test_a_text_of_a_rule_names_labels_that_the_expression_keeps(rule: dict[str, Any]) -> None:
    """A sum keeps only the labels that it names; any other label would be an empty text."""
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    outermost = re.match(r"\(*\s*(?:sum|max|min|count) by \(([^)]*)\)", rule["expr"])
    if outermost:
        assert named <= {label.strip() for label in outermost[1].split(",")}


@each_rule
def test_a_rule_leads_to_its_runbook(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{name.lower()}"
    for part in ("**Meaning**", "**Safe**", "**Look**", "**Do**"):
        assert f"- {part}: " in RUNBOOKS[name]


def test_each_runbook_is_of_a_rule() -> None:
    assert list(RUNBOOKS) == [rule["alert"] for rule in RULES]


def test_promtools_test_fires_each_rule() -> None:
    text = (FOLDER / "alerts.test.yml").read_text(encoding="utf-8")
    fired = set(re.findall(r'alertname="(\w+)"(?:, \w+="[\w-]+")*}\'\n +value: 1', text))
    assert fired == {rule["alert"] for rule in RULES}


def test_the_example_configuration_of_prometheus_reads_the_rules() -> None:
    example = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    assert example["rule_files"] == ["alerts.yml"]
    assert {job["job_name"] for job in example["scrape_configs"]} == {"kmigrate"}
