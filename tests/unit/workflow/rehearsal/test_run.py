"""The frame of a rehearsal: a heartbeat before the link, the link before anything else, and the removal in the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import TopicShape
from kmigrate.errors import Failed, Refused, Unreachable, WaitTimedOut
from kmigrate.model.presences import RehearsalPresence
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.model.rehearsals import link_of
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow import verbs
from kmigrate.workflow.base.plan import Plan, refuse, warn
from kmigrate.workflow.rehearsal import run
from kmigrate.workflow.rehearsal.feed import Shadow
from kmigrate.workflow.rehearsal.plan import RehearsalPlan
from kmigrate.workflow.rehearsal.run import REMOVED, RehearsalTerms, rehearse
from tests.fakes.state_log import MemoryLog

REAL = LinkRecord("blue", "u", ClusterRef("west", "h:1"), ClusterRef("east", "h:2"), 1, throttle=5, finished_ms=0)
NAME = link_of("ab12")
PLANNED = RehearsalPlan(
    Plan.of("rehearse", []),
    REAL,
    NAME,
    (Shadow("t", "shadow-t", 1, compacted=False),),
    (TopicShape("shadow-t", 1, 1, {"retention.ms": "9"}),),
    (),
)
TERMS = RehearsalTerms(0.0, 5.0, 0.05, "me@here")


class World:
    """Connections to clusters that know the shadow topics at once or never; `done` has what happened, in order."""

    def __init__(self, *, known: bool = True) -> None:
        self.log: Any = MemoryLog(REAL)
        self.done: list[str] = []
        self.known = known
        self.log.on_append = lambda record: self.done.append(record.key if record is not None else "drop")

    def settings_of(self, name: str) -> ClusterSettings:
        return ClusterSettings(name, (("127.0.0.1", 1),))

    async def source(self, _: LinkRecord) -> Any:
        return self, self

    async def create_topic(self, name: str, partitions: int, replicas: int, configs: Any) -> None:
        self.done.append(f"create {name} {partitions} {replicas} {dict(configs)}")

    async def refresh(self, names: list[str]) -> Any:
        """Return all known topics, as ClusterClient does: also real topics that were asked about before."""
        return SimpleNamespace(topics=dict.fromkeys(["t", "other", *(names if self.known else ())]))


class Client:
    """A client that starts and stops."""

    def __init__(self, *_: Any) -> None:
        self.stopped = False

    def start(self) -> None: ...

    def check(self) -> None: ...

    async def stop(self) -> None: ...


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Feed", Client)
    monkeypatch.setattr(run, "Reader", Client)


def cleans(world: World, monkeypatch: pytest.MonkeyPatch, error: Failed | None = None) -> None:
    async def clean(_: Any, link: LinkRecord) -> None:
        assert world.log.alive(RehearsalPresence)  # nobody else removes what this call is removing
        world.done.append(f"clean {link.name}")
        if error is not None:
            raise error

    monkeypatch.setattr(run, "clean", clean)


def go(world: World, terms: RehearsalTerms = TERMS) -> None:
    asyncio.run(rehearse(world, PLANNED, terms, lambda _: None))  # type: ignore[arg-type]


def test_without_a_mirror_everything_is_removed_and_the_error_says_what_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    cleans(world, monkeypatch)
    with pytest.raises(WaitTimedOut, match=f"no mirror process of link {NAME}") as late:
        go(world)
    assert late.value.ref == "no-mirror-running"
    assert "kmigrate mirror run without --link" in late.value.next_step
    assert late.value.still_true == REMOVED
    assert world.done == [f"link/{NAME}", "create shadow-t 1 1 {'retention.ms': '9'}", f"clean {NAME}"]
    link = world.log.state.link(NAME)
    assert (link.source, link.target, link.throttle) == (REAL.source, REAL.target, 0)


def test_brokers_that_do_not_get_to_know_the_shadow_topics_are_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(known=False)
    cleans(world, monkeypatch)
    with pytest.raises(WaitTimedOut, match="do not know the shadow topics"):
        go(world, RehearsalTerms(0.0, 0.1, 0.05, "me@here"))
    assert world.done[-1] == f"clean {NAME}"


def test_advice_about_a_shadow_that_is_gone_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    cleans(world, monkeypatch)

    async def given_up(_: Any) -> None:
        raise Failed(
            "promote-given-up", "lag", still_true="it is mirrored", next_step=f"kmigrate promote --link {NAME} s"
        )

    monkeypatch.setattr(run._Rehearsal, "run", given_up)
    with pytest.raises(Failed) as failed:
        go(world)
    assert (failed.value.still_true, failed.value.next_step) == (REMOVED, "mend the cause, then repeat the rehearsal")


def test_a_refusal_that_passes_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, tries = World(), list[str]()

    async def clean(_: Any, link: LinkRecord) -> None:
        tries.append(link.name)
        if len(tries) == 1:
            raise Unreachable("cluster-unreachable", "west does not answer")

    monkeypatch.setattr(run, "clean", clean)
    with pytest.raises(WaitTimedOut, match="no mirror"):
        go(world)
    assert tries == [NAME, NAME]


def test_what_cannot_be_removed_is_left_to_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_CLEAN_S", -1.0)
    world = World()
    cleans(world, monkeypatch, Unreachable("cluster-unreachable", "west does not answer"))
    with pytest.raises(Failed, match="west does not answer") as left:
        go(world)
    assert left.value.ref == "rehearsal-left"
    assert left.value.next_step == "kmigrate rehearse --clean"


@pytest.mark.parametrize(("ref", "looks"), [("topic-not-settled", 2), ("right-missing", 1)])
def test_a_step_looks_again_only_where_time_lifts_its_refusal(
    ref: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    async def mirror_topics(*_: Any) -> Any:
        looked.append(ref)
        if len(looked) == 1:
            Plan.of("topic mirror", [], [warn("no-room", "w"), refuse(ref, "not now")]).refuse()
        raise Failed("second-look", "the second look ends this test")

    world = World()
    cleans(world, monkeypatch)
    monkeypatch.setattr(run, "mirror_runs", lambda *_: True)
    monkeypatch.setattr(verbs, "mirror_topics", mirror_topics)
    with pytest.raises((Failed, Refused)) as raised:
        go(world)
    assert raised.value.ref == (ref if looks == 1 else "second-look")
    assert len(looked) == looks
