"""Forgetting topics and groups of a link before their promote.

A topic or group is forgotten only where no client is misled, and the tests show what stays on the target.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.client import LATEST, LogOffset
from kmigrate.errors import Failed, Refused, WaitTimedOut
from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.patterns import NamePattern, chosen_groups, chosen_topics
from kmigrate.model.presences import GroupReport, MirrorPresence, RouterPresence, Upkept
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    BarrierRecord,
    ClusterRef,
    CopyEngine,
    GroupRecord,
    LinkRecord,
    RouterRecord,
    Seal,
    StrayRecord,
    TopicRecord,
    VerifiedRecord,
)
from kmigrate.model.routes import Serve, routing_table
from kmigrate.net.clock import now_ms
from kmigrate.workflow import verbs
from kmigrate.workflow.base.plan import Plan
from tests.fakes.finishing import ROUTER, run
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("west", "h:1"), ClusterRef("east", "h:2", "target-id"), 1)
ID = uuid.UUID(int=7)
RULE = Acl("topic", "t", "User:reader", "*", "READ")
TOPIC = TopicRecord(
    "l",
    "t",
    TopicPhase.MIRRORING,
    1,
    partitions=1,
    target_topic_id=str(ID),
    restore_configs={"retention.ms": "5"},
    drop_configs=("retention.bytes",),
    granted_acls=(RULE,),
)
GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, granted_acls=(replace(RULE, resource="group", name="g"),))
WORD = RouterPresence("r1", "r", 100, 500, waiting=())
STRAY = StrayRecord("old", "host", ("r0",))


class Connections:
    """Connections to clusters with or without topic `t` and group `g`; changes to the target are noted.

    `gone_s` is the time for which a mirror has seen the source without the topic.
    """

    def __init__(
        self,
        *records: Record,
        on_source: bool = True,
        on_target: bool = True,
        word: RouterPresence | None = None,
        gone_s: float | None = 120.0,
    ) -> None:
        self.log: Any = MemoryLog(LINK, *records)
        self.on_source = on_source
        self.target_id = ID if on_target else None
        self.done: list[Any] = []
        self.fails = False
        self.end = 9
        self.has_member = True
        self.asked = 0
        self.target, self.target_admin = self, self
        self.cut: dict[int, int] = {}
        if word is not None:
            self.log.say(word)
        if not on_source:
            found = {"t": Upkept(1, "source-topic-gone: …", gone_s)}
            self.log.say(MirrorPresence("m", "l", 1, True, 500, upkeep=found, let_go=99))

    async def find_topic(self, name: str) -> Any:
        if self.target_id is None:
            return None
        return SimpleNamespace(name=name, topic_id=self.target_id, partitions=(0, 1))

    async def list_offsets(self, wanted: dict[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
        assert set(wanted.values()) == {LATEST}
        return dict.fromkeys(wanted, LogOffset(0, self.end, 0))

    async def log_ends(self, keys: Any) -> Any:
        return dict.fromkeys(keys, LogOffset(0, self.end, 0))

    async def delete_records(self, topic: str, low: dict[int, int]) -> dict[int, tuple[int, int]]:
        assert topic == "t"
        self.cut = low
        return {partition: (0, offset) for partition, offset in low.items()}

    async def source(self, _: object) -> tuple[Any, Any]:
        self.asked += 1
        return SimpleNamespace(find_topic=self._source_topic), SimpleNamespace(describe_groups=self._groups)

    async def _source_topic(self, _: str) -> Any:
        return SimpleNamespace() if self.on_source else None

    async def _groups(self, names: list[str]) -> Any:
        members = [SimpleNamespace(member_id="m")] if self.has_member else []
        state = "stable" if self.on_source else "dead"
        return {name: SimpleNamespace(state=state, members=members) for name in names}

    async def alter_topic_configs(self, topic: str, put: Any, remove: Any) -> None:
        assert self.log.state.topic("l", topic) is None, "the mirror would put it back"
        if self.fails:
            raise Failed("target-refused", "not today")
        self.done.append((topic, put, remove))

    async def delete_acls(self, acls: Collection[Acl]) -> None:
        self.done += acls

    @property
    def left(self) -> set[str]:
        return set(self.log.state.records) - {LINK.key, ROUTER.key, STRAY.key}


def forget(connections: Any, *topics: str, plan: bool = False) -> Plan:
    return run(run_verb(verbs.forget_topics(connections, "l", topics or ("t",), 120.0), plan=plan))


def forget_group(connections: Any, plan: bool = False) -> Plan:
    return run(run_verb(verbs.forget_groups(connections, "l", ["g"]), plan=plan))


def refusal(connections: Connections, verb: Any = forget) -> str:
    before = connections.log.state
    with pytest.raises(Refused) as caught:
        verb(connections)
    assert connections.log.state == before
    assert not connections.done
    return caught.value.ref


def test_a_topic_that_the_source_does_not_have_any_more_goes_with_all_that_was_kept_of_it() -> None:
    kept = BarrierRecord("l", "t", 0, 5, {}), VerifiedRecord("l", "t", "u", "", str(ID), "", {})
    connections = Connections(TOPIC, *kept, TopicRecord("l", "other", TopicPhase.MIRRORING, 1), ROUTER, on_source=False)
    made = forget(connections)
    assert made.applied
    assert made.changes == (
        "forget topic t",
        "give t its own configs on east: retention.ms=5",
        "remove from t on east what was for the mirror: retention.bytes",
        "remove from east the rules that kmigrate put there: User:reader from * may READ topic t",
    )
    (stays,) = made.warnings
    assert stays.startswith("topic t stays on east as it is; whoever comes through a router uses it there (if")
    assert connections.left == {"topic/l/other"}
    assert connections.done == [("t", {"retention.ms": "5"}, ("retention.bytes",)), RULE]
    assert connections.log.state.topic_owner("t") is None


def test_what_a_producer_may_still_repeat_keeps_a_topic_that_the_source_does_not_have() -> None:
    """A topic that is gone from the source is kept while a producer may still repeat a write.

    The time counts by the mirror's clock, because a record written a second ago may have a timestamp of last week.
    """
    for gone_s, way_on in ((0.0, "repeat in 120 s;"), (100.0, "repeat in 20 s;"), (None, "repeat while a mirror runs")):
        connections = Connections(TOPIC, ROUTER, on_source=False, gone_s=gone_s)
        with pytest.raises(Refused) as caught:
            forget(connections)
        assert caught.value.ref == "retries-not-over"
        assert caught.value.next_step.startswith(way_on)
        assert run(run_verb(verbs.forget_topics(connections, "l", ["t"], gone_s or 0.0))).applied  # type: ignore[arg-type]
    since = replace(TOPIC, since_ms=2)
    assert refusal(Connections(since, ROUTER, on_source=False)) == "retries-not-over", (
        "the word is of a record before it"
    )
    assert forget(Connections(TOPIC, on_source=False, gone_s=0.0)).applied, "no router is known that could bring it"
    aligning = replace(TOPIC, phase=TopicPhase.ALIGNING)
    assert forget(Connections(aligning, ROUTER, on_source=False, gone_s=None)).applied, "nothing is in the copy"


@pytest.mark.parametrize("router", [ROUTER, STRAY])
def test_a_topic_that_lives_on_the_source_is_not_left_to_its_copy_while_clients_may_be_at_a_router(
    router: Record,
) -> None:
    for phase in (TopicPhase.ALIGNING, TopicPhase.MIRRORING, TopicPhase.PROMOTE_PENDING):
        assert refusal(Connections(replace(TOPIC, phase=phase), router)) == "copy-would-serve"
    assert forget(Connections(TOPIC)).applied, "no router is known"
    connections = Connections(TOPIC, router, on_target=False)
    assert forget(connections).warnings == []
    assert (connections.asked, connections.done) == (0, [RULE]), "the copy is deleted: clients are told so"


def test_a_topic_that_was_never_copied_is_forgotten_though_the_target_has_somebody_elses_of_its_name() -> None:
    never = replace(TOPIC, phase=TopicPhase.INITIALISING, target_topic_id="", restore_configs={}, drop_configs=())
    connections = Connections(never, ROUTER)
    assert forget(connections).applied
    assert connections.done == [RULE]
    connections.log, connections.done, connections.end = Connections(never, ROUTER).log, [], 0
    assert refusal(connections) == "copy-would-serve", (
        "an empty one may be the mirror's own: nobody wrote that it made it"
    )
    assert forget(Connections(never, ROUTER, on_target=False)).applied
    anew = replace(TOPIC, phase=TopicPhase.INITIALISING)
    assert refusal(Connections(anew, ROUTER)) == "copy-would-serve", "its producers were forwarded before"


def test_a_topic_whose_adoption_was_broken_off_gets_its_own_configs_back() -> None:
    """A topic whose adoption was interrupted gets its own configs back.

    The mirror had noted and relaxed the configs, and died before it wrote the topic id into the record.
    """
    begun = replace(TOPIC, phase=TopicPhase.INITIALISING, target_topic_id="")
    connections = Connections(begun, ROUTER)
    made = forget(connections)
    assert "give t its own configs on east: retention.ms=5" in made.changes
    assert connections.done == [("t", {"retention.ms": "5"}, ("retention.bytes",)), RULE]


def test_what_somebody_else_put_on_the_target_while_a_topic_was_forgotten_is_named() -> None:
    never = replace(TOPIC, phase=TopicPhase.INITIALISING, target_topic_id="", restore_configs={}, drop_configs=())
    connections = Connections(never, ROUTER, on_target=False)
    connections.log.on_append = lambda _: setattr(connections, "target_id", ID)
    (stays,) = forget(connections).warnings
    assert stays.startswith("topic t stays on east as it is; whoever comes through a router uses it there")
    assert not connections.left


@pytest.mark.parametrize(
    ("phase", "ref"),
    [
        (TopicPhase.FENCING, "promote-under-way"),
        (TopicPhase.FENCED, "promote-under-way"),
        (TopicPhase.PROMOTED, "already-promoted"),
    ],
)
def test_from_its_fence_on_a_topic_is_not_forgotten(phase: TopicPhase, ref: str) -> None:
    connections = Connections(replace(TOPIC, phase=phase), on_source=False)
    assert (refusal(connections), connections.asked) == (ref, 0)


def test_a_source_that_takes_no_writes_for_a_record_keeps_that_record() -> None:
    sealed = replace(TOPIC, seal=Seal("", {"r1": "r"}))
    assert refusal(Connections(sealed)) == "topic-sealed"
    assert forget(Connections(sealed, on_source=False)).applied


def test_a_topic_that_is_forgotten_already_is_no_error() -> None:
    made = forget(Connections())
    assert (made.applied, made.changes, made.findings[0].ref) == (True, (), "not-mirrored")


def test_a_plan_forgets_nothing() -> None:
    connections = Connections(TOPIC)
    assert forget(connections, plan=True).changes
    assert (connections.left, connections.done) == ({TOPIC.key}, [])


@pytest.mark.parametrize(
    ("meanwhile", "ref"),
    [(replace(TOPIC, phase=TopicPhase.FENCING), "promote-under-way"), (ROUTER, "copy-would-serve")],
)
def test_what_comes_while_a_topic_is_looked_at_keeps_it(meanwhile: Record, ref: str) -> None:
    connections = Connections(TOPIC, BarrierRecord("l", "t", 0, 5, {}))
    connections.log.meanwhile(lambda _: meanwhile)
    with pytest.raises(Refused) as caught:
        forget(connections)
    assert caught.value.ref == ref
    assert {TOPIC.key, "barrier/l/t/0"} <= connections.left


@pytest.mark.parametrize(
    ("verb", "meanwhile", "put_back"),
    [
        (
            forget,
            replace(TOPIC, restore_configs={"retention.ms": "6"}),
            [("t", {"retention.ms": "6"}, ("retention.bytes",)), RULE],
        ),
        (forget_group, replace(GROUP, granted_acls=(RULE,)), [RULE]),
    ],
)
def test_what_the_mirror_has_just_followed_is_what_is_put_back(verb: Any, meanwhile: Any, put_back: Any) -> None:
    connections = Connections(replace(meanwhile, granted_acls=()))
    connections.log.meanwhile(lambda _: meanwhile)
    assert verb(connections).applied
    assert (connections.left, connections.done) == (set(), put_back)


class Killed(BaseException):
    """A stand-in for kill -9, or for Ctrl-C while the target's controller is slow."""


