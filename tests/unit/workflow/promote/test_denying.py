"""Deny entries keep other writers out of the source of a topic that has a way back, and never outlive their purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import BrokerRefused, Refused
from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import (
    Closed,
    DeniedWriters,
    LatePolicy,
    PartitionBarrier,
    PromoteTerms,
    TopicRecord,
    WayBack,
)
from kmigrate.workflow.promote import denying
from kmigrate.workflow.promote.denying import WriterDenier, lift, refuse_unliftable
from tests.fakes.acl_source import OURS, THEIRS, AclSource, asked, may_write
from tests.fakes.finishing import LINK
from tests.fakes.state_log import MemoryLog

WAY = WayBack({0: 100})
PROMOTED = TopicRecord(
    "l", "t", TopicPhase.PROMOTED, 1, partitions=1, barrier={0: PartitionBarrier(100, 3)}, way_back=WAY
)
ENTRY = may_write("User:ann", allow=False)
MIRROR = MirrorPresence("m", "l", 1, True, 500)
IN_FORCE = DeniedWriters((ENTRY,), in_force=True)
ENDED = replace(PROMOTED, way_back=replace(WAY, ended="somebody wrote"), denied=IN_FORCE)
CLOSED = replace(ENDED, closed=Closed("", proven=True))


@pytest.fixture(autouse=True)
def _asked() -> Iterator[None]:
    with asked():
        yield


class Crash(Exception):
    """The death of the controller."""


def denier(log: MemoryLog, source: AclSource) -> WriterDenier:
    async def source_of(_: Any) -> Any:
        return source, source

    return WriterDenier(SimpleNamespace(log=log, source=source_of))  # type: ignore[arg-type]


def looked(log: MemoryLog, source: AclSource, times: int = 3) -> TopicRecord:
    """Return the topic's record after some looks of a controller."""
    one = denier(log, source)

    async def work() -> None:
        for _ in range(times):
            await one.look()

    asyncio.run(work())
    return now(log)


def now(log: MemoryLog) -> TopicRecord:
    record = log.state.topic("l", "t")
    assert record is not None
    return record


def test_each_other_principal_that_may_write_is_denied_by_name_and_kmigrate_is_not() -> None:
    source, log = AclSource(answers_late=2), MemoryLog(LINK, PROMOTED)
    assert looked(log, source).denied == IN_FORCE
    assert source.denials == {ENTRY}
    written = [record.denied for record in log.history if isinstance(record, TopicRecord)]
    assert written[1] == DeniedWriters((ENTRY,)), "the entries are in the record before they are created"


def test_a_mirror_that_logs_in_under_a_name_of_its_own_is_not_denied() -> None:
    bob = may_write("User:bob")
    source, log = AclSource({OURS, THEIRS, bob}), MemoryLog(LINK, PROMOTED)
    log.say(replace(MIRROR, writes_as="User:bob"))
    assert looked(log, source).denied == IN_FORCE
    assert source.denials == {ENTRY}


def test_a_mirror_that_starts_under_a_name_that_is_denied_is_let_in() -> None:
    source, log = AclSource({OURS, may_write("User:bob")}), MemoryLog(LINK, PROMOTED)
    looked(log, source)
    assert source.denials == {may_write("User:bob", allow=False)}
    log.say(replace(MIRROR, writes_as="User:bob"))
    assert looked(log, source, times=1).denied == DeniedWriters(open="a mirror logs in as User:bob")
    assert not source.denials
    looked(log, source)  # another controller looks anew
    assert not source.denials


def test_nobody_is_denied_where_the_name_of_a_mirror_is_not_known() -> None:
    source, log = AclSource(), MemoryLog(LINK, PROMOTED)
    log.say(replace(MIRROR, writes_as="the principal of its token"))
    denied = looked(log, source).denied
    assert denied is not None and denied.open == "the name of the principal of its token is not known"
    assert not source.denials


def test_rights_by_prefix_and_by_star_are_denied_on_the_topic_alone() -> None:
    bob, cid = may_write("User:bob", "", pattern="prefixed"), may_write("User:cid", "*")
    source = AclSource({OURS, bob, cid, may_write("User:dan", "u")})
    looked(MemoryLog(LINK, PROMOTED), source)
    assert source.denials == {may_write(f"User:{name}", allow=False) for name in ("bob", "cid")}


