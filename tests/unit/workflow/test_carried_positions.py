"""Which of a group's positions go along: none is dropped that the target will have a place for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.positions import CommittedOffset
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.offsetmap import OffsetMap, Run
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.workflow import controller, handover
from kmigrate.workflow.handover import Written, hand_over
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.test_promote import LINK

SOURCE, TARGET = cast("Any", object()), cast("Any", object())
Positions = dict[tuple[str, int], CommittedOffset]


class Target:
    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return dict.fromkeys(wanted, LogOffset(0, 100, 0))


def carried(
    monkeypatch: pytest.MonkeyPatch, on_source: Positions, starts: Collection[str], unready: Collection[str]
) -> tuple[Written, Positions]:
    target = Target()
    on_target: Positions = {}

    async def read(client: Any, *_: Any, **__: Any) -> Positions:
        return on_target if client is target else on_source

    async def write(client: Any, group: str, wanted: Positions) -> dict[tuple[str, int], str]:
        on_target.update(wanted)
        return {}

    async def outsiders() -> Sequence[GroupMember]:
        return ()

    async def maps_of(topic: str) -> dict[int, OffsetMap]:
        return {0: OffsetMap([Run(0, 0, 1_000)])}

    monkeypatch.setattr(handover, "read_positions", read)
    monkeypatch.setattr(handover, "write_positions", write)
    made = hand_over(
        "g",
        starts={topic: {0: 0} for topic in starts},
        unready=unready,
        maps_of=maps_of,
        outsiders=outsiders,
        source=SOURCE,
        target=cast("Any", target),
        timeout=1.0,
    )
    return asyncio.run(made), on_target


def test_positions_in_a_topic_whose_copy_has_not_begun_keep_the_group_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {("copied", 0): CommittedOffset(7, ""), ("padded", 0): CommittedOffset(9, "")}
    with pytest.raises(Refused) as caught:
        carried(monkeypatch, both, ["copied"], ["padded", "another"])
    assert caught.value.ref == "topic-not-ready"
    assert "padded" in caught.value.what
    assert "another" not in caught.value.what


def test_positions_in_a_topic_that_nobody_mirrors_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {("copied", 0): CommittedOffset(7, ""), ("foreign", 0): CommittedOffset(9, "")}
    written, on_target = carried(monkeypatch, both, ["copied"], ["padded"])
    assert written == {"copied": {0: 7}}
    assert on_target == {("copied", 0): CommittedOffset(7, "")}


def test_a_topic_mirrored_while_a_groups_members_join_anew_counts_among_those_whose_copy_has_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may take a minute; its positions would be dropped in silence."""
    group = GroupRecord("l", "g", GroupPhase.PROMOTING, 1, mode=GroupMode.FOLLOW)
    new = TopicRecord("l", "new", TopicPhase.INITIALISING, 1, partitions=1)
    log = MemoryLog(LINK, group)
    given: dict[str, Any] = {}

    async def hand_over(_: str, **told: Any) -> Written:
        given.update(told)
        return {}

    class Joining:
        def __init__(self, link: str, group: str, log: MemoryLog, source: Any, carry: Any, *_: Any) -> None:
            self._carry = carry

        async def run(self) -> None:
            await log.append(lambda state: new)
            await self._carry()

    async def source(_: LinkRecord) -> tuple[Any, Any]:
        return SOURCE, SOURCE

    monkeypatch.setattr(controller, "hand_over", hand_over)
    monkeypatch.setattr(controller, "FollowHandover", Joining)
    estate = SimpleNamespace(log=log, target=TARGET, target_admin=None, source=source)
    asyncio.run(controller.Controller(cast("Any", estate), "c")._hand_over(group))
    assert given["unready"] == {"new"}
