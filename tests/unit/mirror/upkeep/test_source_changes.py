"""A round of upkeep changes ACLs and configs, and an error of a single topic or group does not stop the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep import acls as access
from kmigrate.mirror.upkeep.acls import difference
from kmigrate.mirror.upkeep.configs import carried_configs, changes, own_configs, target_configs
from kmigrate.mirror.upkeep.source_changes import Upkeep, _OvertakenError, _Seen, round_s
from kmigrate.mirror.upkeep.topics import TopicMaker
from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.link_settings import DefaultsFrom, LinkSettings
from kmigrate.model.patterns import NamePattern
from kmigrate.model.presences import Upkept
from kmigrate.model.records import ClusterRef, DeniedWriters, GroupRecord, LinkRecord, Seal, TopicRecord
from tests.fakes.state_log import MemoryLog

QUIET = MirrorSettings()
LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
ADOPTED = TopicRecord("l", "t", TopicPhase.PROMOTE_PENDING, 7, partitions=1, starts={0: 0}, target_starts={0: 5})
"""Topic that held data before the mirror, so its configs are its own."""
BILLING, SHOP = (GroupRecord("l", name, GroupPhase.MIRRORED, 1) for name in ("billing", "shop"))

ANN, BOB, EVE = (Acl("topic", "t", f"User:{name}", "*", "READ") for name in ("ann", "bob", "eve"))


def test_a_rule_that_stands_already_is_not_taken_over() -> None:
    changed = difference(granted=(), wanted=(ANN, BOB), present={ANN})
    assert (changed.create, changed.meanwhile, changed.afterwards) == ((BOB,), (BOB,), (BOB,))


def test_a_rule_that_is_gone_on_the_source_is_answered_for_until_it_is_deleted() -> None:
    changed = difference(granted=(ANN, BOB), wanted=(ANN,), present={ANN, BOB, EVE})
    assert (changed.delete, changed.meanwhile, changed.afterwards) == ((BOB,), (ANN, BOB), (ANN,))


def test_a_rule_of_ours_that_somebody_deleted_on_the_target_comes_back() -> None:
    assert difference(granted=(ANN,), wanted=(ANN,), present=set()).create == (ANN,)


def test_rules_of_a_promote_that_was_given_up_are_taken_back() -> None:
    write = Acl("topic", "t", "User:ann", "*", "WRITE")
    assert difference(granted=(ANN, write), wanted=(ANN,), present={ANN, write}).delete == (write,)


def test_for_replicated_keys_the_source_decides_and_others_stay() -> None:
    standing = {"segment.ms": "5", "retention.ms": "7", "flush.ms": "1", "vendor.key": "x"}
    wanted = target_configs({"segment.bytes": "200000000"}, 1, exclude=["flush.*"]).now
    put, remove = changes(wanted, standing, ["flush.*"])
    assert put["segment.bytes"] == "200000000"
    assert put["retention.ms"] == "-1", "relaxed again, whoever set it"
    assert remove == ("segment.ms",)


def test_a_target_as_it_shall_be_is_left_alone() -> None:
    wanted = target_configs({"segment.ms": "60000", "retention.ms": "5"}, 1).now
    assert changes(wanted, wanted) == ({}, ())


def test_a_relaxed_key_that_is_not_replicated_is_put_back_as_the_target_had_it() -> None:
    made = target_configs({"retention.ms": "5"}, 1, exclude=["retention.*"], before={"retention.ms": "9"})
    assert made.now["retention.ms"] == "-1"
    assert made.restore == {"retention.ms": "9"}
    assert "retention.bytes" in made.drop


def test_keys_that_the_target_does_not_know_are_left_out() -> None:
    made = target_configs({"compression.gzip.level": "3", "segment.ms": "5"}, 1, known={"segment.ms", "retention.ms"})
    assert made.now == {"segment.ms": "5", "retention.ms": "-1"}
    assert made.drop == ("retention.ms",)


def test_very_many_topics_are_looked_at_less_often() -> None:
    assert round_s(5.0, 10) == 5.0
    assert round_s(5.0, 1000) == 30.0


@pytest.mark.parametrize(
    ("seal", "kept", "own"),
    [
        (None, {}, {}),
        (Seal("", {"i": "r"}), {}, {}),
        (Seal("", {"i": "r"}), {"max.message.bytes": "9000000"}, {"max.message.bytes": "9000000"}),
        (Seal("2000000", {"i": "r"}), {"max.message.bytes": "9000000"}, {"max.message.bytes": "2000000"}),
    ],
    ids=["no-longer-known", "had-none", "had-the-brokers", "had-its-own"],
)
def test_the_seal_of_a_promote_is_never_taken_for_the_topics_own_limit(
    seal: Seal | None, kept: dict[str, str], own: dict[str, str]
) -> None:
    told = {"max.message.bytes": ConfigValue("1", own=True)}
    assert {**own_configs(told, seal, kept), **carried_configs(told, {"max.message.bytes": "1048588"})} == own


class Cluster:
    """A cluster with topic `t` of a single partition, and with the given ACLs."""

    def __init__(self, *rules: Acl) -> None:
        self.rules = frozenset(rules)
        self.metadata = SimpleNamespace(brokers={1: ("h", 1)})

    async def refresh(self, topics: Sequence[str]) -> SimpleNamespace:
        return SimpleNamespace(topics={"t": TopicInfo("t", None, {0: PartitionInfo(1, 0, (1,))})})


class Admin:
    """An admin client that refuses ACLs on the resource `refused`, and notes its changes."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.created: list[Acl] = []
        self.put: list[dict[str, str]] = []

    async def topic_config_outcomes(self, topics: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        return {topic: {} for topic in topics}

    async def broker_configs(self, broker: int) -> dict[str, ConfigValue]:
        return {}

    async def create_acls(self, acls: Sequence[Acl]) -> None:
        for acl in acls:
            if acl.name == self.refused:
                raise BrokerRefused("admin-refused", f"create the ACL: {acl}: POLICY_VIOLATION", code=44)
            self.created.append(acl)

    async def delete_acls(self, acls: Sequence[Acl]) -> None: ...

    async def alter_topic_configs(self, topic: str, put: dict[str, str], remove: Sequence[str]) -> None:
        self.put.append(put)


def upkeep(log: MemoryLog, admin: Admin, source: Cluster, *, held: bool = True) -> Upkeep:
    absent = cast("Any", None)
    parts: list[Any] = [source, Cluster(), admin, admin, "l", log, "me", QUIET]
    link = MirroredLink(*parts)
    maker = TopicMaker(link, lambda: link.link_settings)
    return Upkeep(link, maker, absent, may_act=lambda: held, added=dict, on_change=lambda: None)


def test_a_group_whose_rule_the_target_refuses_is_told_and_keeps_no_promote_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def told(cluster: Cluster) -> frozenset[Acl]:
        return cluster.rules

    monkeypatch.setattr(access, "read_acls", told)
    rules = [Acl("group", group.group, "User:ann", "*", "READ") for group in (BILLING, SHOP)]
    admin = Admin(refused="billing")
    kept = upkeep(MemoryLog(LINK, ADOPTED, BILLING, SHOP), admin, Cluster(*rules))
    asyncio.run(kept._guarded(None))
    assert kept.reports == {"t": Upkept(7, "")}, "what its promote waits for"
    assert admin.created == [rules[1]], "the other group has its rule"
    (note,) = kept.notes
    assert note.startswith("admin-refused: group billing: create the ACL")


def test_a_deny_entry_of_kmigrate_itself_is_not_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback has lifted the entry; the ACLs of the source were read before."""
    allow, deny = (Acl("topic", "t", "User:ann", "*", "WRITE", allow) for allow in (True, False))

    async def told(cluster: Cluster) -> frozenset[Acl]:
        return cluster.rules

    monkeypatch.setattr(access, "read_acls", told)
    record = replace(ADOPTED, phase=TopicPhase.MIRRORING, denied=DeniedWriters((deny,), lifted_ms=5))
    log = MemoryLog(LINK, record)
    asyncio.run(upkeep(log, Admin(), Cluster(allow, deny))._guarded(None))
    kept = log.state.topic("l", "t")
    assert kept is not None
    assert kept.promote_acls == (allow,)


def test_what_is_known_of_topics_and_groups_goes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep forgets what it knows of topics and groups that are gone.

    A process leads a link for weeks, and patterns pick up new names every day.
    """

    async def told(cluster: Cluster) -> frozenset[Acl]:
        return cluster.rules

    async def none(_: str) -> None:
        return None

    monkeypatch.setattr(access, "read_acls", told)
    source, log = Cluster(), MemoryLog(LINK)
    monkeypatch.setattr(source, "refresh", lambda topics: Cluster.refresh(source, ()))
    monkeypatch.setattr(source, "find_topic", none, raising=False)
    monkeypatch.setattr(source, "settings", SimpleNamespace(name="s"), raising=False)
    kept = upkeep(log, Admin(), source)
    lengths = []

    async def scenario() -> None:
        for number in range(40):
            topic = replace(ADOPTED, topic=f"t{number}", phase=TopicPhase.MIRRORING)
            group = replace(SHOP, group=f"g{number}")
            for record in (topic, group):
                await log.append(lambda _, record=record: record)  # type: ignore[misc]
            kept._grown[topic.topic] = 9
            await kept._guarded(None)
            lengths.append([len(each) for each in (kept._reports, kept._missed, kept._grown, kept._groups)])
            for key in (topic.key, group.key):
                await log.append(lambda _, key=key: (key, None))  # type: ignore[misc]

    asyncio.run(scenario())
    assert lengths == [[1, 1, 1, 1]] * 40


@pytest.mark.parametrize(
    ("phase", "held", "put"),
    [
        (TopicPhase.MIRRORING, True, [{"retention.ms": "-1"}]),
        (TopicPhase.MIRRORING, False, []),
        (TopicPhase.PROMOTED, True, []),
    ],
    ids=["ours", "lease-lost", "promoted"],
)
def test_configs_are_relaxed_again_only_while_the_topic_is_mirrored_by_us(
    phase: TopicPhase, held: bool, put: list[dict[str, str]]
) -> None:
    """Upkeep checks the lease and the topic's phase before it relaxes configs again.

    Upkeep has no change of the record to write here, so no compare-and-set would reveal the newer phase.
    """
    source = {"retention.ms": ConfigValue("7", own=True), "cleanup.policy": ConfigValue("delete", own=False)}
    target = {"retention.ms": ConfigValue("5", own=True)}
    looked_at = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, restore_configs={"retention.ms": "7"})
    admin = Admin()
    kept = upkeep(MemoryLog(LINK, replace(looked_at, phase=phase)), admin, Cluster(), held=held)
    seen = _Seen(None, None, source, target, {"cleanup.policy": "delete"})
    with suppress(_OvertakenError):
        asyncio.run(kept._follow_configs(looked_at, seen, 1))
    assert admin.put == put