KEPT = (TOPIC, BarrierRecord("l", "t", 0, 5, {}), VerifiedRecord("l", "t", "u", "", str(ID), "", {}))


@pytest.mark.parametrize(
    ("verb", "records", "put_back", "after"),
    [
        *((forget, KEPT, [("t", {"retention.ms": "5"}, ("retention.bytes",)), RULE], after) for after in range(6)),
        *((forget_group, (GROUP,), GROUP.granted_acls, after) for after in range(3)),
    ],
)
def test_a_verb_that_is_killed_anywhere_is_repeated_and_puts_back_what_was_for_the_mirror(
    verb: Any, records: tuple[Record, ...], put_back: Any, after: int
) -> None:
    connections: Any = Connections(*records)
    steps = iter(range(after))

    def step(*_: object) -> None:
        if next(steps, None) is None:
            raise Killed

    def before(act: Any) -> Any:
        async def taken(*parts: Any) -> None:
            step()
            await act(*parts)

        return taken

    connections.log.on_append = step
    connections.alter_topic_configs, connections.delete_acls = (
        before(connections.alter_topic_configs),
        before(connections.delete_acls),
    )
    with pytest.raises(Killed):
        verb(connections)
    assert (connections.log.state.topics(), connections.log.state.groups()) == ([], []), (
        "it is copied and promoted no longer"
    )
    steps = iter(range(99))
    verb(connections)
    assert not connections.left
    assert [*dict.fromkeys(map(str, connections.done))] == [str(each) for each in put_back]


