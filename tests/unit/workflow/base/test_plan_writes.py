"""No intent is lost silently while other processes write, and a repeated intent changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupState
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.metadata import PartitionInfo
from kmigrate.errors import KmigrateError, Refused, StateLogBroken, Unreachable, WaitTimedOut
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import CopyEngine, GroupRecord, PromoteTerms, TopicRecord
from kmigrate.workflow import verbs
from kmigrate.workflow.base.plan import Plan
from tests.fakes.finishing import FINISHED, LINK, run
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.groups.test_following import Source

TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, reason="members-on-source: of an earlier try")
PART = PartitionInfo(1, 0, (1,))
DONE = replace(TOPIC, phase=TopicPhase.PROMOTED)
OPENED = replace(GROUP, phase=GroupPhase.PROMOTED)


class Admin:
    """A source that has every requested topic and group, without members."""

    async def groups(self) -> dict[str, str]:
        return {}

    async def topic_configs(self, _: object) -> dict[str, Any]:
        return {}

    async def describe_groups(self, names: list[str]) -> dict[str, Any]:
        return {name: GroupState(name, "empty", "classic", ()) for name in names}


class Cluster(Source):
    async def refresh(self, names: list[str]) -> Any:
        return SimpleNamespace(topics={name: SimpleNamespace(name=name, partitions={0: PART}) for name in names})

    async def list_offsets(self, wanted: Any) -> dict[Any, LogOffset]:
        return dict.fromkeys(wanted, LogOffset(0, 0, 0))


class Empty(Cluster):
    metadata = SimpleNamespace(brokers={1: ("h", 2)})

    async def refresh(self, _: list[str]) -> Any:
        return SimpleNamespace(topics={})


class Connections:
    def __init__(self, *records: Record) -> None:
        self.log: Any = MemoryLog(*records)
        self.asked = 0
        self.target = Empty(positions=())
        self.target_admin = Admin()

    async def source(self, _: object) -> tuple[Cluster, Admin]:
        self.asked += 1
        return Cluster(positions=()), Admin()

    @property
    def topic(self) -> TopicRecord:
        found: TopicRecord = self.log.state.topic("l", "t")
        return found

    @property
    def group(self) -> GroupRecord:
        found: GroupRecord = self.log.state.group("l", "g")
        return found


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object) -> list[Any]:
        return []

    monkeypatch.setattr("kmigrate.workflow.verbs.promote.look_for_direct_writers", none)
    monkeypatch.setattr("kmigrate.workflow.verbs.mirror.loop_findings", none)


def promote(connections: Any) -> Any:
    return run_verb(verbs.promote_topics(connections, "l", ["t"], PromoteTerms(1)))


def promote_group(connections: Any) -> Any:
    return run_verb(verbs.promote_groups(connections, "l", ["g"]))


def pause(connections: Any) -> Any:
    return run_verb(verbs.pause_topics(connections, "l", ["t"]))


def mirror(connections: Any, *names: str) -> Any:
    return run_verb(verbs.mirror_topics(connections, "l", names, "earliest", "auto"))


def mirror_group(connections: Any, mode: str = "auto") -> Any:
    return run_verb(verbs.mirror_groups(connections, "l", ["g"], mode=mode))


def refused(work: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        run(work)
    return caught.value


def test_a_promote_is_asked_for_also_where_the_mirror_wrote_what_the_source_changed() -> None:
    connections = Connections(LINK, TOPIC)
    connections.log.meanwhile(lambda _: replace(TOPIC, restore_configs={"retention.ms": "1"}))
    assert run(promote(connections)).applied
    assert (connections.topic.phase, connections.topic.restore_configs) == (
        TopicPhase.PROMOTE_PENDING,
        {"retention.ms": "1"},
    )


def test_a_groups_promote_is_asked_for_also_where_the_mirror_wrote_its_rules() -> None:
    connections = Connections(LINK, TOPIC, GROUP)
    connections.log.meanwhile(lambda _: replace(GROUP, since_ms=2))
    assert run(promote_group(connections)).applied
    assert (connections.group.phase, connections.group.reason) == (GroupPhase.PROMOTING, "")


def test_who_is_overtaken_by_the_same_intent_has_what_was_asked_for() -> None:
    connections = Connections(LINK, TOPIC, GROUP)

    async def twice(verb: Callable[[Any], Any]) -> Any:
        return await asyncio.gather(verb(connections), verb(connections))

    for verb in (promote_group, pause):
        assert all(made.applied for made in run(twice(verb)))
    connections = Connections(LINK, TOPIC)
    assert all(made.applied for made in run(twice(promote)))
    assert connections.topic.phase is TopicPhase.PROMOTE_PENDING


@pytest.mark.parametrize(
    ("verb", "meanwhile", "ref"),
    [
        (promote, replace(TOPIC, paused=True), "topic-paused"),
        (pause, replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING), "promote-under-way"),
        (lambda it: mirror_group(it, "follow"), replace(GROUP, phase=GroupPhase.PROMOTING), "changed-meanwhile"),
    ],
)
def test_an_intent_that_does_not_go_with_what_came_meanwhile_is_refused(
    verb: Callable[[Any], Any], meanwhile: Any, ref: str
) -> None:
    connections = Connections(LINK, TOPIC, GROUP if isinstance(meanwhile, GroupRecord) else OPENED)
    connections.log.meanwhile(lambda _: meanwhile)
    error = refused(verb(connections))
    assert (error.ref, error.still_true) == (ref, "nothing was changed")
    assert connections.log.state.records[meanwhile.key] == meanwhile


def test_of_several_topics_it_is_said_which_were_taken_before_one_was_refused() -> None:
    connections = Connections(LINK, replace(LINK, name="k", uuid="v"))

    def somebody(written: Record | None) -> None:
        if isinstance(written, TopicRecord) and written.topic == "a":
            connections.log.state = connections.log.state.with_record(
                "topic/k/b", TopicRecord("k", "b", TOPIC.phase, 1), 9
            )

    connections.log.on_append = somebody
    error = refused(mirror(connections, "a", "b"))
    assert error.what == "topic b belongs to link k"
    assert error.still_true == (
        "done before that, and not taken back: mirror a from earliest, identical offsets where they can be had, "
        "else mapped"
    )
    assert connections.log.state.topic("l", "a") is not None


@pytest.mark.parametrize("link", ["l", "k"])
def test_a_topic_that_is_being_forgotten_is_not_mirrored_again_before_that_has_ended(link: str) -> None:
    leaving = TopicRecord(link, "t", TopicPhase.MIRRORING, 1, forgotten_ms=7)
    connections = Connections(LINK, replace(LINK, name="k", uuid="v"), leaving)
    error = refused(mirror(connections, "t"))
    assert (error.ref, error.next_step) == ("being-forgotten", f"kmigrate topic forget --link {link} t, then repeat")
    connections = Connections(LINK)
    connections.log.meanwhile(lambda _: leaving)
    assert refused(mirror(connections, "t")).ref == "being-forgotten"


def test_a_group_that_is_being_forgotten_is_not_mirrored_again_before_that_has_ended() -> None:
    leaving = replace(GROUP, forgotten_ms=7)
    error = refused(mirror_group(Connections(LINK, leaving)))
    assert (error.ref, error.next_step) == ("being-forgotten", "kmigrate group forget --link l g, then repeat")
    connections = Connections(LINK, GROUP)
    connections.log.meanwhile(lambda _: leaving)
    assert refused(mirror_group(connections, "follow")).ref == "being-forgotten"


@pytest.mark.parametrize("kind", [Unreachable, WaitTimedOut, StateLogBroken])
def test_whatever_ends_a_verb_half_way_says_what_was_done(kind: type[KmigrateError]) -> None:
    connections = Connections(LINK, TOPIC, replace(TOPIC, topic="u"))

    async def ends(*_: object) -> None:
        raise kind("state-log-busy", "no write succeeded", still_true="nothing was changed by this call")

    def after_the_first(_: Record | None) -> None:
        connections.log.append = ends

    connections.log.on_append = after_the_first
    for still_true in ("done before that, and not taken back: pause t", "nothing was changed by this call"):
        with pytest.raises(kind) as caught:
            run(run_verb(verbs.pause_topics(connections, "l", ["t", "u"])))  # type: ignore[arg-type]
        assert caught.value.still_true == still_true


@pytest.mark.parametrize(
    "verb", [lambda connections: mirror(connections, "t"), mirror_group, promote, promote_group, pause]
)
def test_what_is_done_changes_nothing_when_it_is_asked_for_again(verb: Callable[[Any], Any]) -> None:
    """A verb whose work is done asks no cluster and changes nothing.

    A playbook that was stopped late is run again from its first step, when the source may be gone.
    """
    connections = Connections(FINISHED, DONE, OPENED)
    before = connections.log.state
    made: Plan = run(verb(connections))
    assert (made.applied, made.changes, [finding.level for finding in made.findings]) == (True, (), ["ok"])
    assert (connections.log.state, connections.asked) == (before, 0)


def test_a_promoted_topic_is_given_to_no_other_engine() -> None:
    connections: Any = Connections(LINK, DONE)
    made = run(run_verb(verbs.set_engine(connections, "l", ["t"], CopyEngine.SPARK)))
    assert (made.changes, [finding.ref for finding in made.findings]) == ((), ["already-promoted"])


def test_a_topic_whose_link_is_deleted_meanwhile_is_not_taken_for_a_link_that_is_gone() -> None:
    connections = Connections(LINK)
    connections.log.meanwhile(lambda _: (LINK.key, None))
    assert refused(mirror(connections, "n")).ref == "unknown-link"
    assert connections.log.state.topic_owner("n") is None


def test_a_finished_link_still_mirrors_nothing_new() -> None:
    assert refused(mirror(Connections(FINISHED, DONE, OPENED), "t", "n")).ref == "link-finished"


def test_a_group_is_given_another_mode_whatever_the_mirror_wrote() -> None:
    follows = replace(GROUP, mode=GroupMode.FOLLOW)
    connections = Connections(LINK, TOPIC, follows)
    connections.log.meanwhile(lambda _: replace(follows, since_ms=2))
    run(mirror_group(connections, "hold"))
    assert connections.group.mode is GroupMode.HOLD