@pytest.mark.parametrize("target_starts", [{}, {0: 3}], ids=["made by us", "with data of its own"])
def test_up_to_where_a_log_cleaner_has_worked_is_noted_when_it_does_so_no_more(target_starts: dict[int, int]) -> None:
    class Source(Cluster):
        end = LogOffset(6, -1, -1)

        async def log_ends(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], LogOffset]:
            return dict.fromkeys(keys, self.end)

    source = Source()
    before = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, target_starts=target_starts)
    log = MemoryLog(LINK, before)
    kept = upkeep(log, Admin(), source)

    def follow(policy: str) -> tuple[bool, dict[int, int]]:
        record = log.state.topic("l", "t")
        assert record is not None
        configs = {"cleanup.policy": ConfigValue(policy, own=True)}
        seen = _Seen(None, None, configs, configs, {"cleanup.policy": "delete"})
        now = asyncio.run(kept._follow_configs(record, seen, 1))
        assert now == log.state.topic("l", "t")
        return now.compacted, dict(now.cleaned_to)

    assert follow("delete") == (False, {})
    assert follow("compact,delete") == (True, {})
    assert follow("delete") == (True, {}), "its leader does not tell where it ends: there is another round"
    source.end = LogOffset(0, 70, 1)
    assert follow("delete") == (False, {0: 70})
    assert follow("compact") == (True, {0: 70})
    source.end = LogOffset(0, 90, 1)
    assert follow("delete") == (False, {0: 90})


