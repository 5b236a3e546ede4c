"""The samples of the page's plots: the whole migration in a fixed room."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.web.history import History, Sample, sample_of
from kmigrate.workflow.status.progress import ProgressTracker
from tests.fakes.status import migration, partition_status, topic_status


def sample(at_ms: int) -> Sample:
    return Sample(at_ms, at_ms, 1.0, None)


def test_samples_stay_in_their_room_and_cover_everything_from_the_beginning_to_now() -> None:
    history = History()
    for second in range(0, 40_000, 2):
        history.add(sample(second * 1000))
    samples = history.as_json()["samples"]
    assert 300 <= len(samples) <= 600
    assert samples[0]["at_ms"] == 0
    assert 0 <= 39_998_000 - samples[-1]["at_ms"] < history.spacing_ms
    steps = {b["at_ms"] - a["at_ms"] for a, b in pairwise(samples)}
    assert max(steps) <= 2 * history.spacing_ms


def test_a_sample_too_near_to_the_last_is_left_out_and_a_clock_set_back_begins_anew() -> None:
    history = History()
    for at_ms in (10_000, 10_500, 12_000, 3_000, 5_000):
        history.add(sample(at_ms))
        if at_ms == 12_000:
            assert [each.at_ms for each in history.samples] == [10_000, 12_000]
    assert [each.at_ms for each in history.samples] == [3_000, 5_000]


def test_an_unknown_figure_is_none_and_never_a_part_of_a_sum() -> None:
    shot = migration(0, 0)
    tracker = ProgressTracker()
    first = sample_of(shot, tracker.add(shot, 0.0))
    assert first.copied_per_s is None
    assert first.lag == sum(topic.lag for topic in shot.topics)
    unknown = topic_status("dark", TopicPhase.MIRRORING, partition_status(0, 10, -1))
    dark = replace(shot, topics=(*shot.topics, unknown))
    assert sample_of(dark, tracker.add(dark, 1.0)).lag is None
