"""What a benchmark's figures miss is said, and a run of a part leaves the whole one's file alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import mirror, router
from tests.bench.limits import Limit, at_least, at_most, conclude, missed

LIMITS = (at_least("cases.1kB.ratio", 2.5), at_most("latency.p99", "latency.mm2_p99"), at_most("rss", 300))


def test_figures_within_their_limits_miss_nothing() -> None:
    found = {"cases": {"1kB": {"ratio": 2.5}}, "latency": {"p99": 17, "mm2_p99": 41}, "rss": 300}
    assert missed(found, LIMITS, whole=True) == []


def test_each_figure_beyond_its_limit_is_named() -> None:
    found = {"cases": {"1kB": {"ratio": 2.4}}, "latency": {"p99": 42, "mm2_p99": 41}, "rss": 301}
    assert missed(found, LIMITS, whole=True) == [
        "cases.1kB.ratio is 2.4, and at least 2.5 is asked",
        "latency.p99 is 42, and at most 41 (latency.mm2_p99) is asked",
        "rss is 301, and at most 300 is asked",
    ]


def test_what_a_part_did_not_measure_is_not_judged() -> None:
    assert missed({"cases": {}, "latency": {"p99": 42}}, LIMITS, whole=False) == []


def test_a_whole_run_that_leaves_a_figure_out_misses_it() -> None:
    assert missed({"cases": {}, "latency": {"p99": 17, "mm2_p99": 41}, "rss": 1}, LIMITS, whole=True) == [
        "cases.1kB.ratio was not measured"
    ]


def test_a_part_of_a_benchmark_leaves_the_figures_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    limits = [at_most("rss", 300)]
    assert conclude("m", {"rss": 301, "seconds": 9}, limits, said.append, whole=True) == 1
    assert conclude("m", {"rss": 1, "seconds": 2}, limits, said.append, whole=False) == 0
    missed_one = "  missed: rss is 301, and at most 300 is asked"
    assert said == [missed_one, "build/bench/m.json: 9 s", "build/bench/m-part.json: 2 s"]
    kept = json.loads(Path("build/bench/m.json").read_text())
    assert kept == {"rss": 301, "seconds": 9, "missed": ["rss is 301, and at most 300 is asked"]}


@pytest.mark.parametrize("limits", [mirror.LIMITS, router.LIMITS])
def test_limits_name_figures_once(limits: tuple[Limit, ...]) -> None:
    names = [(limit.figure, limit.lowest) for limit in limits]
    assert len(names) == len(set(names)) > 5