def test_an_equal_entry_of_a_person_stays() -> None:
    source, log = AclSource({OURS, THEIRS, ENTRY}), MemoryLog(LINK, PROMOTED)
    assert looked(log, source).denied == DeniedWriters(in_force=True)
    log._put(CLOSED.key, replace(CLOSED, denied=now(log).denied))
    looked(log, source)
    assert source.denials == {ENTRY}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (AclSource({OURS, THEIRS, may_write("User:*")}), "User:* may write"),
        (AclSource({OURS, THEIRS, may_write("Group:writers")}), "Group:writers may write"),
        (AclSource(may_alter=False), "User:kmigrate is not known to have ALTER on the cluster"),
        (AclSource(principal="the principal of its token"), "the name of the principal of its token is not known"),
    ],
)
def test_nobody_is_denied_where_kmigrate_cannot_be_spared_and_the_record_says_why(
    source: AclSource, reason: str
) -> None:
    denied = looked(MemoryLog(LINK, PROMOTED), source).denied
    assert denied is not None
    assert (reason in denied.open, denied.entries, source.acts) == (True, (), [])


def test_nothing_is_written_where_the_source_has_no_authorizer() -> None:
    log = MemoryLog(LINK, PROMOTED)
    assert looked(log, AclSource(authorizer=False)) == PROMOTED


@pytest.mark.parametrize(
    ("link", "record"),
    [
        (replace(LINK, settings=replace(LINK.settings, deny_writers=False)), PROMOTED),
        (replace(LINK, deleting_ms=5), PROMOTED),
        (LINK, replace(PROMOTED, way_back=None)),
        (LINK, replace(PROMOTED, phase=TopicPhase.ROLLBACK_PENDING)),
        (LINK, replace(PROMOTED, phase=TopicPhase.ROLLBACK_FENCED, denied=IN_FORCE)),
    ],
)
def test_no_entry_is_created_where_it_is_not_wanted(link: Any, record: TopicRecord) -> None:
    source = AclSource()
    assert looked(MemoryLog(link, record), source) == record
    assert source.acts == []


def test_entries_that_stop_kmigrate_all_the_same_are_lifted_at_once() -> None:
    source = AclSource(may_write=False)
    denied = looked(MemoryLog(LINK, PROMOTED), source).denied
    assert denied == DeniedWriters(open="the deny entries stopped User:kmigrate, too")
    assert source.denials == set()


@pytest.mark.parametrize(
    "record",
    [
        CLOSED,
        replace(ENDED, closed=Closed("", denied="not allowed")),
        replace(ENDED, terms=PromoteTerms(1, late=LatePolicy(seal=False))),
        replace(CLOSED, denied=DeniedWriters((ENTRY,))),
    ],
)
def test_the_end_of_a_way_back_lifts_the_entries_once_the_seal_is_settled(record: TopicRecord) -> None:
    source = AclSource({OURS, THEIRS, ENTRY}, answers_late=2)
    denied = looked(MemoryLog(LINK, record), source).denied
    assert denied is not None
    assert denied.lifted_ms > 0
    assert source.denials == set()


def test_until_the_source_is_closed_the_entries_stay() -> None:
    source = AclSource({OURS, THEIRS, ENTRY})
    assert looked(MemoryLog(LINK, ENDED), source) == ENDED
    assert source.denials == {ENTRY}


def test_a_setting_of_the_link_lets_the_writers_in_again() -> None:
    link = replace(LINK, settings=replace(LINK.settings, deny_writers=False))
    source = AclSource({OURS, THEIRS, ENTRY})
    looked(MemoryLog(link, replace(PROMOTED, denied=IN_FORCE)), source)
    assert source.denials == set()


def _mortal(log: MemoryLog, source: AclSource, dies_at: int, *, after: bool) -> None:
    """Have the controller die before its n-th change of the log or the source, or after that change."""
    changes = iter(range(1, 100))

    def change(_: object) -> None:
        if next(changes) == dies_at:
            raise Crash

    if after:
        log.on_append = source.on_done = change
        return
    append = log.append

    async def before(decide: Any, timeout: float = 30.0) -> Any:
        if decide(log.state) is not None:
            change(None)
        return await append(decide, timeout)

    log.append, source.on_act = before, change  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 7))
def test_whenever_a_controller_dies_its_successor_ends_with_the_entries_that_the_record_wants(
    dies_at: int, after: bool
) -> None:
    """The changes are: entries in the record, created, in force; after the end of the way back: deleted, lifted."""
    source, log = AclSource(), MemoryLog(LINK, PROMOTED)
    _mortal(log, source, dies_at, after=after)
    deaths = 0
    for stage in (PROMOTED, CLOSED):
        log._put(stage.key, replace(stage, denied=now(log).denied))
        for _ in range(2):
            try:
                looked(log, source)
            except Crash:
                deaths += 1
                known = now(log).denied
                assert source.denials <= set(known.entries if known is not None else ())
        denied = now(log).denied
        assert denied is not None
        assert source.denials == ({ENTRY} if stage is PROMOTED else set())
        assert (denied.in_force, denied.lifted_ms > 0) == ((True, False) if stage is PROMOTED else (False, True))
    assert deaths == (dies_at <= 5)


