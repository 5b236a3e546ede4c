"""What is kept of an expression for the names that come later."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kmigrate.model.patterns import NamePattern
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.workflow.verbs.matching import mirror_matching_topics
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)


class Estate:
    """A source that has no topic yet."""

    def __init__(self) -> None:
        self.log = MemoryLog(LINK)

    async def source(self, _: LinkRecord) -> Any:
        return self, None

    async def refresh(self) -> Any:
        return SimpleNamespace(topics={})


def test_an_expression_is_kept_with_the_offsets_that_it_was_given_with_and_the_newest_word_counts() -> None:
    estate: Any = Estate()
    for offsets in ("mapped", "identical"):
        plan, _ = asyncio.run(mirror_matching_topics(estate, "l", ["orders-.*"], [], "earliest", offsets))
        assert plan.changes == (f"keep for later topics: orders-.* with {offsets} offsets",)
        link = estate.log.state.link("l")
        assert link is not None and link.topic_patterns == (NamePattern("orders-.*", offsets=offsets),)