def test_nothing_is_put_back_before_every_mirror_that_lives_has_let_go() -> None:
    connections = Connections(TOPIC)
    heard: list[int] = []
    for instance, engine in (("leads", CopyEngine.DAEMON), ("copies", CopyEngine.DAEMON), ("task", CopyEngine.SPARK)):
        word = MirrorPresence(instance, "l", 1, instance == "leads", 500, engine=engine)
        connections.log.say(word)
        connections.log.say(replace(word, link="other"))

    async def both() -> None:
        async with asyncio.TaskGroup() as work:
            work.create_task(run_verb(verbs.forget_topics(connections, "l", ["t"], 120.0)))  # type: ignore[arg-type]
            for instance in ("leads", "copies"):
                await asyncio.sleep(0.01)
                heard.append(len(connections.done))
                taken = connections.log.state.epoch
                connections.log.say(MirrorPresence(instance, "l", 1, False, 500, let_go=taken))

    run(both())
    assert (heard, len(connections.done), connections.left) == ([0, 0], 2, set())


def test_a_task_of_spark_that_still_copies_a_topic_is_waited_for_and_no_other() -> None:
    """Forgetting waits for the Spark task that still copies the topic, and for no other task.

    A batch in flight would otherwise arrive behind records that clients write to the copy.
    """
    connections = Connections(TOPIC, ROUTER, on_source=False)
    word = MirrorPresence("task", "l", 1, False, 500, {"t": {}}, engine=CopyEngine.SPARK)
    connections.log.say(word)
    connections.log.say(replace(word, instance="another", topics={"u": {}}))

    async def both() -> None:
        waiting = asyncio.ensure_future(run_verb(verbs.forget_topics(connections, "l", ["t"], 120.0)))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert (connections.done, connections.left) == ([], {TOPIC.key})
        connections.log.say(replace(word, topics={}))
        await waiting

    run(both())
    assert (len(connections.done), connections.left) == (2, set())


