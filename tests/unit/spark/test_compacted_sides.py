"""Whose cleaner may have taken records away: of a mirrored topic the source's alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from kmigrate.parity.plan import TopicRange
from kmigrate.spark import parity
from kmigrate.spark.source import KafkaOptions


@pytest.mark.parametrize(("kept", "found"), [(True, {"s"}), (False, {"s", "t"})])
def test_a_mirrored_copy_that_somebody_compacts_is_not_judged_by_what_is_left_of_it(
    kept: bool, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else records of a topic that keeps all of them were missing, and the newest of each key found equal."""

    def compacted(_: object, settings: Mapping[str, str], topics: set[str]) -> set[str]:
        return topics & ({"s"} if settings["bootstrap.servers"] == "source:1" else {"s", "t"})

    monkeypatch.setattr(parity, "compacted_topics", compacted)
    ranges = tuple(TopicRange(topic, 0, 0, 9, kept=kept) for topic in ("s", "t", "u"))
    options = KafkaOptions("source:1"), KafkaOptions("target:1")
    assert parity._Check(cast("Any", None), ranges, *options, None).compacted({"s", "t", "u"}) == found
