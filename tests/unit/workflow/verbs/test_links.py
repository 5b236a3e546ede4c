"""Verbs on links, with a state log in memory; findings of the guards are checked again when a record is written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import PRODUCER_EXPIRATION
from kmigrate.cluster.producer_expiration import RAISED_EXPIRATION
from kmigrate.errors import Failed, Interrupted, Refused, Unreachable, UsageError
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.patterns import NamePattern
from kmigrate.model.presences import ControllerPresence, RouterPresence
from kmigrate.model.record_json import KINDS, Record
from kmigrate.model.records import (
    BarrierRecord,
    LeaseRecord,
    LinkRecord,
    ProducerMark,
    RouterRecord,
    StrayRecord,
    TopicRecord,
    TransactionRecord,
)
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.state import State
from kmigrate.net.clock import now_ms
from kmigrate.workflow import verbs
from kmigrate.workflow.base import producer_expiration as producer_memory
from kmigrate.workflow.base.plan import Finding, Plan
from kmigrate.workflow.verbs import links
from tests.fakes.finishing import GROUP, LINK, ROUTER, TOPIC, Connections, run
from tests.fakes.proposals import run_verb

BARRIER = BarrierRecord("l", "t", 0, 5, {0: (ProducerMark(5, 0, 10),)})
NEW = TopicRecord("l", "n", TopicPhase.INITIALISING, 1)


def delete(connections: Connections, delivery_s: float = 120.0) -> Plan:
    return run(run_verb(verbs.delete_link(connections, "l", delivery_s)))  # type: ignore[arg-type]


class Remembering(Connections):
    """A target with the producer expiration `stands`; changes of the setting are answered with `code`."""

    def __init__(self, *records: Record, stands: str = RAISED_EXPIRATION, code: int = 0) -> None:
        super().__init__(*records)
        self.stands, self.code = stands, code
        self.put_back: list[tuple[str | None, list[str]]] = []
        """Values that were put back, each with the record keys of that moment."""
        self.target_admin = self
        self.target.set_broker_default = self._set

    async def broker_config(self, _: int, key: str) -> ConfigValue:
        assert key == PRODUCER_EXPIRATION
        return ConfigValue(self.stands, own=True)

    async def _set(self, key: str, value: str | None) -> int:
        assert key == PRODUCER_EXPIRATION
        self.put_back.append((value, [*self.log.state.records]))
        return self.code


def just_promoted() -> TopicRecord:
    return replace(TOPIC, promoted_ms=now_ms() - 20_000)


def create(connections: Connections, source: str, name: str = "blue", settings: LinkSettings | None = None) -> Any:
    return run_verb(verbs.create_link(connections, name, source, settings or LinkSettings()))  # type: ignore[arg-type]


def alter(connections: Connections, **changes: Any) -> Plan:
    change = partial(replace, **changes)
    return run(run_verb(verbs.alter_link(connections, "l", change)))  # type: ignore[arg-type]


def settings_of(connections: Connections, name: str = "l") -> LinkSettings:
    link = connections.log.state.link(name)
    assert link is not None
    return link.settings


class Making(Connections):
    """Connections without links, and with clusters of any name."""

    def __init__(self) -> None:
        super().__init__(ROUTER)
        self.warnings: list[tuple[str, str]] = []
        self.target = SimpleNamespace(
            settings=self.settings_of("target"), metadata=SimpleNamespace(cluster_id="target-id")
        )

    def settings_of(self, name: str) -> ClusterSettings:
        return ClusterSettings(name, ((name, 9092),))


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Making:
    async def none(_: Any) -> list[Finding]:
        return []

    monkeypatch.setattr(links, "state_findings", none)
    return Making()


def test_a_link_is_created_with_its_settings_and_the_plan_names_those_that_are_not_the_defaults(making: Making) -> None:
    wanted = LinkSettings(hole_limit=7, config_exclude=("flush.*",))
    made = run(create(making, "one", settings=wanted))
    assert made.changes == ("store link blue: one → target, with hole_limit=7; config_exclude=flush.*",)
    assert settings_of(making, "blue") == wanted


def test_a_link_that_exists_keeps_its_settings_and_a_call_that_wants_others_is_told_so(making: Making) -> None:
    run(create(making, "one", settings=LinkSettings(hole_limit=7)))
    same = run(create(making, "one", settings=LinkSettings(hole_limit=7)))
    assert [(each.level, each.ref) for each in same.findings] == [("ok", "link-exists")]
    (told,) = run(create(making, "one", settings=LinkSettings(hole_limit=8))).findings
    assert (told.level, told.ref) == ("warn", "link-settings-differ")
    assert told.what == "link blue exists already and keeps its settings: hole_limit is 7, not 8"
    assert settings_of(making, "blue").hole_limit == 7


def test_settings_of_a_link_are_altered_once() -> None:
    connections = Connections(LINK)
    done = alter(connections, hole_limit=7, sync_acls=False)
    assert done.changes == ("link l: hole_limit: 100000 → 7", "link l: sync_acls: true → false")
    assert settings_of(connections) == LinkSettings(hole_limit=7, sync_acls=False)
    again = alter(connections, hole_limit=7)
    assert ([each.ref for each in again.findings], again.changes) == (["same-settings"], ())


def test_two_who_alter_a_link_at_the_same_time_lose_no_setting() -> None:
    connections = Connections(LINK)

    async def both() -> None:
        looks: Any = (
            verbs.alter_link(connections, "l", partial(replace, hole_limit=7)),  # type: ignore[arg-type]
            verbs.alter_link(connections, "l", partial(replace, align_limit=8)),  # type: ignore[arg-type]
        )
        for proposal in await asyncio.gather(*looks):
            await proposal.carry_out()

    run(both())
    assert settings_of(connections) == LinkSettings(hole_limit=7, align_limit=8)


@pytest.mark.parametrize(
    ("link", "ref"),
    [(replace(LINK, finished_ms=5), "link-finished"), (replace(LINK, deleting_ms=5), "being-deleted")],
)
def test_a_link_that_is_over_is_not_altered(link: LinkRecord, ref: str) -> None:
    with pytest.raises(Refused) as caught:
        alter(Connections(link), hole_limit=7)
    assert caught.value.ref == ref


def test_of_two_who_create_a_link_of_one_name_the_later_is_told_where_it_goes(making: Making) -> None:
    async def both() -> Any:
        return await asyncio.gather(create(making, "one"), create(making, "two"), return_exceptions=True)

    made, refused = run(both())
    assert (made.applied, isinstance(refused, Refused)) == (True, True)
    assert (refused.ref, refused.what) == ("link-exists", "link blue exists and goes from one to target")
    link = making.log.state.link("blue")
    assert link is not None
    assert link.source.name == "one"


def test_two_who_create_the_same_link_have_it_both(making: Making) -> None:
    async def both() -> Any:
        return await asyncio.gather(create(making, "one"), create(making, "one"))

    assert all(made.applied for made in run(both()))
    assert [link.name for link in making.log.state.links()] == ["blue"]


def test_a_link_stays_while_a_write_from_before_a_flip_may_be_repeated_through_a_router() -> None:
    connections = Connections(LINK, just_promoted(), GROUP, BARRIER, ROUTER)
    with pytest.raises(Refused) as caught:
        delete(connections)
    assert caught.value.ref == "retries-not-over"
    assert "promote of t, for 100 s" in caught.value.what
    assert BARRIER.key in connections.log.state.records
    assert delete(connections, 19.0).applied
    assert [*connections.log.state.records] == [ROUTER.key]


def test_who_deletes_a_link_hears_that_a_playbook_which_makes_it_would_begin_anew() -> None:
    """Only the records of the link know the promoted topics, so deleting the link is a warning."""
    looked = run(run_verb(verbs.delete_link(Connections(LINK, TOPIC, words=()), "l", 0.0), plan=True))  # type: ignore[arg-type]
    assert [finding.ref for finding in looked.findings] == ["begins-anew"]
    assert "playbook" in looked.warnings[0]
    unused = run(run_verb(verbs.delete_link(Connections(LINK, words=()), "l", 0.0), plan=True))  # type: ignore[arg-type]
    assert unused.warnings == []


def test_without_a_router_nothing_tells_repetitions_so_that_nobody_waits_for_them() -> None:
    assert delete(Connections(LINK, just_promoted(), words=())).applied


@pytest.mark.parametrize(
    ("meanwhile", "ref"),
    [
        (replace(TOPIC, topic="late", promoted_ms=2**53), "retries-not-over"),
        (NEW, "topic-not-promoted"),
        (replace(NEW, forgotten_ms=7), "being-forgotten"),
    ],
)
def test_what_came_while_a_link_was_looked_at_keeps_it(
    monkeypatch: pytest.MonkeyPatch, meanwhile: TopicRecord, ref: str
) -> None:
    connections = Connections(LINK, TOPIC, BARRIER, ROUTER)
    append = connections.log.append

    async def late(decide: Any) -> Any:
        monkeypatch.setattr(connections.log, "append", append)
        await append(lambda _: meanwhile)
        return await append(decide)

    monkeypatch.setattr(connections.log, "append", late)
    with pytest.raises(Refused) as caught:
        delete(connections)
    assert (caught.value.ref, caught.value.still_true.startswith("the link stays")) == (ref, True)
    assert {LINK.key, BARRIER.key, meanwhile.key} <= set(connections.log.state.records)


def test_a_topic_that_comes_between_two_deletes_is_not_left_without_its_link() -> None:
    connections = Connections(LINK, TOPIC, GROUP)

    def somebody(written: Record | None) -> None:
        if written is None and NEW.key not in connections.log.state.records:
            connections.log.state = connections.log.state.with_record(NEW.key, NEW, connections.log.state.epoch + 1)

    connections.log.on_append = somebody
    with pytest.raises(Refused):
        delete(connections)
    assert {LINK.key, NEW.key} <= set(connections.log.state.records)


def test_the_targets_setting_is_put_back_when_nothing_else_of_the_link_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delete that is refused keeps the raised setting, because the link goes on mirroring and needs the setting."""
    connections = Remembering(replace(LINK, restore_expiration="86400000"), TOPIC)
    append = connections.log.append

    async def late(decide: Any) -> Any:
        await append(lambda _: NEW)
        return await append(decide)

    monkeypatch.setattr(connections.log, "append", late)
    with pytest.raises(Refused):
        delete(connections)
    assert connections.put_back == []
    monkeypatch.setattr(connections.log, "append", append)
    run(append(lambda _: (NEW.key, None)))
    assert delete(connections).applied
    assert connections.put_back == [("86400000", [LINK.key])]