@pytest.mark.parametrize(
    ("verb", "record"),
    [
        (lambda connections: run_verb(verbs.forget_topics(connections, "l", ["t"], 120.0)), TOPIC),
        (lambda connections: run_verb(verbs.forget_groups(connections, "l", ["g"])), GROUP),
    ],
)
def test_what_is_mirrored_anew_while_a_second_verb_waits_is_not_what_it_has_taken_out(verb: Any, record: Any) -> None:
    """A verb that waits does not forget a record that was created meanwhile.

    Another call has forgotten the old record first. A mirror works for the new record, and was not asked to let go.
    """
    connections, anew = Connections(record), replace(record, since_ms=2)
    word = MirrorPresence("m", "l", 1, True, 500)
    connections.log.say(word)

    async def both() -> None:
        waiting = asyncio.ensure_future(verb(connections))
        await asyncio.sleep(0.01)
        await connections.log.append(lambda _: (record.key, None))
        await connections.log.append(lambda _: anew)
        connections.log.say(replace(word, let_go=connections.log.state.epoch))
        await waiting

    with pytest.raises(Refused) as caught:
        run(both())
    assert caught.value.ref == "changed-meanwhile"
    assert connections.log.state.records.get(record.key) == anew
    assert not connections.done, "what the mirror has put there for it stays"


