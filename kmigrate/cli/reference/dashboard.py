"""The Grafana dashboard of a migration: `python -m kmigrate.cli.reference.dashboard > deploy/grafana/kmigrate.json`.

A panel's description is the meaning of its metrics, as docs/metrics.md has it. A test compares the file, and checks
each metric and label that a query names.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kmigrate.cli.reference.metrics import ALL_METRICS

__all__ = ["ROWS", "Panel", "dashboard"]

_HELP = {metric.name: metric.help for metric in ALL_METRICS}
_NAME = re.compile(r"\b(?:kmigrate|process)_[a-z_]+")
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_LINK, _TOPIC, _ROUTER = 'link=~"$link"', 'link=~"$link", topic=~"$topic"', 'router=~"$router"'
_PLOT = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi"}}
_FIGURE = {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot or a figure of the dashboard."""

    title: str
    queries: dict[str, str]
    """PromQL expression by legend."""
    unit: str = "short"
    width: int = 8
    figure: bool = False
    """True for a single figure, False for a plot."""
    alarm: float | None = None
    """Value from which on a figure is red."""

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that the queries ask for, without the suffixes of histograms."""
        found = {name for query in self.queries.values() for name in _NAME.findall(query)}
        return sorted({re.sub(r"_(bucket|sum|count)$", "", name) for name in found})


ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Processes up", {"": 'sum(up{job="kmigrate"})'}, width=3, figure=True),
        Panel(
            "Routers without the state log",
            {"": "sum(kmigrate_router_log_problem) or vector(0)"},
            width=4,
            figure=True,
            alarm=1,
        ),
        Panel(
            "Partitions that wait for a person",
            {"": f"sum(kmigrate_mirror_stopped{{{_LINK}}})"},
            width=5,
            figure=True,
            alarm=1,
        ),
        Panel(
            "Oldest record to be copied",
            {"": f"max(kmigrate_mirror_lag_seconds{{{_TOPIC}}})"},
            "s",
            width=4,
            figure=True,
            alarm=60,
        ),
        Panel(
            "Partitions that wait for disk",
            {"": f"sum(kmigrate_mirror_disk_held_partitions{{{_LINK}}})"},
            width=4,
            figure=True,
            alarm=1,
        ),
        Panel(
            "Late records on the source alone",
            {"": f"sum(max by (link, topic, partition) (kmigrate_late_missing_records{{{_TOPIC}}})) or vector(0)"},
            width=4,
            figure=True,
            alarm=1,
        ),
    ),
    "Phases": (
        Panel(
            "Topics by phase",
            {"{{phase}}": f"count by (phase) (max by (link, topic, phase) (kmigrate_topic_phase{{{_TOPIC}}}))"},
        ),
        Panel(
            "Groups by phase",
            {"{{phase}}": f"count by (phase) (max by (link, group, phase) (kmigrate_group_phase{{{_LINK}}}))"},
        ),
        Panel(
            "Promotes in an hour",
            {"{{what}} {{step}}": f"max by (link, what, step) (increase(kmigrate_promotes_total{{{_LINK}}}[1h]))"},
        ),
    ),
    "Copy": (
        Panel("Lag by topic", {"{{topic}}": f"max by (topic) (kmigrate_mirror_lag_seconds{{{_TOPIC}}})"}, "s"),
        Panel("Records to be copied", {"{{topic}}": f"sum by (topic) (kmigrate_mirror_lag_records{{{_TOPIC}}})"}),
        Panel(
            "Records to be copied back to the source",
            {"{{topic}}": f"sum by (topic) (kmigrate_mirror_back_lag_records{{{_TOPIC}}})"},
        ),
        Panel(
            "Copied",
            {"{{topic}}": f"sum by (topic) (rate(kmigrate_mirror_bytes_total{{{_TOPIC}}}[$__rate_interval]))"},
            "Bps",
        ),
        Panel(
            "Replication latency",
            {
                f"p{share:g}": f"histogram_quantile({share / 100:g}, sum by (le) "
                f"(rate(kmigrate_mirror_link_latency_seconds_bucket{{{_LINK}}}[$__rate_interval])))"
                for share in (50, 99)
            },
            "s",
        ),
        Panel(
            "Repeated requests",
            {
                "{{asked}}: {{cause}}": "sum by (asked, cause) "
                f"(rate(kmigrate_mirror_retries_total{{{_TOPIC}}}[$__rate_interval]))"
            },
            "reqps",
        ),
        Panel(
            "Rests that a limit asked for",
            {
                "{{link}}: {{by}}": "sum by (link, by) "
                f"(rate(kmigrate_mirror_slowed_seconds_total{{{_LINK}}}[$__rate_interval]))"
            },
            "s",
        ),
        Panel(
            "Free bytes of the target",
            {
                "broker {{broker}} {{log_dir}}": "min by (broker, log_dir) "
                f"(kmigrate_mirror_target_free_bytes{{{_LINK}}})"
            },
            "bytes",
        ),
        Panel(
            "Growth of the copy in an hour",
            {"{{link}}": f"max by (link) (kmigrate_mirror_target_disk_growth_bytes_per_hour{{{_LINK}}})"},
            "bytes",
        ),
        Panel(
            "Producers past the routers",
            {"{{topic}}": f"sum by (topic) (kmigrate_mirror_direct_writers{{{_TOPIC}}})"},
        ),
    ),
    "Routers": (
        Panel("Connections", {"{{router}}": f"kmigrate_router_connections{{{_ROUTER}}}"}),
        Panel(
            "Requests",
            {"{{api}}": f"sum by (api) (rate(kmigrate_router_requests_total{{{_ROUTER}}}[$__rate_interval]))"},
            "reqps",
        ),
        Panel(
            "Slowest answers (p99)",
            {
                "{{api}}": "histogram_quantile(0.99, sum by (api, le) "
                f"(rate(kmigrate_router_answer_seconds_bucket{{{_ROUTER}}}[$__rate_interval])))"
            },
            "s",
        ),
        Panel(
            "Errors that clients got",
            {
                "{{api}}: {{error}}": "sum by (api, error) "
                f"(rate(kmigrate_router_errors_total{{{_ROUTER}}}[$__rate_interval]))"
            },
        ),
        Panel(
            "Time for which requests were held",
            {"{{api}}": f"sum by (api) (rate(kmigrate_router_held_seconds_total{{{_ROUTER}}}[$__rate_interval]))"},
            "s",
        ),
        Panel(
            "Writes to the source",
            {"{{router}}": f"rate(kmigrate_router_forwarded_bytes_total{{{_ROUTER}}}[$__rate_interval])"},
            "Bps",
        ),
        Panel("Connections that wait", {"{{router}}": f"kmigrate_router_waiting_connections{{{_ROUTER}}}"}),
        Panel(
            "Writes without an answer of the source",
            {"{{topic}}": f"sum by (topic) (kmigrate_router_forwards_in_flight{{{_ROUTER}, {_TOPIC}}})"},
        ),
        Panel(
            "Longest hold at the last fence",
            {"{{topic}}": f"max by (topic) (kmigrate_router_hold_seconds{{{_ROUTER}, {_TOPIC}}})"},
            "s",
        ),
        Panel("Memory kept for clients", {"{{router}}": f"kmigrate_router_buffered_bytes{{{_ROUTER}}}"}, "bytes"),
        Panel(
            "Connections ended for a limit",
            {
                "{{router}}: {{limit}}": "sum by (router, limit) "
                f"(rate(kmigrate_router_ended_connections_total{{{_ROUTER}}}[$__rate_interval]))"
            },
        ),
        Panel("Newest record that a router acts on", {"{{router}}": f"kmigrate_router_table_epoch{{{_ROUTER}}}"}),
    ),
    "Groups and promoted topics": (
        Panel(
            "Members at the wrong cluster",
            {"{{group}} at {{cluster}}": f"max by (group, cluster) (kmigrate_group_misplaced_members{{{_LINK}}})"},
        ),
        Panel(
            "Topics that nobody in a group reads",
            {"{{group}}": f"max by (group) (kmigrate_router_withheld_topics{{{_LINK}}})"},
        ),
        Panel(
            "Offsets on the source beyond the barrier",
            {"{{topic}}": f"sum by (topic) (max by (topic, partition) (kmigrate_late_offsets{{{_TOPIC}}}))"},
        ),
        Panel(
            "Fences",
            {
                f"p{share:g}, {{{{end}}}}": f"histogram_quantile({share / 100:g}, sum by (le, end) "
                f"(increase(kmigrate_fence_seconds_bucket{{{_LINK}}}[1h])))"
                for share in (50, 99)
            },
            "s",
        ),
        Panel(
            "Age of the oldest check",
            {"{{topic}}": f"max by (topic) (kmigrate_verify_age_seconds{{{_TOPIC}}})"},
            "s",
        ),
        Panel("Records of other writers", {"{{topic}}": "max by (topic) (kmigrate_stray_records)"}),
    ),
    "Processes": (
        Panel(
            "CPU", {"{{instance}}": 'rate(process_cpu_seconds_total{job="kmigrate"}[$__rate_interval])'}, "percentunit"
        ),
        Panel("Memory", {"{{instance}}": 'process_resident_memory_bytes{job="kmigrate"}'}, "bytes"),
        Panel("Versions", {"{{version}}": "count by (version) (kmigrate_build_info)"}),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    return {
        "uid": "kmigrate",
        "title": "kmigrate",
        "description": "A migration between two Kafka clusters: copy, routers, groups and promotes.",
        "tags": ["kafka", "kmigrate"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    asked = {
        "link": "label_values(kmigrate_link_info, link)",
        "topic": 'label_values(kmigrate_mirror_position{link=~"$link"}, topic)',
        "router": "label_values(kmigrate_router_connections, router)",
    }
    source = {"name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus"}
    return [source, *(_variable(name, query) for name, query in asked.items())]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in ROWS.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _at(0, top, _COLUMNS, 1),
        }
        number, top, left = number + 1, top + 1, 0
        height = 4 if all(panel.figure for panel in panels) else 8
        for panel in panels:
            if left + panel.width > _COLUMNS:
                top, left = top + height, 0
            yield {"id": number, "gridPos": _at(left, top, panel.width, height), **_panel(panel)}
            number, left = number + 1, left + panel.width
        top += height


def _at(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    return {
        "type": "stat" if panel.figure else "timeseries",
        "title": panel.title,
        "description": " ".join(_HELP[name] for name in panel.metrics if name in _HELP),
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": _FIGURE if panel.figure else _PLOT,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend or "__auto"}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