def test_a_link_that_came_to_mirror_while_another_one_is_deleted_keeps_the_targets_setting() -> None:
    connections = Remembering(replace(LINK, restore_expiration="86400000"), TOPIC)
    other = replace(LINK, name="other", restore_expiration="86400000")

    def somebody(gone: Record | None) -> None:
        if gone is None and other.key not in connections.log.state.records:
            connections.log.state = connections.log.state.with_record(other.key, other, connections.log.state.epoch + 1)

    connections.log.on_append = somebody
    assert delete(connections).applied
    assert (connections.put_back, [*connections.log.state.records]) == ([], [other.key])


def test_what_somebody_has_set_since_the_mirror_raised_it_stays() -> None:
    connections = Remembering(replace(LINK, restore_expiration=""), TOPIC, stands="7000")
    assert delete(connections).applied
    assert connections.put_back == []


def test_a_link_stays_that_alone_knows_what_the_target_does_not_let_be_put_back() -> None:
    """A link is kept while the target refuses to put the former setting back.

    The person who deletes the link may have fewer rights than the mirror. After the setting is changed by hand, the
    link is deleted.
    """
    connections = Remembering(replace(LINK, restore_expiration="86400000"), TOPIC, code=31)
    with pytest.raises(Failed) as caught:
        delete(connections)
    assert (caught.value.ref, [*connections.log.state.records]) == ("not-put-back", [LINK.key])
    assert "CLUSTER_AUTHORIZATION_FAILED" in caught.value.what
    assert f"{PRODUCER_EXPIRATION}=86400000" in caught.value.next_step
    connections.stands = "86400000"
    assert delete(connections).applied
    assert [*connections.log.state.records] == []


