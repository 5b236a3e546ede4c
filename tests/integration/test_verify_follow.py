"""`kmigrate verify --follow` beside a live mirror, and its output at the end."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.command_line import program
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import bounds, produce, transactions
from tests.integration.test_verify import mirror_of, topics_of, write_again
from tests.json_output import check_document


class Following:
    """The call, and the lines that it has written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def told(self, event: str) -> list[dict[str, Any]]:
        for line in self.lines:
            check_document("verify", line)
        return [line for line in self.lines if line["event"] == event]

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@contextmanager
def following(run: Migration, link: str) -> Iterator[Following]:
    command = program("kmigrate", "verify", "--follow", "--interval", "0.2", "--link", link)
    command += ["--master", "local[2]", "--config", str(run.config), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Following(process)
        finally:
            process.kill()


def test_a_live_copy_is_verified_as_it_grows_and_a_difference_is_told_once(
    tmp_path: Path,
    source: KafkaCluster,
    target: KafkaCluster,
    make_topic: Callable[..., None],
    unique_name: Callable[[str], str],
) -> None:
    run = Migration(source, target, tmp_path / "run")
    link, plain, mapped = unique_name("link"), unique_name("plain"), unique_name("mapped")
    for topic in (plain, mapped):
        make_topic(source, topic, 2)
        produce(source.bootstrap, topic, 400, partitions=2)
        transactions(source.bootstrap, topic, 10, name=unique_name("tx"), partitions=2)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    with following(run, link) as check:
        with mirror_of(run, link):
            run.does("topic", "mirror", plain, "--link", link)
            run.does("topic", "mirror", mapped, "--offsets", "mapped", "--link", link)
            wait_until(lambda: sum(line["records"] for line in check.told("compared")) >= 880, 60, "both topics")
            for topic in (plain, mapped):
                produce(source.bootstrap, topic, 100, partitions=2, first=400)
            wait_until(lambda: sum(line["records"] for line in check.told("compared")) >= 1_080, 60, "what is new")
            for topic in (plain, mapped):
                wait_until(lambda topic=topic: topics_of(run)[topic]["unverified"] == 0, 30, f"{topic} to be verified")  # type: ignore[misc]
        assert all(line["equal"] for line in check.told("compared"))
        end = bounds(target.bootstrap, plain)[0][1]
        produce(source.bootstrap, plain, 20, first=500)
        write_again(source, target, plain, 20, 7)  # This takes the place of the mirror, which has ended.
        wait_until(lambda: check.lines[-1]["event"] == "compared" and not check.lines[-1]["equal"], 60, "the fault")
        code = check.end()
    differing = [line for line in check.told("compared") if not line["equal"]]
    assert [(line["examples"][0]["kind"], line["examples"][0]["source"]["offset"]) for line in differing] == [
        ("altered", end + 7)
    ]
    (last,) = check.told("ended")
    assert (code, last["equal"], last["differing"]) == (4, False, [{"topic": plain, "partition": 0}])
    verified = next(p["verified_to"] for p in topics_of(run)[plain]["partitions"])
    assert end <= verified <= end + 7, "up to where it was last equal"