def test_a_mirror_that_does_not_say_that_it_has_let_go_is_named_until_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kmigrate.workflow.verbs.waiting._LET_GO_S", -1.0)
    connections, word = Connections(TOPIC), MirrorPresence("old", "l", 1, True, 500)
    connections.log.say(word)
    with pytest.raises(WaitTimedOut) as caught:
        forget(connections)
    assert caught.value.ref == "mirror-busy"
    assert caught.value.what.startswith("mirror process old has not said")
    assert (connections.left, connections.done) == ({TOPIC.key}, [])
    connections.log.silence(word.key)
    assert forget(connections).applied
    assert not connections.left


def test_a_copy_that_the_mirror_was_just_making_is_not_left_to_clients_at_a_router() -> None:
    """A topic that the mirror has just created on the target is not left to clients at a router.

    The CreateTopics request was in flight. The new topic is in the record, or only the target knows the topic.
    """
    never = replace(TOPIC, phase=TopicPhase.INITIALISING, target_topic_id="", restore_configs={}, drop_configs=())
    for told in ({}, {"phase": TopicPhase.ALIGNING, "target_topic_id": str(ID), "restore_configs": {"a": "b"}}):
        connections = Connections(never, ROUTER, on_target=False)
        connections.end = 0

        def made(written: Any, connections: Connections = connections, told: Any = told) -> None:
            connections.target_id = ID
            if told and not written.target_topic_id:
                connections.log._put(written.key, replace(written, **told))

        connections.log.on_append = made
        with pytest.raises(Refused) as caught:
            forget(connections)
        assert caught.value.ref == "copy-would-serve"
        assert caught.value.next_step.startswith("promote it: kmigrate promote --link l t; or ")
        assert "take topic" not in caught.value.still_true
        assert connections.log.state.topic("l", "t") is not None, "it is mirrored as before"
        assert routing_table(connections.log.state).topics["t"].serve is Serve.HIDDEN
        assert (connections.left, connections.done) == ({TOPIC.key}, [])
        connections.target_id, connections.log.on_append = None, lambda _: None
        assert forget(connections).applied, "the copy is deleted"
        assert not connections.left


def test_a_topic_that_another_call_has_taken_stays_so_where_it_may_not_be_forgotten_by_now() -> None:
    """The topic stays forgotten, because the other call may have dropped its offset map."""
    connections = Connections(replace(TOPIC, forgotten_ms=7))
    standing = connections.target_id
    connections.log.say(MirrorPresence("m", "l", 1, True, 500, let_go=99))

    async def find_topic(name: str) -> Any:
        connections.log._put(ROUTER.key, ROUTER)
        return SimpleNamespace(name=name, topic_id=standing, partitions=(0, 1))

    connections.find_topic = find_topic  # type: ignore[method-assign]
    with pytest.raises(Refused):
        forget(connections)
    assert connections.log.state.topic("l", "t") is None


def test_another_topic_that_took_the_name_on_the_target_keeps_its_configs() -> None:
    connections = Connections(TOPIC)
    connections.target_id = uuid.UUID(int=8)
    forget(connections)
    assert connections.done == [RULE]


def test_what_the_target_does_not_take_back_is_told_with_what_is_left_to_do() -> None:
    connections = Connections(TOPIC)
    connections.fails = True
    with pytest.raises(Failed) as caught:
        forget(connections)
    assert caught.value.ref == "not-put-back"
    assert caught.value.still_true == "done before that, and not taken back: take topic t from the mirror"
    assert "retention.ms=5" in caught.value.next_step
    connections.fails = False
    assert forget(connections).applied
    assert not connections.left


