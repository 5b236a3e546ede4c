"""`group mirror` on a log in memory: which link a group is of, and whether its members may follow."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.positions import CommittedOffset
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode, TopicPhase
from kmigrate.model.records import LinkRecord, Record, TopicRecord
from kmigrate.workflow import verbs
from kmigrate.workflow.verbs import modes
from tests.fakes.finishing import LINK, run
from tests.fakes.state_log import MemoryLog

TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})


class _Admin:
    """A source with one group."""

    async def groups(self) -> dict[str, str]:
        return {"g": "classic"}

    async def describe_groups(self, groups: list[str]) -> dict[str, Any]:
        return {group: SimpleNamespace(kind="classic") for group in groups}


class _Estate:
    def __init__(self, *records: Record) -> None:
        self.log = MemoryLog(*records)

    async def source(self, _: LinkRecord) -> tuple[Any, _Admin]:
        return None, _Admin()


@pytest.fixture(autouse=True)
def positions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: Any, **__: Any) -> dict[tuple[str, int], CommittedOffset]:
        return {("t", 0): CommittedOffset(900, "")}

    monkeypatch.setattr(modes, "read_positions", read)


def mirror(estate: _Estate, link: str, mode: str = "hold") -> Any:
    return verbs.mirror_groups(estate, link, ["g"], mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "phase", [TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED, TopicPhase.PROMOTED]
)
def test_a_group_holds_whose_topic_the_source_gets_nothing_of_in_a_moment(phase: TopicPhase) -> None:
    estate = _Estate(LINK, replace(TOPIC, phase=phase))
    with pytest.raises(Refused) as caught:
        run(mirror(estate, "l", "follow"))
    assert caught.value.ref == "cannot-follow"
    assert f"t is {phase}" in caught.value.what
    assert run(mirror(estate, "l", "auto")).applied
    group = estate.log.state.group("l", "g")
    assert group is not None
    assert group.mode is GroupMode.HOLD


def test_a_group_follows_whose_topic_is_mirrored_at_the_same_offsets() -> None:
    estate = _Estate(LINK, TOPIC)
    run(mirror(estate, "l", "auto"))
    assert [group.mode for group in estate.log.state.groups()] == [GroupMode.FOLLOW]


def test_of_two_links_that_take_a_group_at_once_the_later_is_told_whose_it_is() -> None:
    estate = _Estate(LINK, replace(LINK, name="k", uuid="v"))

    async def both() -> Any:
        return await asyncio.gather(mirror(estate, "l"), mirror(estate, "k"), return_exceptions=True)

    made, refused = run(both())
    assert (made.applied, isinstance(refused, Refused)) == (True, True)
    assert (refused.ref, refused.what) == ("group-owned", "group g belongs to link l")
    assert [group.link for group in estate.log.state.groups()] == ["l"]
