"""Large presences are written in parts, and every reader ends with the presence that was said, or knows better."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.presences import (
    GroupReport,
    JoinTerms,
    MirrorPresence,
    PartitionProgress,
    RouterPresence,
    Upkept,
)
from kmigrate.state import parts
from kmigrate.state.codec import PresenceReader, PresenceWriter, StrayRecordError

SLICES = 32


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the writer, in seconds, which a test moves."""
    now = [100.0]
    monkeypatch.setattr(parts, "monotonic", lambda: now[0])
    return now


def mirror(topics: int = 1_000, **fields: Any) -> MirrorPresence:
    copied = {f"t{number}": {0: PartitionProgress(5)} for number in range(topics)}
    given = {"topics": copied, "generation": 4, **fields}
    return MirrorPresence("m", "l", 7, True, 1_000, **given)


def moved(said: MirrorPresence, topics: dict[str, PartitionProgress]) -> MirrorPresence:
    return replace(said, topics={**said.topics, **{name: {0: each} for name, each in topics.items()}})


def stored(writer: PresenceWriter, said: MirrorPresence | RouterPresence) -> bytes:
    value = writer.write(said)
    writer.stored(said.key)
    return value


def test_a_change_of_one_topic_among_a_thousand_costs_a_slice_and_the_change(clock: list[float]) -> None:
    writer, reader, said = PresenceWriter(), PresenceReader(), mirror()
    whole = stored(writer, said)
    assert reader.read(whole) == said
    clock[0] += 0.1
    said = moved(said, {"t7": PartitionProgress(6, problem="stopped")})
    change = stored(writer, said)
    assert len(change) < 1_000 < len(whole) / 20
    assert reader.read(change) == said
    clock[0] += 1.0
    later = stored(writer, said)
    assert len(later) < len(whole) / 10, "a slice"
    assert reader.read(later) == said


def test_who_begins_later_knows_all_after_every_slice_and_counts_on_nothing_before(clock: list[float]) -> None:
    writer, reader, said = PresenceWriter(), PresenceReader(), mirror(upkeep={"t1": Upkept(1)})
    stored(writer, said)
    for number in range(SLICES):
        clock[0] += 1.0
        said = moved(said, {f"t{number}": PartitionProgress(9)})
        read = reader.read(stored(writer, said))
        assert isinstance(read, MirrorPresence)
        if number < SLICES - 1:
            assert (read.applied, read.generation) == (-1, -1)
    assert read == said


def test_who_misses_a_part_begins_anew(clock: list[float]) -> None:
    writer, reader, said = PresenceWriter(), PresenceReader(), mirror()
    reader.read(stored(writer, said))
    stored(writer, moved(said, {"t1": PartitionProgress(6, problem="stopped")}))
    read = reader.read(stored(writer, said))
    assert isinstance(read, MirrorPresence)
    assert read.applied == -1


def test_a_part_that_was_perhaps_not_stored_is_written_again_with_all_its_changes(clock: list[float]) -> None:
    said = mirror()
    changed = moved(said, {"t1": PartitionProgress(6, problem="stopped")})
    last = moved(changed, {"t2": PartitionProgress(6, problem="stopped")})
    for arrived in (True, False):
        writer, reader = PresenceWriter(), PresenceReader()
        reader.read(stored(writer, said))
        uncertain = writer.write(changed)
        if arrived:
            reader.read(uncertain)
        assert reader.read(stored(writer, last)) == last


def test_routine_progress_of_very_many_topics_waits_for_its_slice_and_a_problem_does_not(clock: list[float]) -> None:
    writer, reader, said = PresenceWriter(), PresenceReader(), mirror()
    reader.read(stored(writer, said))
    said = moved(said, {name: PartitionProgress(6) for name in said.topics})
    said = moved(said, {"t999": PartitionProgress(6, problem="stopped")})
    read = reader.read(stored(writer, said))
    assert isinstance(read, MirrorPresence)
    assert read.topics["t999"] == said.topics["t999"]
    assert sum(read.topics[name] == said.topics[name] for name in said.topics) == parts._MOST_ROUTINE + 1
    for _ in range(SLICES):
        clock[0] += 1.0
        read = reader.read(stored(writer, said))
    assert read == said


def test_a_presence_that_becomes_small_is_whole_again(clock: list[float]) -> None:
    writer, reader = PresenceWriter(), PresenceReader()
    reader.read(stored(writer, mirror()))
    small = mirror(3)
    assert b'"part"' not in writer.write(small)
    assert reader.read(stored(writer, small)) == small
    assert reader.read(stored(writer, mirror())) == mirror()


def test_topics_that_come_and_go_are_the_same_for_the_writer_and_every_reader(clock: list[float]) -> None:
    rnd = random.Random(3)
    writer, first, late = PresenceWriter(), PresenceReader(), PresenceReader()
    said = mirror(400)
    for at in range(120):
        clock[0] += rnd.choice((0.1, 0.6, 1.2))
        names = rnd.sample(range(600), 5)
        topics = dict(said.topics)
        for number in names:
            if topics.pop(f"t{number}", None) is None or rnd.random() < 0.5:
                topics[f"t{number}"] = {0: PartitionProgress(at)}
        said = replace(said, topics=topics)
        value = stored(writer, said)
        assert first.read(value) == said
        read = late.read(value) if at >= 20 else None
    assert read == said


def test_a_routers_reports_on_thousands_of_groups_are_divided_too(clock: list[float]) -> None:
    groups = {f"g{number}": GroupReport(members=("m",)) for number in range(2_000)}
    joins = {"g1": (JoinTerms("app", 45_000),)}
    said = RouterPresence("i", "r", 7, 500, groups=groups, holds_ms={"topic/l/t": {0: 1.5}}, joins=joins)
    writer, reader = PresenceWriter(), PresenceReader()
    whole = stored(writer, said)
    assert reader.read(whole) == said
    said = replace(said, groups={**groups, "g7": GroupReport(in_flight=1)}, connections=3)
    change = stored(writer, said)
    assert len(change) < len(whole) / 10
    assert reader.read(change) == said
    late = PresenceReader().read(change)
    assert isinstance(late, RouterPresence)
    assert late.applied == -1


def test_a_part_of_another_kind_is_a_stray() -> None:
    with pytest.raises(StrayRecordError):
        PresenceReader().read(
            b'{"kind":"ControllerPresence","instance":"c","applied":1,"active":true,"interval_ms":5,'
            b'"part":{"number":0,"slices":1}}'
        )
