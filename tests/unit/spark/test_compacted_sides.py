"""The side on which a cleaner may have removed records: for a mirrored topic the source alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.parity.plan import CLEANED, BucketDigest, BucketKey, TopicRange
from kmigrate.spark import parity
from kmigrate.spark.options import KafkaOptions


def admin(
    compacted: Callable[[Mapping[str, str], set[str]], set[str]],
) -> Callable[[object, Mapping[str, str]], AbstractContextManager[SimpleNamespace]]:
    """Return a stand-in for JavaAdmin that answers which topics of a cluster are compacted."""

    @contextmanager
    def opened(_: object, settings: Mapping[str, str]) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(compacted=lambda topics: compacted(settings, topics))

    return opened


@pytest.mark.parametrize(("kept", "found"), [(True, {"s"}), (False, {"s", "t"})])
def test_a_mirrored_copy_that_somebody_compacts_is_not_judged_by_what_is_left_of_it(
    kept: bool, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise only the newest record of each key would be compared, and lost records would go unnoticed."""

    def compacted(settings: Mapping[str, str], topics: set[str]) -> set[str]:
        return topics & ({"s"} if settings["bootstrap.servers"] == "source:1" else {"s", "t"})

    monkeypatch.setattr(parity, "JavaAdmin", admin(compacted))
    ranges = tuple(TopicRange(topic, 0, 0, 9, kept=kept) for topic in ("s", "t", "u"))
    options = KafkaOptions("source:1"), KafkaOptions("target:1")
    assert parity._Check(cast("Any", None), ranges, *options, None).compacted({"s", "t", "u"}) == found


def digests(*buckets: tuple[str, int], of: int = 1) -> dict[BucketKey, BucketDigest]:
    return {BucketKey(topic, 0, bucket): BucketDigest(1, 0, 0, of, of, 1) for topic, bucket in buckets}


def test_only_what_a_cleaner_has_worked_on_is_compared_by_its_newest_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "JavaAdmin", admin(lambda _, topics: topics & {"compacted"}))
    ranges = (
        TopicRange("below", 0, 0, 9_000, cleaned_to=1_500),
        TopicRange("above", 0, 0, 9_000, cleaned_to=1_500),
        TopicRange("before", 0, 2_000, 9_000, cleaned_to=1_500),
        TopicRange("whole", 0, 0, 9_000, cleaned_to=CLEANED),
        TopicRange("compacted", 0, 0, 9_000, cleaned_to=1_500),
        TopicRange("plain", 0, 0, 9_000),
    )
    check = parity._Check(cast("Any", None), ranges, KafkaOptions("source:1"), KafkaOptions("target:1"), None)
    assert check.size == 1_000
    differ = [("below", 1), ("above", 2), ("before", 2), ("whole", 8), ("compacted", 8), ("plain", 0)]
    found = check.cleaned(digests(*differ), digests(*differ, of=2))
    assert {key.topic: (each.start, each.end) for key, each in found.items()} == {
        "below": (0, 1_500),
        "whole": (0, 9_000),
        "compacted": (0, 9_000),
    }


def test_what_supersedes_a_record_is_looked_for_as_far_as_a_cleaner_has_seen() -> None:
    mapped = OffsetMap([Run(0, 100, 50)])
    ranges = [
        TopicRange("t", 0, 0, 10, cleaned_to=20),
        TopicRange("t", 1, 0, 10, mapped, cleaned_to=20),
        TopicRange("t", 2, 0, 10, mapped, cleaned_to=CLEANED),
    ]
    assert [list(side.values()) for side in parity._heeded(ranges)] == [[20, 20, CLEANED], [20, 120, CLEANED]]
