"""The controller begins scheduled promotes at their time, and tries again until the deadline, by an injected clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import PromoteTerms, Schedule, TopicRecord
from kmigrate.model.reports import Outcome
from kmigrate.workflow.controller import scheduled
from kmigrate.workflow.controller.scheduled import ScheduledPromotes
from kmigrate.workflow.promote.evidence import Witness, report_of
from kmigrate.workflow.promote.outcome import given_up
from kmigrate.workflow.verbs.promote import judged_topics
from kmigrate.workflow.verbs.proposal import Proposal, propose
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

T0 = 1_700_000_000_000
TERMS = PromoteTerms(T0, asked_by="ann@desk")
SCHEDULE = Schedule(T0, "ann@desk", TERMS)


def topic(schedule: Schedule, name: str = "t") -> TopicRecord:
    return TopicRecord("l", name, TopicPhase.MIRRORING, 1, partitions=1, schedule=schedule)


@dataclass
class Scene:
    """Scheduled topics, the guards' refusals in turn ('' for none), and the seconds since the begin."""

    log: MemoryLog
    refusals: list[str] = field(default_factory=list)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    seconds: float = 0.0

    def now_ms(self) -> int:
        return T0 + round(self.seconds * 1000)

    async def promote(
        self, connections: Any, link: str, names: Sequence[str], terms: PromoteTerms, **more: Any
    ) -> Proposal:
        self.asked.append(tuple(names))
        refusal = self.refusals.pop(0) if self.refusals else ""
        if refusal:
            raise Refused("direct-writers", refusal, next_step="restart it")
        judged = judged_topics(connections, link, terms, {}, scheduled=more["scheduled"])
        return propose(connections.log, "promote", (), [(f"promote {name}", judged.write(name)) for name in names])

    def topic(self, name: str = "t") -> TopicRecord:
        found = self.log.state.topic("l", name)
        assert found is not None
        return found


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(MemoryLog(LINK))
    monkeypatch.setattr(made.log, "now_ms", made.now_ms)
    monkeypatch.setattr(scheduled, "promote_topics", made.promote)
    monkeypatch.setattr(scheduled, "monotonic", lambda: made.seconds)
    return made


def put(scene: Scene, *records: TopicRecord) -> None:
    for record in records:
        scene.log._put(record.key, record)


def looks(scene: Scene, seconds: float, duty: ScheduledPromotes | None = None) -> ScheduledPromotes:
    """Look once a second for so long."""
    connections: Any = SimpleNamespace(log=scene.log)
    duty = duty or ScheduledPromotes(connections)

    async def look() -> None:
        for _ in range(round(seconds)):
            scene.seconds += 1
            await duty.look()

    asyncio.run(look())
    return duty


def test_a_promote_begins_at_its_time_and_the_schedule_ends(scene: Scene) -> None:
    put(scene, topic(replace(SCHEDULE, not_before_ms=T0 + 10_000)))
    duty = looks(scene, 9)
    assert (scene.asked, duty.reasons) == ([], {"topic/l/t": "it begins at 2023-11-14 22:13:30 UTC"})
    looks(scene, 1, duty)
    record = scene.topic()
    assert (record.phase, record.schedule, duty.reasons) == (TopicPhase.PROMOTE_PENDING, None, {})
    assert record.asked is not None
    assert (record.asked.by, record.terms) == ("ann@desk", TERMS)


def test_topics_that_are_scheduled_together_are_asked_for_together(scene: Scene) -> None:
    put(scene, topic(SCHEDULE), topic(SCHEDULE, "u"), topic(replace(SCHEDULE, asked_ms=T0 + 1), "v"))
    looks(scene, 1)
    assert sorted(scene.asked) == [("t", "u"), ("v",)]


