"""Plans name topics that the target refuses to create, and transactional ids with timeouts above its limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import TopicShape
from kmigrate.errors import BrokerRefused, Failed, KmigrateError, Unreachable
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.verbs import creatable
from kmigrate.workflow.verbs.creatable import creation_findings, timeout_findings

TOPIC: Any = SimpleNamespace(name="t", partitions={0: SimpleNamespace(replicas=(1, 2, 3))})
KEY = "transaction.max.timeout.ms"


class Admin:
    """An admin client that answers a trial creation with the given outcome."""

    def __init__(self, outcome: Failed | None, trouble: KmigrateError | None = None) -> None:
        self.outcome, self.trouble = outcome, trouble
        self.asked: list[TopicShape] = []

    async def try_topics(self, wanted: Sequence[TopicShape]) -> dict[str, Failed]:
        self.asked += wanted
        if self.trouble is not None:
            raise self.trouble
        return {} if self.outcome is None else {"t": self.outcome}


def found(admin: Admin) -> list[Finding]:
    async def configs_of(topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return {topic: {"retention.ms": "-1"} for topic in topics}

    target = SimpleNamespace(metadata=SimpleNamespace(brokers={1: ("h", 1), 2: ("h", 2)}))
    connections: Any = SimpleNamespace(target=target, target_admin=admin)
    return asyncio.run(creation_findings(connections, [TOPIC], configs_of))


def test_the_target_is_asked_with_the_shape_and_the_configs_that_the_mirror_would_give() -> None:
    admin = Admin(None)
    assert found(admin) == []
    assert admin.asked == [TopicShape("t", 1, 2, {"retention.ms": "-1"})]


@pytest.mark.parametrize(
    ("code", "level"), [(17, "refuse"), (40, "refuse"), (44, "refuse"), (29, "warn"), (89, "warn"), (36, None)]
)
def test_what_no_grant_and_no_time_lifts_refuses(code: int, level: str | None) -> None:
    told = found(Admin(BrokerRefused("broker-refused", "the reason", code=code)))
    assert [each.level for each in told] == ([] if level is None else [level])
    assert all("the reason" in each.what and each.next_step for each in told)


def test_a_target_that_cannot_be_asked_is_a_warning() -> None:
    assert [each.ref for each in found(Admin(None, Unreachable("x", "nobody answers")))] == ["creation-unknown"]


def timeouts(monkeypatch: pytest.MonkeyPatch, ids: dict[str, int], source: str = "900000") -> list[Finding]:
    async def told(_: Any) -> dict[str, int]:
        return ids

    monkeypatch.setattr(creatable, "transaction_timeouts", told)
    here, there = ({KEY: (value,)} for value in (source, "60000"))
    return asyncio.run(timeout_findings(None, here, there))  # type: ignore[arg-type]


def test_transactional_ids_with_longer_timeouts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = timeouts(monkeypatch, {"fine": 60_000, "long": 60_001})
    assert (finding.level, finding.ref) == ("warn", "transaction-timeout")
    assert "transactional id long has transaction.timeout.ms 60,001" in finding.what


def test_a_source_that_allows_no_more_is_not_asked_for_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timeouts(monkeypatch, {"long": 90_000}, source="60000") == []


def test_of_very_many_ids_the_first_are_named_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = timeouts(monkeypatch, {f"id-{number:03}": 90_000 for number in range(30)})
    assert (len(told), told[-1].what) == (21, "10 more transactional ids have such a timeout")
