"""The log start of a mirrored partition on the target is checked again and again, whatever the start is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from kmigrate.cluster.client import EARLIEST, LATEST, LogOffset
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import Diverged
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep.align import Aligner
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.records import CopyIdentity, TopicRecord

RECORD = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=3, starts={0: 0, 1: 7, 2: 9})


class Target:
    def __init__(self, *begins: int) -> None:
        self.begins = dict(enumerate(begins))

    async def list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
        assert set(wanted.values()) == {EARLIEST}
        return {key: LogOffset(0, self.begins[key[1]], 0) for key in wanted}

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        self.begins.update(before)
        return {partition: (0, offset) for partition, offset in before.items()}


def context(source: Any, target: Any, settings: LinkSettings | None = None) -> CopyContext:
    identity, of_link = CopyIdentity(1, 0), settings or LinkSettings()
    return CopyContext(source, target, identity, cast("Any", None), MirrorSettings(), link_settings=lambda: of_link)


class Absent:
    """A source that does not show the topic."""

    async def topic(self, name: str) -> None: ...


def aligner(target: Target) -> Aligner:
    return Aligner(context(Absent(), target))


def test_a_log_start_that_a_broker_forgot_is_moved_again() -> None:
    target = Target(0, 7, 0)
    asyncio.run(aligner(target).recheck(RECORD, {}))
    assert target.begins == RECORD.starts


@pytest.mark.parametrize("begins", [(1, 7, 9), (0, 8, 9)])
def test_records_that_somebody_deleted_on_the_target_are_missed_also_where_the_log_began_at_zero(
    begins: tuple[int, int, int],
) -> None:
    with pytest.raises(Diverged, match="log-start-too-high"):
        asyncio.run(aligner(Target(*begins)).recheck(RECORD, {}))


class Logs:
    """A cluster with topic `t`, given by log starts and log ends of its partitions."""

    def __init__(self, begins: dict[int, int], ends: dict[int, int], topic_id: str = "") -> None:
        self.begins, self.ends, self.topic_id = begins, ends, topic_id
        self.refuses = 0

    async def topic(self, name: str) -> TopicInfo:
        return TopicInfo(name, UUID(self.topic_id) if self.topic_id else None, {})

    async def list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
        of = {EARLIEST: self.begins, LATEST: self.ends}
        return {key: LogOffset(0, of[what][key[1]], 0) for key, what in wanted.items()}

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        if self.refuses:
            return dict.fromkeys(before, (self.refuses, -1))
        self.begins.update(before)
        return {partition: (0, offset) for partition, offset in before.items()}


def followed(source: Logs, target: Logs, *, looks: int, settings: LinkSettings | None = None) -> None:
    made, before = Aligner(context(source, target, settings)), dict[int, int]()
    for _ in range(looks):
        before = dict(asyncio.run(made.recheck(RECORD, before)))


STARTS, ENDS = {0: 0, 1: 7, 2: 9}, {0: 100, 1: 100, 2: 100}


def test_what_the_source_has_deleted_is_deleted_from_the_copy_at_the_next_look() -> None:
    source, target = Logs({0: 60, 1: 7, 2: 50}, ENDS), Logs(dict(STARTS), ENDS)
    followed(source, target, looks=1)
    assert target.begins == STARTS, "a reader of both clusters may have seen the source before"
    followed(source, target, looks=2)
    assert target.begins == {0: 60, 1: 7, 2: 50}
    followed(source, target, looks=2)
    assert target.begins == {0: 60, 1: 7, 2: 50}


def test_a_copy_that_has_not_come_to_the_sources_beginning_keeps_what_it_has() -> None:
    """The target's log start moves only where the copy reaches beyond the source's log start.

    Otherwise a range may be lost, and a person decides about the range.
    """
    target = Logs(dict(STARTS), {0: 60, 1: 60, 2: 60})
    followed(Logs({0: 60, 1: 61, 2: 59}, ENDS), target, looks=2)
    assert target.begins == {0: 0, 1: 7, 2: 59}


def test_nothing_is_deleted_for_a_topic_that_was_made_anew_or_where_a_person_wants_all_of_it() -> None:
    record = UUID(int=5)
    other = Logs({0: 60, 1: 60, 2: 60}, ENDS, str(UUID(int=6)))
    target = Logs(dict(STARTS), ENDS)
    made = Aligner(context(other, target))
    for _ in range(2):
        assert asyncio.run(made.recheck(replace(RECORD, source_topic_id=str(record)), {0: 60})) == {}
    followed(Logs({0: 60, 1: 60, 2: 60}, ENDS), target, looks=2, settings=LinkSettings(follow_log_start=False))
    assert target.begins == STARTS


def test_a_target_that_refuses_it_keeps_nobody() -> None:
    target = Logs(dict(STARTS), ENDS)
    target.refuses = 29
    followed(Logs({0: 60, 1: 60, 2: 60}, ENDS), target, looks=3)
    assert target.begins == STARTS


MAPPED = replace(RECORD, mapped=True, target_starts={0: 0, 1: 5, 2: 40})
PLACES = {0: 33, 1: 44, 2: 55}


def followed_mapped(begins: dict[int, int], places: Mapping[int, int] = PLACES) -> dict[int, int]:
    """Return the target's log starts after two looks at a source that begins at offset 60.

    `places` says by partition where the record of source offset 60 stands on the target.
    """
    source, target = Logs({0: 60, 1: 60, 2: 60}, ENDS), Logs(dict(begins), ENDS)

    def place(key: tuple[str, int], offset: int) -> int:
        assert (key[0], offset) == ("t", 60)
        return places.get(key[1], -1)

    made = Aligner(context(source, target), target_offset=place)
    before: dict[int, int] = {}
    for _ in range(2):
        before = dict(asyncio.run(made.recheck(MAPPED, before)))
    return target.begins


def test_a_mapped_copy_is_cut_where_the_map_puts_the_sources_log_start() -> None:
    assert followed_mapped({0: 0, 1: 5, 2: 40}) == PLACES


def test_what_a_mapped_partitions_target_held_before_its_mirror_stays() -> None:
    assert followed_mapped({0: 0, 1: 4, 2: 0}) == {0: 33, 1: 4, 2: 0}


def test_a_place_that_is_not_known_or_not_copied_yet_moves_nothing() -> None:
    assert followed_mapped({0: 0, 1: 5, 2: 40}, {0: 100, 1: -1}) == {0: 0, 1: 5, 2: 40}


def test_after_a_rollback_the_targets_log_may_begin_wherever_its_own_retention_has_left_it() -> None:
    resumed = replace(RECORD, resumed={0: 50, 1: 50, 2: 50})
    target = Target(45, 7, 50)
    asyncio.run(aligner(target).recheck(resumed, {}))
    assert target.begins == {0: 45, 1: 7, 2: 50}
    with pytest.raises(Diverged, match="log-start-too-high"):
        asyncio.run(aligner(Target(45, 7, 51)).recheck(resumed, {}))