def test_without_a_deadline_the_first_refusal_ends_the_schedule(scene: Scene) -> None:
    scene.refusals = ["a producer writes"]
    put(scene, topic(SCHEDULE))
    looks(scene, 3)
    record = scene.topic()
    assert (record.phase, record.schedule, len(scene.asked)) == (TopicPhase.MIRRORING, None, 1)
    assert (record.reason, record.way_on) == ("direct-writers: a producer writes", "restart it")
    witness = Witness()
    witness.follow(scene.log.state, (), 0.0)
    [ended] = witness.due(10.0)
    report = report_of(ended, scene.log.state, {})
    assert (report.outcome, report.asked.by, report.reason) == (Outcome.GIVEN_UP, "ann@desk", record.reason)


def test_with_a_deadline_refusals_are_asked_again_with_growing_pauses(scene: Scene) -> None:
    scene.refusals = ["a producer writes"] * 3
    put(scene, topic(replace(SCHEDULE, deadline_ms=T0 + 3_600_000)))
    duty = looks(scene, 1)
    waits = "tried again until 2023-11-14 23:13:20 UTC: direct-writers: a producer writes"
    assert duty.reasons == {"topic/l/t": waits}
    looks(scene, 4, duty)
    assert len(scene.asked) == 1
    looks(scene, 1, duty)
    assert len(scene.asked) == 2
    looks(scene, 10, duty)
    looks(scene, 20, duty)
    assert len(scene.asked) == 4
    assert scene.topic().phase is TopicPhase.PROMOTE_PENDING


def test_a_promote_that_is_given_up_is_asked_for_again_until_it_is_through(scene: Scene) -> None:
    put(scene, topic(replace(SCHEDULE, deadline_ms=T0 + 3_600_000)))
    duty = looks(scene, 1)
    assert scene.topic().schedule is not None
    first = scene.topic().asked
    put(scene, given_up(scene.topic(), "not-drained: router r"))
    looks(scene, 5, duty)
    assert (scene.topic().phase, duty.reasons["topic/l/t"].partition("UTC: ")[2]) == (
        TopicPhase.MIRRORING,
        "not-drained: router r",
    )
    looks(scene, 2, duty)
    assert scene.topic().phase is TopicPhase.PROMOTE_PENDING
    assert scene.topic().asked != first, "each try leaves a report of its own"
    put(scene, given_up(scene.topic(), "not-drained: router r"))
    looks(scene, 9, duty)
    assert len(scene.asked) == 2, "the second pause is twice as long"
    looks(scene, 3, duty)
    assert len(scene.asked) == 3


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (SCHEDULE, "direct-writers: a producer writes"),
        (replace(SCHEDULE, postponed=True), "its time had not come"),
    ],
)
def test_the_deadline_ends_the_schedule_with_the_last_reason(scene: Scene, schedule: Schedule, last: str) -> None:
    scene.refusals = ["a producer writes"] * 9
    put(scene, topic(replace(schedule, deadline_ms=T0 + 20_000)))
    looks(scene, 22)
    record = scene.topic()
    assert record.schedule is None
    assert record.reason == f"deadline-over: no promote by 2023-11-14 22:13:40 UTC: {last}"


def test_a_postponed_promote_waits_for_its_file(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "go"
    put(scene, topic(replace(SCHEDULE, postponed=True, release_file=str(file))))
    duty = looks(scene, 3)
    assert scene.asked == []
    assert duty.reasons["topic/l/t"] == (
        f"postponed by ann@desk until released: kmigrate promote --release --link l t, or the file {file}"
    )
    file.touch()
    looks(scene, 2, duty)
    assert scene.topic().phase is TopicPhase.PROMOTE_PENDING


def test_a_schedule_that_a_person_takes_back_meanwhile_is_not_written_over(scene: Scene) -> None:
    scene.refusals = ["a producer writes"]
    put(scene, topic(SCHEDULE))
    taken_back = replace(scene.topic(), schedule=None, reason="cancelled: taken back by bob")
    scene.log.meanwhile(lambda _: taken_back)
    looks(scene, 1)
    assert scene.topic() == taken_back
