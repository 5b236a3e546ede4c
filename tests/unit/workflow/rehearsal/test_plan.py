"""The look of a rehearsal: the shape of each shadow, guards, and what the real promote would meet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import ControllerPresence, RouterPresence
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord, TransactionRecord
from kmigrate.workflow.base.plan import Plan, ok, warn
from kmigrate.workflow.rehearsal import plan
from kmigrate.workflow.rehearsal.plan import RehearsalPlan, plan_rehearsal
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("blue", "u", ClusterRef("west", "h:1"), ClusterRef("east", "h:2"), 1)
CONTROLLER = ControllerPresence("c", 1, active=True, interval_ms=500)
ROUTER = RouterPresence("r1", "r", 1, 500, bootstrap="h:9")
CONFIGS = {
    "cleanup.policy": ConfigValue("compact", own=True),
    "retention.ms": ConfigValue("1", own=False),
    "leader.replication.throttled.replicas": ConfigValue("*", own=True),
}


class Source:
    """A source with two topics, and its admin client."""

    names = ("orders", "o" * 240)

    async def refresh(self, names: Any = None) -> Any:
        part = PartitionInfo(0, 0, (1, 2), (1, 2))
        infos = {name: TopicInfo(name, None, {0: part, 1: part}) for name in self.names}
        return SimpleNamespace(topics={n: infos[n] for n in (names or self.names) if n in infos})

    async def topic_configs(self, names: list[str]) -> Any:
        return dict.fromkeys(names, CONFIGS)


def connections(*records: Any, said: tuple[Any, ...] = (CONTROLLER, ROUTER)) -> Any:
    log = MemoryLog(LINK, *records)
    for each in said:
        log.say(each)
    source = Source()

    async def opened(_: LinkRecord) -> Any:
        return source, source

    return SimpleNamespace(log=log, source=opened)


def look(world: Any, *topics: str) -> RehearsalPlan:
    return asyncio.run(plan_rehearsal(world, None, topics, "me@here"))


@pytest.fixture(autouse=True)
def verbs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the outcomes of the real verbs' looks, by verb: a finding, or a refusal."""
    outcomes: dict[str, Any] = {"mirror": warn("fewer", "fewer replicas"), "promote": ok("fine", "all is fine")}

    def verb(name: str) -> Any:
        async def looked(*_: Any, **__: Any) -> Any:
            if isinstance(outcomes[name], Refused):
                raise outcomes[name]
            return SimpleNamespace(plan=Plan.of(name, [], [outcomes[name]]))

        return looked

    monkeypatch.setattr(plan, "mirror_topics", verb("mirror"))
    monkeypatch.setattr(plan, "promote_topics", verb("promote"))
    return outcomes


def test_a_shadow_has_the_partitions_replicas_and_own_configs_of_its_topic() -> None:
    planned = look(connections(), "orders", "orders")
    (shape,), (shadow,) = planned.shapes, planned.shadows
    assert (shape.name, shape.partitions, shape.replicas) == (shadow.name, 2, 2)
    assert shape.configs == {"cleanup.policy": "compact"}
    assert shadow.compacted
    assert planned.name in planned.plan.changes[0]
    assert look(connections(), "orders").name != planned.name


@pytest.mark.parametrize(
    ("topics", "said", "ref"),
    [
        (["ordres"], (CONTROLLER, ROUTER), "unknown-topic"),
        (["o" * 240], (CONTROLLER, ROUTER), "rehearsal-name-too-long"),
        (["orders"], (ROUTER,), "no-controller"),
        (["orders"], (CONTROLLER,), "no-router"),
    ],
)
def test_a_rehearsal_that_cannot_go_well_is_refused_before_anything_is_made(
    topics: list[str], said: tuple[Any, ...], ref: str
) -> None:
    with pytest.raises(Refused) as refused:
        look(connections(said=said), *topics)
    assert refused.value.ref == ref
    assert refused.value.still_true == "nothing was changed"


def test_a_promoted_topic_has_no_traffic_to_copy() -> None:
    with pytest.raises(Refused, match="already-promoted"):
        look(connections(TopicRecord("blue", "orders", TopicPhase.PROMOTED, 1)), "orders")


def test_a_topic_of_transactions_is_fed_with_plain_records_and_the_plan_says_so() -> None:
    coupled = TransactionRecord("blue", "id", 1, 0, 1, 0, topics=("orders",))
    (found,) = look(connections(coupled), "orders").plan.findings
    assert (found.level, found.ref) == ("warn", "rehearsal-plain")


def test_the_plan_has_what_the_real_topics_would_meet(verbs: dict[str, Any]) -> None:
    mirrored = TopicRecord("blue", "orders", TopicPhase.MIRRORING, 1)
    assert [each.ref for each in look(connections(), "orders").real] == ["fewer"]
    assert look(connections(mirrored), "orders").real == ()
    refused = Refused("direct-writers", "two refuse", next_step="wait")
    verbs["promote"] = refused
    assert [(each.level, each.ref) for each in look(connections(mirrored), "orders").real] == [
        ("refuse", "direct-writers")
    ]
    refused.findings = [warn("a", "x").as_json(), Plan.of("p", [], [ok("b", "y")]).findings[0].as_json()]
    assert [(each.level, each.ref) for each in look(connections(mirrored), "orders").real] == [("warn", "a")]
