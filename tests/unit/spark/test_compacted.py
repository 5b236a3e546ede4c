"""The pairs of newest records of a key that are judged."""

from __future__ import annotations

from pyspark.sql import Row

from kmigrate.spark.compacted import _unexplained


def newest(at: int, value: int | None = 1) -> Row:
    return Row(at=at, value_hash=value)


def test_records_at_one_place_are_judged_together() -> None:
    assert _unexplained(newest(7), newest(7, 2)) == (newest(7), newest(7, 2))


def test_at_different_places_the_older_one_is_superseded() -> None:
    assert _unexplained(newest(9), newest(7)) == (newest(9), None)
    assert _unexplained(newest(7), newest(9)) == (None, newest(9))


def test_a_key_that_one_side_has_not_is_judged() -> None:
    assert _unexplained(newest(9), None) == (newest(9), None)
    assert _unexplained(None, newest(9)) == (None, newest(9))


def test_a_record_without_a_value_counts_as_any_other() -> None:
    assert _unexplained(newest(9, None), newest(9)) == (newest(9, None), newest(9))
    assert _unexplained(newest(9, None), newest(7)) == (newest(9, None), None)