@pytest.mark.parametrize(
    ("meanwhile", "put"),
    [
        ({"phase": TopicPhase.PROMOTED}, [{"retention.ms": "-1"}, {"retention.ms": "9"}]),
        ({"forgotten_ms": 7}, [{"retention.ms": "-1"}, {"retention.ms": "9"}]),
        ({"phase": TopicPhase.FENCED}, [{"retention.ms": "-1"}]),
    ],
    ids=["promoted", "forgotten", "its promote will put them back"],
)
def test_what_came_late_to_a_topic_that_is_mirrored_no_longer_is_put_back(
    meanwhile: dict[str, Any], put: list[dict[str, str]]
) -> None:
    """A late change of configs is undone when the topic is no longer mirrored.

    The target's controller may be slow, or this process may stand still while another process leads the link.
    """
    source = {"retention.ms": ConfigValue("7", own=True), "cleanup.policy": ConfigValue("delete", own=False)}
    target = {"retention.ms": ConfigValue("5", own=True)}
    looked_at = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, restore_configs={"retention.ms": "7"})
    log = MemoryLog(LINK, looked_at)

    class Slow(Admin):
        async def alter_topic_configs(self, topic: str, put: dict[str, str], remove: Sequence[str]) -> None:
            now = log.state.topic("l", "t")
            if now is not None:
                log._put(now.key, replace(now, **meanwhile, restore_configs={"retention.ms": "9"}))
            await super().alter_topic_configs(topic, put, remove)

    admin = Slow()
    kept = upkeep(log, admin, Cluster())
    seen = _Seen(None, None, source, target, {"cleanup.policy": "delete"})
    with suppress(_OvertakenError):
        asyncio.run(kept._follow_configs(looked_at, seen, 1))
    assert admin.put == put


