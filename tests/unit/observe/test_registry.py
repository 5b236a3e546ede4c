"""The text that a scrape is answered with, read by a strict parser of the format's description."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.observe.distributions import Histogram, SummaryValue
from kmigrate.observe.registry import Kind, Metric, Registry
from tests.prometheus_text import parse, text

TOTAL = Metric("records_total", Kind.COUNTER, "Records.", ("topic", "partition"))
LEVEL = Metric("level", Kind.GAUGE, "A level.")


def test_a_family_has_its_help_its_type_and_its_samples_as_they_are_read() -> None:
    registry = Registry()
    registry.add(TOTAL, lambda: [(("a", "0"), 3.5), (("b", "9"), 2)])
    registry.add(LEVEL, lambda: [((), -4)])
    assert text(registry) == (
        "# HELP records_total Records.\n"
        "# TYPE records_total counter\n"
        'records_total{topic="a",partition="0"} 3.5\n'
        'records_total{topic="b",partition="9"} 2\n'
        "# HELP level A level.\n"
        "# TYPE level gauge\n"
        "level -4\n"
    )


def test_a_metric_without_samples_is_left_out() -> None:
    registry = Registry()
    registry.add(TOTAL, list)
    assert text(registry) == ""


@given(st.text(), st.text())
def test_any_label_value_and_help_come_back_as_they_were(value: str, about: str) -> None:
    registry = Registry()
    registry.add(Metric("m", Kind.GAUGE, about, ("label",)), lambda: [((value,), 1)])
    told = parse(text(registry))
    assert told.families["m"].help == about
    assert told.value("m", label=value) == 1


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_is_told_to_twelve_digits(number: float) -> None:
    registry = Registry()
    registry.add(LEVEL, lambda: [((), number)])
    told = parse(text(registry)).value("level")
    assert told == pytest.approx(number, rel=1e-11, nan_ok=True)


def test_large_counters_keep_every_digit() -> None:
    registry = Registry()
    registry.add(LEVEL, lambda: [((), 2**60 + 1)])
    assert f"level {2**60 + 1}\n" in text(registry)


def test_a_histograms_buckets_count_everything_up_to_their_bound() -> None:
    spread = Histogram((0.1, 1, 10))
    spread.add((0.1, 0.5), (2, 3))
    spread.add((10.0, 99.0), (1, 4))
    registry = Registry()
    registry.add(Metric("wait_seconds", Kind.HISTOGRAM, "Wait.", ("link",)), lambda: [(("l",), spread.value())])
    told = parse(text(registry))
    counts = [told.value("wait_seconds_bucket", link="l", le=bound) for bound in ("0.1", "1", "10", "+Inf")]
    assert counts == [2, 5, 6, 10]
    assert told.value("wait_seconds_count", link="l") == 10
    assert told.value("wait_seconds_sum") == pytest.approx(0.2 + 1.5 + 10 + 396)


def test_a_summary_tells_quantiles_sum_and_count() -> None:
    registry = Registry()
    value = SummaryValue(((0.5, 0.25), (1.0, math.pi)), 7.5, 3)
    registry.add(Metric("age_seconds", Kind.SUMMARY, "Age.", ("p",)), lambda: [(("0",), value)])
    told = parse(text(registry))
    assert told.value("age_seconds", p="0", quantile="0.5") == 0.25
    assert told.value("age_seconds_count", p="0") == 3
    assert told.value("age_seconds_sum", p="0") == 7.5


def test_one_name_is_declared_once() -> None:
    registry = Registry()
    registry.add(LEVEL, list)
    with pytest.raises(ValueError, match="level"):
        registry.add(Metric("level", Kind.COUNTER, "Another."), list)
