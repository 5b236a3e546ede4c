"""Groups that are promoted and rolled back under live members: nothing is skipped, nothing is read twice.

`test_group_follow.py` and `test_java_clients.py` roll groups back each day.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec
from kmigrate.sandbox.kafka import TARGET_VERSION
from tests.emptied import HASTY
from tests.integration.migration import PATIENT, Migration, fresh_migration, wait_until
from tests.integration.test_group_follow import NEW

pytestmark = pytest.mark.soak
GROUP = "billing"
TOPIC = "orders"
FRESH = {"metadata_max_age_ms": 3000}
SETTINGS = f"{PATIENT}straggler_window_s = 1.0\n"


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    with fresh_migration(tmp_path, SETTINGS) as run:
        yield run


def begin(run: Migration, *members: ConsumerSpec, mode: str = "follow") -> None:
    """Have the members follow, or wait, at a router, with a producer at the router, too."""
    run.make_topic(TOPIC, 6)
    run.run_clients([ProducerSpec("p-rd", "librdkafka", TOPIC, 200.0), *members])
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", TOPIC)
    run.does("group", "mirror", GROUP, "--mode", mode)
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    run.traffic.roll("consumers", run.routers)
    if mode == "hold":
        all_wait(run, len(members))
    else:
        wait_until(lambda: at_source(run) == len(members), 60, "all members in the source's group, through the router")


def all_wait(run: Migration, members: int) -> None:
    wait_until(lambda: group(run)["router_members"] == members, 60, "all members to wait at the router")


def group(run: Migration) -> Any:
    (found,) = run.does("status")["groups"]
    return found


def at_source(run: Migration) -> int:
    found = group(run)
    return len(found["source_members"] or ()) if found["direct_members"] == 0 else 0


def promote(run: Migration, members: int) -> None:
    run.does("group", "promote", GROUP, "--yes")
    wait_until(lambda: group(run)["target_members"] == members, 60, "all members in the target's group")
    goes_on(run)


def roll_back(run: Migration, members: int) -> None:
    told = run.does("group", "rollback", GROUP, "--yes")
    assert [(each["phase"], each["mode"]) for each in told["groups"]] == [("mirrored", "follow")]
    wait_until(lambda: at_source(run) == members, 60, "all members in the source's group, through the router")
    goes_on(run)


def goes_on(run: Migration) -> None:
    run.writers_go_on(100)
    run.consumers_go_on()


def assert_clean(run: Migration) -> None:
    assert run.traffic is not None
    run.traffic.stop()
    wait_until(lambda: run.topic_status(TOPIC)["lag"] == 0, 20, "the copy to be complete")
    verdict = run.judge(TOPIC)
    assert verdict.count("group_rereads") == 0, verdict.named
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"


FAMILIES = (
    ConsumerSpec("c-rd", "librdkafka", GROUP, (TOPIC,)),
    ConsumerSpec("c-java", "java", GROUP, (TOPIC,)),
    ConsumerSpec("c-aio", "aiokafka", GROUP, (TOPIC,), FRESH),
)
NEWER = (
    ConsumerSpec("c-rd", "librdkafka", GROUP, (TOPIC,), NEW),
    ConsumerSpec("c-java", "java", GROUP, (TOPIC,), NEW),
)


def reports(run: Migration) -> list[tuple[str, str]]:
    return [(each["action"], each["outcome"]) for each in run.does("report", "list", GROUP)["reports"]]


def promote_topic(run: Migration) -> None:
    time.sleep(1.5)  # so that no write past the router is recent
    run.does("promote", TOPIC, "--yes", "--way-back")
    goes_on(run)


def test_a_group_goes_back_to_the_source_and_is_promoted_again_while_its_topic_stays(migration: Migration) -> None:
    run = migration
    begin(run, *FAMILIES)
    promote(run, 3)
    promote_topic(run)
    roll_back(run, 3)
    promote(run, 3)
    done = [("promote", "done"), ("rollback", "done"), ("promote", "done")]
    wait_until(lambda: reports(run) == done, 30, lambda: f"a report of each request: {reports(run)}")
    assert_clean(run)


def test_a_group_and_its_topic_go_back_in_either_order(migration: Migration) -> None:
    run = migration
    begin(run, *FAMILIES)
    promote(run, 3)
    roll_back(run, 3)
    promote(run, 3)
    promote_topic(run)
    roll_back(run, 3)
    run.does("rollback", TOPIC, "--yes")
    goes_on(run)
    promote(run, 3)
    promote_topic(run)
    run.does("rollback", TOPIC, "--yes")
    roll_back(run, 3)
    assert_clean(run)


def test_members_of_a_group_that_holds_wait_after_its_rollback_and_read_on_after_the_next_promote(
    migration: Migration,
) -> None:
    run, members = migration, (FAMILIES[0], FAMILIES[2])
    begin(run, *members, mode="hold")
    promote(run, len(members))
    told = run.does("group", "rollback", GROUP, "--yes")
    assert [(each["phase"], each["mode"]) for each in told["groups"]] == [("mirrored", "hold")]
    all_wait(run, len(members))
    run.writers_go_on(100)
    promote(run, len(members))
    assert_clean(run)


@pytest.mark.parametrize("members", [NEWER, (*NEWER, FAMILIES[-1])], ids=["new protocol", "both protocols"])
def test_members_of_the_new_protocol_go_back_with_their_group(
    tmp_path: Path, members: tuple[ConsumerSpec, ...]
) -> None:
    count = len(members)
    with fresh_migration(tmp_path, SETTINGS, source_version=TARGET_VERSION, config=HASTY) as run:
        begin(run, *members)
        promote(run, count)
        roll_back(run, count)
        promote(run, count)
        assert_clean(run)


@pytest.mark.parametrize("victim", ["controller", "router"])
def test_a_kill_in_the_middle_of_a_rollback_leaves_it_clean(migration: Migration, victim: str) -> None:
    """kill -9 of an engine, then a restart: the rollback, or its repetition, ends, and no record is skipped."""
    run = migration
    members = (FAMILIES[0], FAMILIES[2])
    begin(run, *members)

    def strike() -> None:
        time.sleep(1.0)
        run.kill(victim)
        time.sleep(0.3)
        run.start(victim)
        if victim == "router":
            forget = ("router", "forget", "router", "--dead", "--yes")
            wait_until(lambda: run.cli(*forget).code == 0, 20, "the earlier process to be called dead")

    promote(run, len(members))
    run.again("group", "rollback", GROUP, "--yes", during=strike)
    wait_until(lambda: at_source(run) == len(members), 60, "all members in the source's group, through the router")
    goes_on(run)
    promote(run, len(members))
    run.does("promote", TOPIC, "--yes")
    verdict = run.judge(TOPIC)
    assert (verdict.count("group_gaps"), verdict.count("lost")) == (0, 0), f"{verdict.named}\n{run.logs()}"


def test_a_source_that_stands_still_keeps_a_rollback_back_and_the_members_read_on(migration: Migration) -> None:
    run = migration
    begin(run, FAMILIES[0])
    promote(run, 1)
    promote_topic(run)
    (node,) = run.source.brokers
    run.source.pause(node)
    refused = run.cli("group", "rollback", GROUP, "--yes")
    assert (refused.code != 0, group(run)["phase"]) == (True, "promoted"), refused
    goes_on(run)
    run.source.resume(node)
    roll_back(run, 1)