def test_a_default_that_changes_on_the_sources_brokers_is_followed() -> None:
    """A changed default of the source's brokers is set on the target at once.

    A relaxed config keeps the new default for the promote. The settings can switch both off.
    """
    source = {key: ConfigValue("7", own=False) for key in ("retention.ms", "delete.retention.ms")}
    source["cleanup.policy"] = ConfigValue("delete", own=False)
    relaxed = {"retention.ms": ConfigValue("-1", own=True), "delete.retention.ms": ConfigValue("5", own=False)}
    record = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, drop_configs=("retention.ms",))
    seen = _Seen(None, None, source, relaxed, {"cleanup.policy": "delete", "retention.ms": "5"})

    def looked_after(settings: LinkSettings) -> tuple[dict[str, str], list[dict[str, str]]]:
        admin, log = Admin(), MemoryLog(replace(LINK, settings=settings), record)
        asyncio.run(upkeep(log, admin, Cluster())._follow_configs(record, seen, 1))
        kept = log.state.topic("l", "t")
        assert kept is not None
        return dict(kept.restore_configs), admin.put

    assert looked_after(LinkSettings()) == ({"retention.ms": "7"}, [{"delete.retention.ms": "7"}])
    assert looked_after(LinkSettings(config_exclude=(".*retention.*",))) == ({}, [{}])
    assert looked_after(LinkSettings(use_defaults_from=DefaultsFrom.TARGET)) == ({}, [{}])


def test_a_topic_that_was_promoted_while_it_was_looked_at_is_given_no_partitions_of_the_sources() -> None:
    class Widens(Admin):
        async def create_partitions(self, topic: str, total: int) -> None:
            self.put.append({topic: str(total)})

    looked_at = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
    admin = Widens()
    kept = upkeep(MemoryLog(LINK, replace(looked_at, phase=TopicPhase.PROMOTED)), admin, Cluster())
    with pytest.raises(_OvertakenError):
        asyncio.run(kept._follow_partitions(looked_at, 2, 1))
    assert not admin.put


