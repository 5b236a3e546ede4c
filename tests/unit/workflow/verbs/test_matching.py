"""A link keeps expressions for names that appear later."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import Refused
from kmigrate.model.patterns import NamePattern
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.workflow.verbs.matching import mirror_matching_groups, mirror_matching_topics
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)


class Connections:
    """Connections to a source without topics."""

    def __init__(self, link: LinkRecord = LINK) -> None:
        self.log = MemoryLog(link)

    async def source(self, _: LinkRecord) -> Any:
        return self, self

    metadata = SimpleNamespace(brokers={})

    async def groups(self) -> Any:
        return {}

    async def refresh(self, *_: object) -> Any:
        return SimpleNamespace(topics={})


def test_an_expression_is_kept_with_the_offsets_that_it_was_given_with_and_the_newest_word_counts() -> None:
    connections: Any = Connections()
    for offsets in ("mapped", "identical"):
        look = mirror_matching_topics(connections, "l", ["orders-.*"], [], "earliest", offsets)
        plan = asyncio.run(run_verb(look))
        assert plan.changes == (f"keep for later topics: orders-.* with {offsets} offsets",)
        link = connections.log.state.link("l")
        assert link is not None and link.topic_patterns == (NamePattern("orders-.*", offsets=offsets),)


def test_an_expression_of_groups_keeps_its_automatic_promotes_until_a_person_says_otherwise() -> None:
    connections: Any = Connections()
    kept = []
    for auto in (True, None, False, None):
        asyncio.run(run_verb(mirror_matching_groups(connections, "l", ["orders-.*"], [], auto=auto)))
        link = connections.log.state.link("l")
        assert link is not None
        kept.append([pattern.auto for pattern in link.group_patterns])
    assert kept == [[True], [True], [False], [False]]
    assert str(NamePattern("orders-.*", auto=True)) == "orders-.*, promoted automatically"


VERBS = [
    lambda connections, **flags: run_verb(
        mirror_matching_topics(connections, "l", ["orders-.*"], [], "earliest", "auto"), **flags
    ),
    lambda connections, **flags: run_verb(mirror_matching_groups(connections, "l", ["orders-.*"], []), **flags),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("change", [{"finished_ms": 5}, {"deleting_ms": 5}])
def test_a_link_that_is_finished_or_being_deleted_is_given_no_expressions(verb: Any, change: dict[str, int]) -> None:
    """A finished link, or a link that is being deleted, accepts no expressions.

    A finished link picks up no later names, so the answer would promise too much. During a delete a name that is
    picked up would keep the delete from ending.
    """
    over = replace(LINK, **change)  # type: ignore[arg-type]
    for plan in (True, False):
        connections: Any = Connections(over)
        with pytest.raises(Refused) as caught:
            asyncio.run(verb(connections, plan=plan))
        assert caught.value.ref == ("link-finished" if over.finished_ms else "being-deleted")
        assert connections.log.state.link("l") == over
    meanwhile: Any = Connections()
    meanwhile.log.meanwhile(lambda _: over)
    with pytest.raises(Refused):
        asyncio.run(verb(meanwhile))
    assert meanwhile.log.state.link("l") == over


@pytest.mark.parametrize("verb", VERBS)
def test_an_expression_that_a_finished_link_has_already_is_no_error(verb: Any) -> None:
    """A playbook can be run again, because an expression that the finished link already has is accepted."""
    connections: Any = Connections()
    asyncio.run(verb(connections))
    link = connections.log.state.link("l")
    assert link is not None
    finished = replace(link, finished_ms=5)
    connections.log._put(link.key, finished)
    asyncio.run(verb(connections))
    assert connections.log.state.link("l") == finished