def test_an_expression_does_not_pick_up_again_what_was_forgotten() -> None:
    link = replace(LINK, topic_patterns=(NamePattern("t.*"), NamePattern("x")), group_patterns=(NamePattern("[fg]"),))
    connections = Connections(link, TOPIC, GROUP)
    assert forget(connections).changes[0] == "leave t out of what t.* matches"
    forget_group(connections)
    now = connections.log.state.link("l")
    assert chosen_topics(now.topic_patterns, ["t", "t2", "x"]) == ["t2", "x"]
    assert chosen_groups(now.group_patterns, ["f", "g"]) == ["f"]
    assert not connections.left


def test_of_several_topics_the_first_is_gone_when_the_second_is_refused() -> None:
    connections, fenced = (
        Connections(TOPIC, replace(TOPIC, topic="u")),
        replace(TOPIC, topic="u", phase=TopicPhase.FENCED),
    )

    def somebody(written: Record | None) -> None:
        if written is None:
            connections.log.state = connections.log.state.with_record(fenced.key, fenced, 9)

    connections.log.on_append = somebody
    with pytest.raises(Refused) as caught:
        forget(connections, "t", "u")
    assert caught.value.still_true.endswith("; forget topic t")
    assert [each[0] for each in connections.done if isinstance(each, tuple)] == ["t"]


def test_a_topic_whose_record_stays_is_not_said_to_be_forgotten() -> None:
    connections, pending = (
        Connections(TOPIC, BarrierRecord("l", "t", 0, 5, {})),
        replace(TOPIC, phase=TopicPhase.FENCING),
    )

    def somebody(written: Record | None) -> None:
        if written is None:
            connections.log.state = connections.log.state.with_record(pending.key, pending, 9)

    connections.log.on_append = somebody
    with pytest.raises(Refused) as caught:
        forget(connections)
    assert caught.value.still_true.endswith(": take topic t from the mirror; drop barriers of t")


def test_who_waits_for_the_promote_of_what_is_forgotten_is_told_at_once() -> None:
    connections: Any = Connections(
        replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING), replace(GROUP, phase=GroupPhase.PROMOTING)
    )

    async def both(waits: Any, key: str) -> None:
        async with asyncio.TaskGroup() as work:
            work.create_task(waits)
            await asyncio.sleep(0)
            await connections.log.append(lambda _: (key, None))

    for waits, key in (
        (verbs.wait_topics(connections, "l", ["t"], {TopicPhase.PROMOTED}, 9.0), TOPIC.key),
        (verbs.wait_groups(connections, "l", ["g"], 9.0), GROUP.key),
    ):
        with pytest.raises(ExceptionGroup) as caught:
            run(both(waits, key))
        (failed,) = caught.value.exceptions
        assert isinstance(failed, Failed)
        assert failed.ref == "forgotten"


@pytest.mark.parametrize(
    ("mode", "word", "ref"),
    [
        (GroupMode.HOLD, replace(WORD, waiting=("g",)), "members-at-router"),
        (GroupMode.FOLLOW, replace(WORD, groups={"g": GroupReport(members=(member_mark("m"),))}), "members-at-router"),
        (GroupMode.FOLLOW, replace(WORD, groups={"g": GroupReport(in_flight=1)}), "members-at-router"),
        (GroupMode.HOLD, replace(WORD, waiting=None, trouble="presence-too-large: why"), "waiting-unknown"),
        (GroupMode.HOLD, None, "router-silent"),
    ],
)
def test_a_group_is_not_forgotten_whose_members_are_at_a_router_or_may_be(
    mode: GroupMode, word: RouterPresence | None, ref: str
) -> None:
    group = replace(GROUP, mode=mode)
    assert refusal(Connections(group, ROUTER, word=word), forget_group) == ref
    connections = Connections(group, ROUTER, word=word, on_source=False)
    assert forget_group(connections).applied, "the source does not know it any more: there is no position to lose"
    assert (connections.left, connections.done) == (set(), list(GROUP.granted_acls))


