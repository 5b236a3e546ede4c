"""A promote puts the target's own configs back once, and does not overwrite later changes by a person."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import PartitionBarrier, PromoteTerms, ProvenTopic, Seal, TopicRecord, WayBack
from kmigrate.model.state import State
from kmigrate.workflow.promote.outcome import flipped, settle, turned
from tests.fakes.state_log import MemoryLog

FLIPPED = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, restore_configs={"retention.ms": "1"}, unsettled=True)


class Admin:
    def __init__(self) -> None:
        self.altered: list[Mapping[str, str]] = []

    async def alter_topic_configs(self, _: str, put: Mapping[str, str], remove: Collection[str] = ()) -> None:
        self.altered.append(put)

    async def delete_acls(self, _: Collection[Acl]) -> None: ...


class Behind(MemoryLog):
    """A state log whose reader has missed the newest record; a read to the end delivers the record."""

    def __init__(self, known: TopicRecord, now: TopicRecord) -> None:
        super().__init__(known)
        self._now = now

    async def read_to_end(self, timeout: float = 30.0) -> Any:
        await self.append(lambda _: self._now)
        return self.state


FENCED = replace(
    FLIPPED,
    phase=TopicPhase.FENCED,
    unsettled=False,
    barrier={0: PartitionBarrier(50, 1)},
    terms=PromoteTerms(1, way_back=True),
)


def test_a_flip_opens_the_way_back_that_its_terms_ask_for() -> None:
    assert flipped(FENCED, 9, ProvenTopic(1)).way_back == WayBack({0: 50})
    assert flipped(replace(FENCED, terms=PromoteTerms(1)), 9, ProvenTopic(1)).way_back is None


def test_a_sealed_source_ends_the_way_back_at_the_flip() -> None:
    """The seal would refuse the copy; the reason stands in the record."""
    way = flipped(replace(FENCED, seal=Seal("", {"r9": "quiet"})), 9, ProvenTopic(1)).way_back
    assert way is not None
    assert (way.open, way.ended) == (False, "the source was sealed in place of router quiet")


def test_a_later_promote_has_the_epoch_of_its_flip_and_the_first_promote_has_none() -> None:
    state = State(epoch=41)
    assert turned(replace(FLIPPED, generation=1), state).turned_epoch == 42
    assert turned(FLIPPED, state) == FLIPPED


def settled(log: MemoryLog) -> Admin:
    admin = Admin()
    asyncio.run(settle(FLIPPED, cast("Any", log), cast("Any", admin)))
    return admin


def test_what_is_flipped_gets_its_own_configs_and_that_is_written_down() -> None:
    log = MemoryLog(FLIPPED)
    assert settled(log).altered == [{"retention.ms": "1"}]
    assert log.state.topic("l", "t") == replace(FLIPPED, unsettled=False)


def test_a_controller_that_stood_still_does_not_take_back_what_a_person_set_when_another_one_had_settled_it() -> None:
    done = replace(FLIPPED, unsettled=False)
    log = Behind(FLIPPED, done)
    assert settled(log).altered == []
    assert log.state.topic("l", "t") == done
