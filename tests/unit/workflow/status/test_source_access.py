"""The state of a promoted topic's source topic, as `status` shows it."""

from __future__ import annotations

import pytest

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import Closed, DeniedWriters, LatePolicy, PromoteTerms, TopicRecord, WayBack
from kmigrate.workflow.status.snapshot import _source_access
from tests.fakes.acl_source import may_write


@pytest.mark.parametrize(
    ("seal", "closed", "shown"),
    [
        (True, None, "closing"),
        (False, None, "open"),
        (True, Closed(""), "closing"),
        (True, Closed("", proven=True), "closed"),
        (False, Closed("", proven=True), "opening"),
        (True, Closed("", denied="no right"), "open: no right"),
        (False, Closed("", denied="no right"), "open: no right"),
    ],
)
def test_a_source_that_refused_to_be_closed_is_open_also_while_the_seal_is_taken_back(
    seal: bool, closed: Closed | None, shown: str
) -> None:
    terms = PromoteTerms(0, late=LatePolicy(seal=seal))
    assert _source_access(TopicRecord("l", "t", TopicPhase.PROMOTED, 1, terms=terms, closed=closed)) == shown
    assert _source_access(TopicRecord("l", "t", TopicPhase.FENCED, 1, terms=terms)) == ""


@pytest.mark.parametrize(
    ("denied", "shown"),
    [
        (None, "open"),
        (DeniedWriters((may_write("User:ann", allow=False),)), "open"),
        (DeniedWriters((may_write("User:ann", allow=False),), in_force=True), "denied to User:ann"),
        (DeniedWriters((may_write("User:ann", allow=False),), lifted_ms=5), "open"),
        (DeniedWriters(open="User:* may write"), "open: User:* may write"),
    ],
)
def test_the_source_of_a_topic_that_is_copied_back_names_who_is_denied_or_why_nobody_is(
    denied: DeniedWriters | None, shown: str
) -> None:
    record = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, way_back=WayBack({0: 1}), denied=denied)
    assert _source_access(record) == shown