def test_a_topic_is_called_worked_on_as_long_as_its_configs_are_on_their_way() -> None:
    """A topic counts as worked on while its configs are being written.

    Forgetting the topic writes other configs, and must do so after upkeep.
    """
    record = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
    told = {"retention.ms": ConfigValue("7", own=True), "cleanup.policy": ConfigValue("delete", own=False)}
    topic = TopicInfo("t", None, {0: PartitionInfo(1, 0, (1,))})
    working: list[set[str]] = []

    class Slow(Admin):
        async def alter_topic_configs(self, topic: str, put: dict[str, str], remove: Sequence[str]) -> None:
            working.append(set(kept.working))

    kept = upkeep(MemoryLog(LINK, record), Slow(), Cluster())
    asyncio.run(kept._look_after(record, _Seen(topic, topic, told, {}, {})))
    assert (working, kept.working) == ([{record.key}], set())


def test_how_long_a_topic_is_gone_is_counted_from_when_no_broker_of_the_source_knew_it() -> None:
    record, lost = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1), _Seen(None, None, {}, {}, {})

    class Source(Cluster):
        settings = SimpleNamespace(name="west")
        known: TopicInfo | None = TopicInfo("t", None, {})

        async def find_topic(self, _: str) -> TopicInfo | None:
            return self.known

    source = Source()
    kept = upkeep(MemoryLog(LINK, record), Admin(), source)

    def looked() -> float | None:
        asyncio.run(kept._look_after(record, lost))
        assert kept.reports["t"].problem.startswith("source-topic-gone")
        return kept.reports["t"].gone_s

    assert looked() is None, "the broker that was asked has just started"
    source.known = None
    first = looked()
    kept._missed = {key: since - 60 for key, since in kept._missed.items()}
    second = looked()
    assert first is not None
    assert second is not None
    assert first < 1 < 60 <= second
    source.known = TopicInfo("t", None, {})
    assert looked() is None
    source.known = None
    assert (looked() or 0) < 1


def test_new_names_that_cannot_be_read_keep_no_promote_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep of known topics goes on when new names cannot be read.

    An unreachable broker of the source does not list its groups.
    """

    async def untold(_: Any) -> None:
        return None

    class Away(Admin):
        async def groups(self) -> dict[str, str]:
            raise Unreachable("broker-away", "list consumer groups: broker 2 does not answer")

    monkeypatch.setattr(access, "read_acls", untold)
    link = replace(LINK, group_patterns=(NamePattern("orders-.*"),))
    kept = upkeep(MemoryLog(link, ADOPTED), Away(), Cluster())
    asyncio.run(kept._guarded(None))
    assert kept.reports == {"t": Upkept(7, "")}
    assert kept.notes == ("broker-away: list consumer groups: broker 2 does not answer",)
    assert not kept._new_names(), "they are looked for again in the next round"


def test_topics_without_a_report_on_their_phase_and_grown_topics_do_not_wait_for_the_next_round() -> None:
    mirroring = replace(ADOPTED, phase=TopicPhase.MIRRORING)
    log = MemoryLog(LINK, mirroring, replace(mirroring, topic="u"))
    kept, added = upkeep(log, Admin(), Cluster()), {"u": 5, "gone": 3}
    kept._added = lambda: added
    kept._reports = {name: Upkept(mirroring.since_ms, "") for name in ("t", "u")}
    assert kept._due() == {"u"}, "the source's topic has grown"
    assert kept._due() == set()
    log._put(ADOPTED.key, replace(ADOPTED, since_ms=mirroring.since_ms + 1))
    assert kept._due() == kept._due() == {"t"}, "a promote waits for the report"
    assert kept.reports == {"t": Upkept(mirroring.since_ms, "")}
    kept._reports["t"] = Upkept(mirroring.since_ms + 1, "")
    assert kept._due() == set()
