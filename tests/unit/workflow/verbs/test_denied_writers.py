"""Verbs name the deny ACLs that keep other writers out of a source, and `link delete` deletes these ACLs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.errors import Unreachable
from kmigrate.model.acls import Acl
from kmigrate.model.records import DeniedWriters, LinkRecord, TopicRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow import verbs
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.verbs import target_lost
from kmigrate.workflow.verbs.rollback import _let_in
from kmigrate.workflow.verbs.target_lost import denied_at_source
from kmigrate.workflow.verbs.way_back import denial_findings
from tests.fakes.acl_source import OURS, THEIRS, AclSource, asked, may_write
from tests.fakes.finishing import LINK, ROUTER, TOPIC, Connections, run
from tests.fakes.proposals import run_verb

ENTRY = may_write("User:ann", allow=False)
DENIED = DeniedWriters((ENTRY,), in_force=True)


@pytest.fixture(autouse=True)
def _asked() -> Iterator[None]:
    with asked():
        yield


def found_at(source: Any, link: LinkRecord = LINK, **reasons: list[str]) -> list[Finding]:
    return asyncio.run(denial_findings(source, link, reasons or {"t": []}, set()))


def test_the_plan_of_a_promote_names_the_writers_that_the_source_refuses_meanwhile() -> None:
    (found,) = found_at(AclSource())
    assert (found.level, found.ref) == ("ok", "writers-denied")
    assert "User:ann may not write it at s" in found.what
    assert "TOPIC_AUTHORIZATION_FAILED" in found.what
    assert "--set deny_writers=false" in found.next_step


def test_the_plan_of_a_promote_says_why_the_source_goes_on_to_take_writes() -> None:
    (found,) = found_at(AclSource({OURS, may_write("User:*", "*")}), t=[], u=[], final=["mapped"])
    assert (found.level, found.ref) == ("warn", "writers-not-denied")
    assert "writes of others to t, u after the flip: User:* may write" in found.what


def test_a_source_that_does_not_answer_is_named() -> None:
    class Away(AclSource):
        async def read_acls(self, node: int | None = None) -> frozenset[Acl] | None:
            raise Unreachable("no-answer", "s does not answer")

    (found,) = found_at(Away())
    assert (found.ref, found.what) == ("writers-not-denied", "who may write at s is not known: s does not answer")


@pytest.mark.parametrize(
    ("source", "link", "reasons"),
    [
        (AclSource(authorizer=False), LINK, {"t": []}),
        (AclSource({OURS}), LINK, {"t": []}),
        (AclSource(), LINK, {"t": ["mapped"]}),
        (AclSource(), replace(LINK, settings=replace(LINK.settings, deny_writers=False)), {"t": []}),
    ],
)
def test_nothing_is_said_where_nobody_is_denied(source: AclSource, link: LinkRecord, reasons: Any) -> None:
    assert found_at(source, link, **reasons) == []


def test_the_plan_of_a_rollback_names_the_writers_that_the_source_takes_again() -> None:
    (found,) = _let_in(LINK, replace(TOPIC, denied=DENIED))
    assert found.ref == "writers-let-in"
    assert "before the flip User:ann may write topic t at s again" in found.what
    assert _let_in(LINK, replace(TOPIC, denied=replace(DENIED, lifted_ms=5))) == []


class Estate(Connections):
    """An estate that has a source with an authorizer."""

    def __init__(self, source: AclSource, record: TopicRecord) -> None:
        super().__init__(LINK, record, ROUTER)
        self._source = source

    async def source(self, _: LinkRecord) -> tuple[Any, Any]:
        return self._source, self._source

    def delete(self) -> Any:
        return run(run_verb(verbs.delete_link(self, "l", 0.0)))  # type: ignore[arg-type]


def test_the_deletion_of_a_link_lets_the_writers_in_again() -> None:
    estate = Estate(source := AclSource({OURS, THEIRS, ENTRY}), replace(TOPIC, denied=DENIED))
    plan = estate.delete()
    assert "let User:ann write t at s again" in plan.changes
    assert source.rules == {OURS, THEIRS}
    assert estate.log.state.topics() == []


@pytest.mark.parametrize(("denied", "named"), [(DENIED, True), (replace(DENIED, lifted_ms=5), False)])
def test_the_deletion_of_a_link_names_entries_that_stay(denied: DeniedWriters, named: bool) -> None:
    plan = Estate(AclSource({ENTRY}, may_alter=False), replace(TOPIC, denied=denied)).delete()
    found = [each for each in plan.findings if each.ref == "writers-stay-denied"]
    assert bool(found) is named
    assert all("User:ann may still not write t at s" in each.what for each in found)
    assert all(str(ENTRY) in each.next_step for each in found)


def test_once_the_target_is_lost_the_entries_at_the_source_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {OURS, ENTRY, may_write("User:ann", "other", allow=False), may_write("User:bob", "t", allow=False)}

    async def read_acls(source: Any) -> frozenset[Acl] | None:
        return frozenset(rules) if source.authorizer else None

    monkeypatch.setattr(target_lost, "read_acls", read_acls)

    class Lost(AclSource):
        @property
        def settings(self) -> Any:
            return ClusterSettings("old", (("h", 1),))

    notes: Any = {("t", 0): None, ("t", 1): None}
    found = asyncio.run(denied_at_source(Lost(), notes))  # type: ignore[arg-type]
    assert [each.what for each in found] == [f"an ACL denies User:{name} to write t at old" for name in ("ann", "bob")]
    assert "--bootstrap-server h:1 --remove --force --deny-principal User:ann --operation Write" in found[0].next_step
    assert asyncio.run(denied_at_source(Lost(authorizer=False), notes)) == []  # type: ignore[arg-type]