def test_members_that_ended_without_leaving_their_group_keep_it_only_as_long_as_the_source_knows_them() -> None:
    word = replace(WORD, groups={"g": GroupReport(members=(member_mark("m"),))})
    connections = Connections(replace(GROUP, mode=GroupMode.FOLLOW), ROUTER, word=word)
    assert refusal(connections, forget_group) == "members-at-router"
    connections.has_member = False
    assert forget_group(connections).applied


def test_a_group_of_which_nobody_is_at_any_router_is_forgotten() -> None:
    others = replace(WORD, waiting=("f",), groups={"g": GroupReport(), "f": GroupReport(members=("m",))})
    for connections in (Connections(GROUP, ROUTER, word=others), Connections(GROUP)):
        assert forget_group(connections).changes[0] == "forget group g"
        assert (connections.left, connections.asked) == (set(), 0)
    made = forget_group(Connections())
    assert (made.applied, made.changes) == (True, ())


def test_a_router_that_starts_while_a_group_is_looked_at_keeps_it() -> None:
    connections = Connections(GROUP, ROUTER, word=WORD)
    connections.log.meanwhile(lambda _: RouterRecord("new", "r9", "host", "host:1", 1))
    with pytest.raises(Refused) as caught:
        forget_group(connections)
    assert caught.value.ref == "router-silent"
    assert GROUP.key in connections.left


def test_who_comes_to_a_router_while_the_mirror_lets_go_of_a_group_keeps_its_record_and_waits_as_before() -> None:
    connections = Connections(GROUP, ROUTER, word=WORD)

    def somebody(_: Record | None) -> None:
        connections.log.say(replace(WORD, waiting=("g",)))

    connections.log.on_append = somebody
    with pytest.raises(Refused) as caught:
        forget_group(connections)
    assert caught.value.ref == "members-at-router"
    assert caught.value.next_step == "restart them with the source's address, then repeat"
    assert caught.value.still_true == "done before that, and not taken back: take group g from the mirror"
    assert (connections.left, connections.done) == ({GROUP.key}, [])
    assert routing_table(connections.log.state).held_groups == {"g"}
    connections.log.say(WORD)
    assert forget_group(connections).applied
    assert not connections.left


def test_a_router_that_has_just_started_does_not_know_yet_whose_members_wait_there() -> None:
    young = replace(ROUTER, since_ms=now_ms() - 50_000)
    assert refusal(Connections(GROUP, young, word=WORD), forget_group) == "router-just-started"
    assert forget_group(Connections(GROUP, replace(ROUTER, since_ms=now_ms() - 61_000), word=WORD)).applied


def test_what_is_promoted_goes_with_its_link_which_may_be_finished_already() -> None:
    """For a promoted topic or group the advice is `link delete`, which also works for a finished link."""
    topic, group = replace(TOPIC, phase=TopicPhase.PROMOTED), replace(GROUP, phase=GroupPhase.PROMOTED)
    for record, verb in ((topic, forget), (group, forget_group)):
        with pytest.raises(Refused) as caught:
            verb(Connections(record, on_source=False))
        assert "kmigrate link delete l" in caught.value.next_step


@pytest.mark.parametrize(
    ("phase", "ref"), [(GroupPhase.PROMOTING, "promote-under-way"), (GroupPhase.PROMOTED, "already-promoted")]
)
def test_a_group_is_forgotten_before_its_promote_only(phase: GroupPhase, ref: str) -> None:
    connections = Connections(replace(GROUP, phase=phase), on_source=False)
    assert (refusal(connections, forget_group), connections.asked) == (ref, 0)


@pytest.mark.parametrize(
    ("phase", "cut"), [(TopicPhase.ALIGNING, {0: 9, 2: 4}), (TopicPhase.MIRRORING, {}), (TopicPhase.INITIALISING, {})]
)
def test_a_topic_that_is_forgotten_while_it_aligns_keeps_no_filler_that_a_client_could_read(
    phase: TopicPhase, cut: dict[int, int]
) -> None:
    connections = Connections(replace(TOPIC, phase=phase, partitions=3, starts={0: 70, 1: 0, 2: 4}))
    made = forget(connections)
    assert connections.cut == cut
    assert ("delete the mirror's empty records from t on east (DeleteRecords)" in made.changes) is bool(cut)
