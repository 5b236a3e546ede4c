"""The playbooks that come with kmigrate move topics of real clusters; all of them share one pair of clusters.

The demo runs `quickstart`; `test_security_playbook` runs `secured-clusters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import Producer

from kmigrate.sandbox.final_read import read_topic
from tests.integration.command_line import Call
from tests.integration.migration import Migration, fresh_migration
from tests.json_output import documents_in

PLAYBOOKS = Path(__file__).parents[2] / "kmigrate" / "playbooks"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    """Clusters with a few topics and a group, and all engines."""
    with fresh_migration(
        tmp_path_factory.mktemp("playbooks"), "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 1.0\n"
    ) as migration:
        producer = Producer({**migration.source.client(), "linger.ms": 5})
        for topic in ("one", "first", "second", "mapped", "gate"):
            migration.make_topic(topic, 2)
            for number in range(500):
                producer.produce(topic, f"{number}".encode(), f"{number % 50}".encode())
        producer.flush(30)
        migration.make_group("readers", "first")
        migration.start("run")
        yield migration


def play(run: Migration, name: str, *flags: str, code: int = 0) -> list[dict[str, Any]]:
    words = ["playbook", "run", str(PLAYBOOKS / f"{name}.toml"), *flags, "--yes"]
    done = Call([*words, "--config", str(run.config), "--json"]).end(100)
    assert done is not None, f"{words} had not ended\n{run.logs()}"
    assert done[0] == code, f"{words}: {done}\n{run.logs()}"
    return list(documents_in(done[1]))


def outcomes(lines: list[dict[str, Any]]) -> dict[int, str]:
    return {line["step"]: line["outcome"] for line in lines if line.get("event") == "step-ended"}


def copied(run: Migration, topic: str) -> int:
    return sum(1 for _ in read_topic(run.target.bootstrap, topic))


def test_one_topic_is_moved_and_a_second_run_finds_nothing_to_do(run: Migration) -> None:
    flags = ["--set", "topic=one", "--approve", "all", "--set", "verify=false"]
    first = play(run, "one-topic", *flags)
    assert outcomes(first)[9] == "done"
    assert copied(run, "one") == 500
    again = outcomes(play(run, "one-topic", *flags))
    assert {again[step] for step in (1, 4, 9)} == {"nothing to do"}
    assert again[6] == "skipped", "nobody is asked again for what is done"


def test_batches_are_moved_one_after_the_other(run: Migration) -> None:
    """The first batch has a group. Without an approval the run ends before the promote, with an approval it goes on."""
    batch = ["--set", "batch=first", "--set", "groups=readers", "--set", "pause=0", "--set", "verify=false"]
    waits = play(run, "batch-by-batch", *batch, code=3)
    assert waits[-1]["error"] == "not-approved"
    assert run.does("topic", "show", "first")["phase"] == "mirroring"
    done = outcomes(play(run, "batch-by-batch", *batch, "--approve", "6"))
    assert (done[8], done[10]) == ("done", "done")
    play(run, "batch-by-batch", "--set", "batch=second", "--set", "verify=false", "--approve", "all")
    assert [copied(run, topic) for topic in ("first", "second")] == [500, 500]


def test_mapped_topics_are_moved_behind_records_that_the_target_has(run: Migration) -> None:
    play(run, "mapped-topics", "--set", "topics=mapped", "--approve", "all", "--set", "verify=false")
    assert copied(run, "mapped") == 500
    assert run.does("topic", "show", "mapped")["mapped"]


def test_a_ci_pipeline_copies_waits_at_the_gate_and_promotes(run: Migration, tmp_path: Path) -> None:
    report, page = tmp_path / "steps.xml", tmp_path / "parity.html"
    stage = ["--set", "topics=gate", "--junit", str(report)]
    copied_first = play(run, "ci-gate", *stage)
    assert {step for step, outcome in outcomes(copied_first).items() if outcome == "skipped"} == {5, 8, 9, 10, 11, 12}
    assert ET.parse(report).getroot().get("failures") == "0"
    gate = [*stage, "--set", "stage=promote", "--set", f"report={page}"]
    assert play(run, "ci-gate", *gate, code=3)[-1]["error"] == "not-approved"
    failed = ET.parse(report).getroot().findall("./testsuite/testcase/failure")
    assert [failure.get("type") for failure in failed] == ["not-approved"]
    promoted = play(run, "ci-gate", *gate, "--approve", "all")
    assert outcomes(promoted)[11] == "done"
    assert page.stat().st_size > 1_000


def test_a_whole_cluster_is_mirrored_by_expressions_and_promoted_by_name(run: Migration) -> None:
    """The expression matches no topic of another test: those topics have their own turn, in any order."""
    for topic in ("rest-1", "rest-2"):
        run.make_topic(topic, 2)
    topics = ["--set", "topics=rest-.*"]
    stands = outcomes(play(run, "whole-cluster", *topics))
    assert stands[10] == "skipped"
    assert {run.does("topic", "show", topic)["phase"] for topic in ("rest-1", "rest-2")} == {"mirroring"}
    flags = ["--set", "promote=rest-1", "--approve", "all", "--set", "verify=false"]
    assert outcomes(play(run, "whole-cluster", *topics, *flags))[10] == "done"
    assert [run.does("topic", "show", topic)["phase"] for topic in ("rest-1", "rest-2")] == ["promoted", "mirroring"]


def test_a_failure_runs_the_steps_of_on_failure(run: Migration, tmp_path: Path) -> None:
    run.make_topic("undone", 1)
    book = tmp_path / "undo.toml"
    book.write_text(
        '[[step]]\nrun = "link create"\nname = "blue"\nsource = "source"\ntarget = "target"\n'
        '[[step]]\nrun = "topic mirror"\ntopics = ["undone"]\n'
        '[[step]]\nexec = "false"\n'
        '[[on_failure]]\nrun = "topic pause"\ntopics = ["undone"]\n',
        encoding="utf-8",
    )
    done = Call(["playbook", "run", str(book), "--yes", "--config", str(run.config), "--json"]).end(60)
    assert done is not None
    lines = list(documents_in(done[1]))
    assert (done[0], lines[-1]["error"]) == (1, "exec-failed"), f"{lines}\n{run.logs()}"
    assert [line["outcome"] for line in lines if line.get("after_failure") and "outcome" in line] == ["done"]
    assert run.does("topic", "show", "undone")["paused"]
