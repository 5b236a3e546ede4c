"""The names of a rehearsal, and the decisions about other links, which pass a rehearsal over."""

from __future__ import annotations

import pytest

from kmigrate.errors import Refused, UsageError
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.patterns import NamePattern, chosen_groups, chosen_topics
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord
from kmigrate.model.rehearsals import group_of, is_rehearsal, link_of, shadow_of, shadow_prefix
from kmigrate.model.routes import finished
from kmigrate.workflow.verbs.links import check_link_name, resolve_link
from tests.fakes.state_log import MemoryLog

WEST, EAST = ClusterRef("west", "h:1"), ClusterRef("east", "h:2")
REAL = LinkRecord("blue", "u", WEST, EAST, 1)
SHADOW = LinkRecord(link_of("ab12"), "v", WEST, EAST, 1)


def test_all_names_of_a_rehearsal_carry_its_token() -> None:
    assert SHADOW.name == "rehearsal-ab12"
    assert shadow_of(SHADOW.name, "orders") == "kmigrate-rehearsal-ab12-orders"
    assert group_of(SHADOW.name).startswith(shadow_prefix(SHADOW.name))
    assert not shadow_of(link_of("ab123"), "orders").startswith(shadow_prefix(SHADOW.name))
    assert is_rehearsal(SHADOW.name) and not is_rehearsal(REAL.name)


def test_no_expression_chooses_what_belongs_to_a_rehearsal() -> None:
    everything = [NamePattern(".*")]
    assert chosen_topics(everything, ["orders", shadow_of(SHADOW.name, "orders")]) == ["orders"]
    assert chosen_groups(everything, ["billing", group_of(SHADOW.name)]) == ["billing"]


def test_a_rehearsals_link_is_not_the_only_link() -> None:
    assert resolve_link(MemoryLog(REAL, SHADOW).state, None) == REAL
    assert resolve_link(MemoryLog(REAL, SHADOW).state, SHADOW.name) == SHADOW
    with pytest.raises(Refused, match="no link yet"):
        resolve_link(MemoryLog(SHADOW).state, None)


def test_routers_do_not_wait_for_a_rehearsal() -> None:
    done = LinkRecord("blue", "u", WEST, EAST, 1, finished_ms=5)
    promoted = TopicRecord("blue", "orders", TopicPhase.PROMOTED, 1)
    shadow = TopicRecord(SHADOW.name, shadow_of(SHADOW.name, "orders"), TopicPhase.MIRRORING, 1)
    assert finished(MemoryLog(done, SHADOW, promoted, shadow).state)
    other = TopicRecord("blue", "more", TopicPhase.MIRRORING, 1)
    assert not finished(MemoryLog(done, SHADOW, promoted, shadow, other).state)


def test_a_person_cannot_make_a_link_that_looks_like_a_rehearsals() -> None:
    with pytest.raises(UsageError, match="kmigrate rehearse"):
        check_link_name("rehearsal-mine")