def test_a_controller_that_was_taken_for_dead_takes_back_what_it_has_created() -> None:
    """Meanwhile the next controller has rolled the topic back, with the entries lifted."""
    source, log = AclSource(), MemoryLog(LINK, replace(PROMOTED, denied=DeniedWriters((ENTRY,))))
    gone = replace(PROMOTED, phase=TopicPhase.MIRRORING, way_back=None, denied=DeniedWriters((ENTRY,), lifted_ms=5))

    def overtaken(act: str) -> None:
        source.on_act = lambda _: None
        assert act == "create"
        log._put(gone.key, gone)

    source.on_act = overtaken
    looked(log, source, 1)
    assert (source.acts, source.denials) == (["create", "delete"], set())


def test_entries_of_a_link_that_is_deleted_meanwhile_are_taken_back() -> None:
    source, log = AclSource(), MemoryLog(LINK, replace(PROMOTED, denied=DeniedWriters((ENTRY,))))
    source.on_act = lambda act: log._put(LINK.key, replace(LINK, deleting_ms=5)) if act == "create" else None
    looked(log, source, 1)
    assert source.denials == set()


def test_entries_that_come_back_after_a_rollback_are_deleted_for_some_time() -> None:
    source = AclSource({OURS, THEIRS, ENTRY})
    log = MemoryLog(LINK)
    rolled_back = replace(PROMOTED, phase=TopicPhase.MIRRORING, way_back=None)
    lifted = replace(rolled_back, denied=DeniedWriters((ENTRY,), lifted_ms=log.now_ms() - 1000))
    assert looked(MemoryLog(LINK, lifted), source) == lifted
    assert source.denials == set()
    later = replace(rolled_back, denied=DeniedWriters((ENTRY,), lifted_ms=1))
    source.rules.add(ENTRY)
    assert looked(MemoryLog(LINK, later), source) == rolled_back
    assert source.denials == {ENTRY}, "by now it is somebody else's"


def test_a_source_that_refuses_is_named_and_asked_again() -> None:
    source, log = AclSource({OURS, THEIRS, ENTRY}, may_alter=False), MemoryLog(LINK, CLOSED)
    one = denier(log, source)
    asyncio.run(one.look())
    assert "refused ALTER on the cluster" in one.troubles[CLOSED.key]
    source.rules.discard(ENTRY)  # a person has deleted the ACL
    asyncio.run(one.look())
    asyncio.run(one.look())
    assert one.troubles == {}
    denied = now(log).denied
    assert denied is not None
    assert denied.lifted_ms > 0


def test_a_broker_that_never_learns_of_an_entry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denying, "_PROOF_S", 0.01)
    source, log = AclSource(answers_late=10**6), MemoryLog(LINK, PROMOTED)
    one = denier(log, source)
    for _ in range(2):
        asyncio.run(one.look())
    assert "writers-not-denied: broker 2 of the source" in one.troubles[PROMOTED.key]


def test_a_broker_that_keeps_an_entry_is_named() -> None:
    source = AclSource({ENTRY}, answers_late=10**6)
    with pytest.raises(Refused, match="broker 2 of the source still has the deny entries"):
        asyncio.run(lift(source, source, [ENTRY], 0.0))  # type: ignore[arg-type]


def test_a_rollback_is_refused_before_its_fence_where_the_entries_would_stay() -> None:
    source: Any = AclSource({ENTRY}, may_alter=False)
    with pytest.raises(Refused, match="User:ann may not write t at old") as refused:
        asyncio.run(refuse_unliftable(source, replace(PROMOTED, denied=IN_FORCE)))
    assert refused.value.ref == "writers-still-denied"
    source.rules.clear()  # a person has deleted the ACL
    asyncio.run(refuse_unliftable(source, replace(PROMOTED, denied=IN_FORCE)))


def test_unreadable_acls_are_the_reason() -> None:
    class Hidden(AclSource):
        async def read_acls(self, node: int | None = None) -> frozenset[Acl] | None:
            raise BrokerRefused("acls-unreadable", "the ACLs of cluster old cannot be read", code=31)

    denied = looked(MemoryLog(LINK, PROMOTED), Hidden()).denied
    assert denied == DeniedWriters(open="the ACLs of cluster old cannot be read")
