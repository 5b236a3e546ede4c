"""A promote names the groups that it leaves behind, and such groups do not prevent the promote."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.errors import Refused, Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, PromoteTerms, TopicRecord
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.verbs import promote
from kmigrate.workflow.verbs.promote import promote_topics
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.groups.test_following import Source
from tests.unit.workflow.promote.test_topic import LINK

TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)


class Admin:
    """An admin client of a source with the given groups; all groups read the topics that its cluster names."""

    def __init__(self, *groups: str) -> None:
        self._groups = groups

    async def groups(self) -> dict[str, str]:
        return dict.fromkeys(self._groups, "empty")


class SilentAdmin(Admin):
    async def groups(self) -> dict[str, str]:
        raise Refused("not-authorized", "list consumer groups: not allowed", still_true="")


class Logs(Source):
    """A source whose logs begin at `begin`; with −1 no broker answers."""

    begin = 0

    async def list_offsets(self, wanted: Any) -> dict[Any, LogOffset]:
        if self.begin < 0:
            raise Unreachable("no-leader", "nobody answers")
        return dict.fromkeys(wanted, LogOffset(0, self.begin, 0))


def planned(
    monkeypatch: pytest.MonkeyPatch, admin: Admin, *records: Record, reads: str = "t", target_begins: int = 0
) -> Plan:
    async def nobody(*_: object) -> list[str]:
        return []

    async def source(_: object) -> tuple[Source, Admin]:
        return Logs(positions=(reads,)), admin

    monkeypatch.setattr(promote, "look_for_direct_writers", nobody)
    target = Logs(positions=())
    target.begin = target_begins
    connections = cast(
        "Any", SimpleNamespace(log=MemoryLog(LINK, TOPIC, *records), source=source, target=target, target_admin=None)
    )
    return asyncio.run(run_verb(promote_topics(connections, "l", ["t"], PromoteTerms(1)), plan=True))


def test_a_promote_names_the_groups_that_read_the_topic_and_are_not_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(monkeypatch, Admin("x", "billing", "console-consumer-7"))
    (finding,) = made.findings
    assert (finding.level, finding.ref) == ("warn", "group-not-mirrored")
    assert finding.what == "groups that read t and are not mirrored lose their place: billing, x"
    assert made.warnings == [f"{finding.what} (before the promote: kmigrate group mirror --link l billing x)"]
    assert made.changes == ("promote t",)


def test_groups_that_are_promoted_or_read_something_else_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    promoted = GroupRecord("l", "x", GroupPhase.PROMOTED, 1, mode=GroupMode.HOLD, left_at={"t": {0: 5}})
    assert planned(monkeypatch, Admin("x"), promoted).findings == ()
    assert planned(monkeypatch, Admin("y"), reads="another").findings == ()


def test_a_source_that_does_not_tell_its_groups_does_not_keep_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(monkeypatch, SilentAdmin())
    assert [finding.ref for finding in made.findings] == ["readers-unknown"]
    assert made.changes == ("promote t",)


def test_a_copy_whose_beginning_is_gone_is_named_before_it_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = planned(monkeypatch, Admin(), target_begins=7).findings
    assert (finding.level, finding.ref) == ("warn", "copy-cut")
    assert "t-0: copy-cut: offsets 0 to 6 are gone on the target" in finding.what
    assert planned(monkeypatch, Admin(), target_begins=-1).findings == (), "who cannot be asked keeps no topic"
