"""Failures of Spark in kmigrate's words."""

from __future__ import annotations

from kmigrate.spark.parity import _explained


def test_a_heap_that_is_too_small_is_named_with_the_setting_that_makes_the_heap_larger() -> None:
    trace = "Job aborted due to stage failure: Lost task 0.0\njava.lang.OutOfMemoryError: Java heap space\n\tat a.B.c\n"
    error = _explained(RuntimeError(trace))
    assert error.ref == "parity-out-of-memory"
    assert "Java heap space" in error.what
    assert "more heap than docs/spark.md names" in error.next_step
    assert "--conf spark.driver.memory=" in error.next_step
