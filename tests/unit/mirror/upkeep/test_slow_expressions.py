"""A mirror reports expressions that the mirror cannot use, and picks up nothing by such an expression."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.upkeep.patterns import Pickup
from kmigrate.model.patterns import NamePattern
from kmigrate.model.records import ClusterRef, LinkRecord
from tests.fakes.state_log import MemoryLog

SLOW = NamePattern(r"([a-z]+-?)+\.v2")
LINK = LinkRecord("l", "u", ClusterRef("s", "h:1", "S"), ClusterRef("t", "h:2", "T"), 1, topic_patterns=(SLOW,))


class Source:
    async def refresh(self, topics: object = None) -> SimpleNamespace:
        return SimpleNamespace(topics={"a" * 60: SimpleNamespace(partitions={0: None})})


def test_an_expression_kept_by_an_older_version_that_may_take_for_ever_is_named_and_picks_nothing_up() -> None:
    log = MemoryLog(LINK)
    nobody = cast("Any", None)
    mirrored = MirroredLink(cast("Any", Source()), nobody, nobody, nobody, "l", cast("Any", log), "me", nobody)
    notes = asyncio.run(Pickup(mirrored).look(LINK))
    assert [note.split(" ")[:2] for note in notes] == [["slow-regex:", SLOW.include]]
    assert log.state.topics() == []