@pytest.mark.parametrize("why", ["", "it does not let producer.id.expiration.ms be raised"])
def test_a_check_names_a_target_that_forgets_producers(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a link warns of a target that forgets producers; the only other sign is a slow copy."""
    connections: Any = Connections(LINK)
    connections.target.settings.name, connections.target_admin = "target", None

    async def source(_: Any) -> Any:
        return connections.target, None

    async def none(*_: Any) -> list[Finding]:
        return []

    async def short_memory(*_: Any) -> str:
        return why

    connections.source = source

    async def raised(*_: Any) -> ConfigValue:
        return ConfigValue(RAISED_EXPIRATION, True)

    for name in ("access_findings", "state_findings", "_advertised_findings"):
        monkeypatch.setattr(links, name, none)
    monkeypatch.setattr(producer_memory, "short_memory", short_memory)
    monkeypatch.setattr(producer_memory, "producer_memory", raised)
    found = [each for each in run(verbs.check_link(connections, "l")).findings if each.ref == "short-memory"]
    assert [(each.level, why in each.what) for each in found] == ([("warn", True)] if why else [])


def test_a_link_that_was_made_anew_meanwhile_is_not_the_one_that_was_deleted() -> None:
    connections, anew = Connections(LINK, TOPIC), replace(LINK, uuid="v")

    def somebody(written: Record | None) -> None:
        if written is None and connections.log.state.link("l") is None:
            connections.log.state = connections.log.state.with_record(anew.key, anew, connections.log.state.epoch + 1)

    connections.log.on_append = somebody
    assert delete(connections).applied
    assert connections.log.state.link("l") == anew


@pytest.mark.parametrize("name", ["", "a/b", "/", "-a", "a b", "a\n", "\x7f", "a" * 101, "a;b", "$HOME", "a'b", "a*"])
def test_a_name_that_would_stand_in_other_links_keys_is_no_links_name(name: str, making: Making) -> None:
    with pytest.raises(UsageError) as caught:
        run(run_verb(verbs.create_link(making, name, "one")))  # type: ignore[arg-type]
    assert caught.value.ref == "bad-link-name"
    assert not making.log.state.links()


def test_what_is_deleted_with_a_link_is_its_own_also_where_an_older_version_let_a_slash_into_a_name() -> None:
    connections = Connections(
        LINK, TOPIC, replace(LINK, name="l/x", uuid="v"), theirs := replace(TOPIC, link="l/x", topic="o")
    )
    assert delete(connections).applied
    assert {*connections.log.state.records} == {"link/l/x", theirs.key}
    assert run(run_verb(verbs.delete_link(connections, "l/x", 0.0))).applied  # type: ignore[arg-type]
    assert not connections.log.state.records


_OF_NO_LINK = (RouterRecord, StrayRecord, LeaseRecord, RouterPresence, ControllerPresence)


@pytest.mark.parametrize("kind", [each for each in KINDS.values() if each not in _OF_NO_LINK])
def test_a_record_of_any_kind_goes_with_its_link(kind: type[Any]) -> None:
    """Each kind of record either has a field `link`, or is listed above as a kind without link."""
    key, record = f"{kind.__name__}/l", object.__new__(kind)
    object.__setattr__(record, "name" if kind is LinkRecord else "link", "l")
    wanted = [] if kind is LinkRecord else [key]
    assert links.link_keys(State().with_record(key, record, 0), "l") == [*wanted, LINK.key]
    assert links.link_keys(State().with_record(key, record, 0), "other") == ["link/other"]


def test_records_that_other_processes_write_during_a_delete_go_too() -> None:
    connections = Connections(LINK, TOPIC)
    late = TransactionRecord("l", "id", 1, 0, 2, 0)

    def somebody(gone: Record | None) -> None:
        if gone is None and connections.log.state.link("l") is not None:
            connections.log.on_append = lambda _: None
            connections.log.state = connections.log.state.with_record(late.key, late, connections.log.state.epoch + 1)

    connections.log.on_append = somebody
    assert delete(connections).applied
    assert not connections.log.state.records


def test_a_link_that_is_deleted_picks_up_no_name_first() -> None:
    """A delete first removes the expressions of the link.

    Otherwise a running mirror would pick up each name again as soon as the record of the name is deleted.
    """
    later = NamePattern(".*")
    connections = Connections(replace(LINK, topic_patterns=(later,), group_patterns=(later,)), TOPIC, GROUP, words=())
    chosen: list[bool] = []

    def seen(_: Record | None) -> None:
        link = connections.log.state.link("l")
        chosen.append(link is not None and bool(link.topic_patterns or link.group_patterns))

    connections.log.on_append = seen
    made = delete(connections)
    assert made.changes[0] == "pick up no more names by its expressions"
    assert (len(chosen), any(chosen)) == (4, False)


def test_a_delete_that_is_broken_off_says_what_was_forgotten() -> None:
    connections = Connections(LINK, TOPIC, GROUP)

    async def away(*_: Any) -> Any:
        raise Unreachable("state-log-unreachable", "nobody answers")

    def after_the_first(gone: Record | None) -> None:
        if gone is None:
            connections.log.append = away  # type: ignore[method-assign,assignment]

    connections.log.on_append = after_the_first
    with pytest.raises(Unreachable) as caught:
        delete(connections)
    assert caught.value.still_true == f"done before that, and not taken back: forget {GROUP.key}"


def test_ctrl_c_in_the_middle_of_a_delete_says_what_was_forgotten() -> None:
    connections = Connections(LINK, TOPIC, GROUP)

    async def interrupted() -> Any:
        work = asyncio.ensure_future(run_verb(verbs.delete_link(connections, "l", 0.0)))  # type: ignore[arg-type]

        def ctrl_c(gone: Record | None) -> None:
            if gone is None:
                work.cancel()

        connections.log.on_append = ctrl_c
        return await work

    with pytest.raises(Interrupted) as caught:
        run(interrupted())
    assert caught.value.still_true.startswith(f"done before that, and not taken back: forget {GROUP.key}")
    assert caught.value.next_step == "repeat it: what is done already is left as it is"


@pytest.mark.parametrize(
    "verb",
    [
        lambda connections: run_verb(verbs.throttle_link(connections, "l", 5)),
        lambda connections: run_verb(verbs.finish_link(connections, "l", [], 0.0)),
        lambda connections: run_verb(verbs.forget_patterns(connections, "l", "topic", ["a"])),
    ],
)
def test_who_changes_a_link_that_is_deleted_meanwhile_is_not_told_that_it_is_done(
    verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = Connections(replace(LINK, topic_patterns=(NamePattern("a"),)), TOPIC, GROUP, ROUTER)
    connections.log.meanwhile(lambda _: (LINK.key, None))
    with connections.asking(), pytest.raises(Refused) as caught:
        run(verb(connections))
    assert caught.value.ref == "unknown-link"


def test_a_link_whose_delete_was_cut_mirrors_nothing_until_its_delete_has_come_to_the_end(making: Making) -> None:
    """A link whose delete was interrupted accepts no topic or group until the delete is finished.

    A repeated playbook would otherwise register the group anew. The group would then get its committed offsets of
    before the promote.
    """
    connections = Connections(LINK, TOPIC, GROUP, BARRIER)

    def killed(gone: Record | None) -> None:
        if gone is None and GROUP.key not in connections.log.state.records:
            raise KeyboardInterrupt

    connections.log.on_append = killed
    with pytest.raises(KeyboardInterrupt):
        delete(connections)
    connections.log.on_append = lambda _: None
    left = connections.log.state.link("l")
    assert left is not None and left.deleting_ms
    making.log, it = connections.log, cast("Any", connections)
    again = [verbs.mirror_groups(it, "l", ["g"]), verbs.mirror_topics(it, "l", ["n"], "earliest", "auto")]
    for verb in (*(run_verb(each) for each in again), create(making, "s", "l")):
        with pytest.raises(Refused) as caught:
            run(verb)
        assert (caught.value.ref, caught.value.next_step) == ("being-deleted", "kmigrate link delete l ends it")
    assert delete(connections).applied
    assert [*connections.log.state.records] == []


def test_a_delete_that_is_refused_before_anything_is_forgotten_leaves_the_link_as_it_was() -> None:
    link = replace(LINK, topic_patterns=(NamePattern("a"),))
    connections = Connections(link, TOPIC)

    def somebody(written: Record | None) -> None:
        if written is not None and written.key == link.key and NEW.key not in connections.log.state.records:
            connections.log.state = connections.log.state.with_record(NEW.key, NEW, connections.log.state.epoch + 1)

    connections.log.on_append = somebody
    with pytest.raises(Refused) as caught:
        delete(connections)
    assert caught.value.ref == "topic-not-promoted"
    assert connections.log.state.link("l") == link


def test_a_delete_that_is_refused_gives_the_link_back_also_where_somebody_wrote_its_limit_meanwhile() -> None:
    """A refused delete removes its mark, also when another process changes the link meanwhile.

    With the mark the link would accept no topic or group, and the refused delete could not end.
    """
    link = replace(LINK, topic_patterns=(NamePattern("a"),))
    connections = Connections(link, TOPIC)

    def somebody(_: Record | None) -> None:
        """Change the link between the mark and the first record to be deleted."""
        connections.log.on_append = lambda _: None
        connections.log.meanwhile(lambda _: NEW)
        connections.log.meanwhile(lambda state: replace(cast("LinkRecord", state.link("l")), throttle=7))

    connections.log.on_append = somebody
    with pytest.raises(Refused):
        delete(connections)
    assert connections.log.state.link("l") == replace(link, throttle=7)


@pytest.mark.parametrize("ours", [True, False])
def test_of_two_who_delete_a_link_none_gives_it_back_when_the_other_has_forgotten_some_of_it(*, ours: bool) -> None:
    """A refused delete keeps the mark if another delete has already removed records of the link.

    Without the mark nothing shows that records are missing, and a playbook could mirror the group anew. The test runs
    both orders of the marks.
    """
    connections = Connections(LINK, TOPIC, GROUP, BARRIER)
    append, log = connections.log.append, connections.log

    async def beside(decide: Any) -> Any:
        log.append = append  # type: ignore[method-assign]
        await append(decide if ours else lambda _: replace(LINK, deleting_ms=5))
        await append(lambda _: (GROUP.key, None))
        marked = await append(decide)
        log.meanwhile(lambda _: NEW)
        return marked

    log.append = beside  # type: ignore[method-assign,assignment]
    with pytest.raises(Refused) as caught:
        delete(connections)
    left = log.state.link("l")
    assert left is not None and left.deleting_ms
    assert caught.value.ref == "topic-not-promoted"
