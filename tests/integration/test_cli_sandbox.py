"""The command line as an operator types it: a sandbox, a link, a status, and the removal of everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.config.load import load
from kmigrate.config.settings import Settings
from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.traffic import Traffic
from tests.json_output import check_output

ROOT = Path(__file__).parents[2]


class Shell:
    """Runs `kmigrate` in a folder of its own, and `kmigrate run` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("KMIGRATE_SANDBOX")},
            "PYTHONPATH": str(ROOT),
            "KMIGRATE_CONFIG": "build/sandbox/kmigrate.toml",
        }
        self.engines: subprocess.Popen[str] | None = None

    def __call__(self, *words: str, code: int = 0, lines: bool = False) -> dict[str, Any]:
        """Run a verb, and return its document; of a verb that prints lines the last line."""
        done = subprocess.run(
            [sys.executable, "-m", "kmigrate", *words, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        check_output(words, done.stdout)
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1] if lines else done.stdout)
        return told

    def run_engines(self, *words: str) -> dict[str, Any]:
        self.engines = subprocess.Popen(
            [sys.executable, "-m", "kmigrate", "run", *words, "--json"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.engines.stdout is not None
        for line in self.engines.stdout:
            told: dict[str, Any] = json.loads(line)
            if told["event"] == "router-listening":
                return told
        raise AssertionError("kmigrate run ended without listening")

    def stop_engines(self) -> tuple[int, list[dict[str, Any]]]:
        assert self.engines is not None
        self.engines.terminate()
        rest, _ = self.engines.communicate(timeout=30)
        return self.engines.returncode, [json.loads(line) for line in rest.splitlines()]


@pytest.fixture
def kmigrate(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.environment.pop("KMIGRATE_CONFIG")
    shell("sandbox", "up")
    shell.environment["KMIGRATE_CONFIG"] = "build/sandbox/kmigrate.toml"
    try:
        yield shell
    finally:
        if shell.engines is not None and shell.engines.poll() is None:
            shell.engines.kill()
            shell.engines.wait(10)
        if (tmp_path / "build/sandbox/sandbox.json").exists():
            shell("sandbox", "down")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_topic_is_moved_by_the_commands_that_the_help_names(kmigrate: Shell) -> None:
    status = kmigrate("sandbox", "status")
    assert status["state"] == "running"
    source, target = (cluster["bootstrap"] for cluster in status["clusters"])
    admin = AdminClient({"bootstrap.servers": source})
    admin.create_topics([NewTopic("notes", 2, 1)])["notes"].result(30)
    _produce(source, "notes", range(100))

    # The steps are out of order: each step that comes too early names the step to do first.
    assert kmigrate("status", code=3)["error"] == "no-state-log"
    assert kmigrate("link", "create", "l", "--source", "source", "--plan")["applied"] is False
    assert kmigrate("link", "list", code=3)["error"] == "no-state-log"
    assert kmigrate("link", "create", "l", "--source", "source")["applied"] is True
    assert kmigrate("link", "create", "l", "--source", "source")["changes"] == []
    assert kmigrate("topic", "mirror", "nowhere", code=3)["error"] == "unknown-topic"
    assert kmigrate("promote", "notes", "--yes", code=3)["error"] == "not-mirrored"
    assert kmigrate("verify", code=3)["error"] == "nothing-to-verify"
    outlook = kmigrate("plan", "notes")["topics"][0]
    assert (outlook["offsets"], outlook["partitions"], outlook["records"]) == ("identical", 2, 100)

    # No mirror runs yet: the intent stays written.
    kmigrate.environment["KMIGRATE_DEFAULTS__PROCESS_WAIT_S"] = "3"
    late = kmigrate("topic", "mirror", "notes", code=5)
    assert (late["error"], late["what"]) == ("no-mirror-running", "no mirror process of link l is heard of, for 3 s")
    late = kmigrate("promote", "notes", "--yes", code=5)
    assert (late["error"], late["next"]) == ("no-mirror-running", "kmigrate run, or kmigrate mirror run --link l alone")
    del kmigrate.environment["KMIGRATE_DEFAULTS__PROCESS_WAIT_S"]
    assert kmigrate("topic", "list")["topics"][0]["phase"] == "initialising"
    assert kmigrate("link", "delete", "l", "--yes", code=3)["error"] == "topic-not-promoted"

    router = kmigrate.run_engines()
    assert kmigrate("topic", "mirror", "notes")["topics"][0]["phase"] == "mirroring"
    _produce(router["bootstrap"], "notes", range(100, 150))
    assert kmigrate("promote", "notes", code=2)["error"] == "needs-yes"
    assert kmigrate("promote", "notes", "--plan")["applied"] is False
    promoted = kmigrate("promote", "notes", "--yes")["topics"][0]
    assert promoted["phase"] == "promoted"
    _produce(router["bootstrap"], "notes", range(150, 200))
    assert _values(target, "notes", 200) == [b"%d" % number for number in range(200)]
    assert _values(source, "notes", 150) == [b"%d" % number for number in range(150)]

    shot = kmigrate("status")
    assert [(t["topic"], t["phase"], t["offsets"], t["lag"]) for t in shot["topics"]] == [
        ("notes", "promoted", "identical", 0)
    ]
    assert kmigrate("link", "alter", "--set", "hole_limit=7")["changes"] == ["link l: hole_limit: 100000 → 7"]
    assert kmigrate("link", "show")["settings"]["hole_limit"] == 7
    assert kmigrate("link", "alter", "--set", "hole_limit=none", code=2)["error"] == "bad-config-value"
    kmigrate.environment["KMIGRATE_MIRROR__HOLE_LIMIT"] = "8"
    found = kmigrate("link", "check")["findings"]
    del kmigrate.environment["KMIGRATE_MIRROR__HOLE_LIMIT"]
    assert (found[0]["level"], found[-1]["ref"]) == ("ok", "link-settings-differ")
    code, lines = kmigrate.stop_engines()
    assert (code, lines[-1]) == (0, {"event": "stopped"})
    kmigrate("link", "delete", "l", "--yes")
    assert kmigrate("link", "list") == {"links": []}
    assert kmigrate("sandbox", "down")["state"] == "down"
    assert kmigrate("sandbox", "status", code=3)["error"] == "no-sandbox"


def test_doctor_names_versions_and_capabilities_and_changes_nothing(kmigrate: Shell) -> None:
    told = kmigrate("doctor")
    assert told["ok"] is True
    refs = {finding["ref"]: finding for finding in told["cluster target"]}
    assert "Kafka 4.3" in refs["cluster-answers"]["what"]
    assert "Kafka 3.9" in told["cluster source"][0]["what"]
    for capability in (
        "describe-producers",
        "write-txn-markers",
        "delete-records",
        "producer-memory",
        "kip-848",
        "authorizer",
    ):
        assert refs[capability]["level"] == "ok"
    assert "no state log" in refs["state-log"]["what"]
    assert kmigrate("link", "list", "--target", "target", code=3)["error"] == "no-state-log"
    clients_are_rolled_to_the_port_at_which_the_router_listens(kmigrate)


def clients_are_rolled_to_the_port_at_which_the_router_listens(kmigrate: Shell) -> None:
    """The sandbox's configuration has another port, at which no router listens."""
    source, _ = (cluster["bootstrap"] for cluster in kmigrate("sandbox", "status")["clusters"])
    admin = AdminClient({"bootstrap.servers": source})
    admin.create_topics([NewTopic("notes", 2, 1)])["notes"].result(30)
    traffic = Traffic.create(
        kmigrate.folder / "build/sandbox/traffic", [ProducerSpec("p", "librdkafka", "notes", 50)], tied=True
    )
    traffic.start(source)
    refused = kmigrate("sandbox", "traffic", "roll", "p", code=3)
    assert (refused["error"], refused["still_true"]) == ("no-router", "no client was touched")
    assert traffic.fallen() == []
    port = free_ports(1)[0]
    assert kmigrate.run_engines("--port", str(port))["bootstrap"] == f"127.0.0.1:{port}"
    assert kmigrate("link", "create", "l", "--source", "source")["applied"] is True
    assert kmigrate("topic", "mirror", "notes")["topics"][0]["phase"] == "mirroring"
    rolled = kmigrate("sandbox", "traffic", "roll", "p")
    assert (rolled["rolled"], rolled["bootstrap"]) == (["p"], f"127.0.0.1:{port}")
    traffic.kill("all")


def _produce(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0


def _values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Return all values in the order of their numbers: a lost or doubled value shows."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"judge-{count}", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"{len(found)} of {count} values"
            assert message.error() is None
            found.append(message.value() or b"")
        extra = consumer.poll(1)
        assert extra is None
        return sorted(found, key=int)
    finally:
        consumer.close()


def test_a_second_sandbox_beside_the_first_has_other_ports_and_says_which(kmigrate: Shell) -> None:
    first = kmigrate("sandbox", "status")
    assert kmigrate("sandbox", "up", code=3)["error"] == "sandbox-already-up"
    second = kmigrate("sandbox", "up", "--folder", "build/second")
    try:
        files = ["build/sandbox/kmigrate.toml", second["config"]]
        one, other = (load(kmigrate.folder / file, {}) for file in files)
        ports = [_ports(one, first), _ports(other, second)]
        assert not ports[0] & ports[1]
        assert len(ports[0]) == len(ports[1]) == 3
        assert second["router"] == f"127.0.0.1:{other.router.port}"
        demo = kmigrate("sandbox", "demo", "--folder", "build", code=3)
        assert demo["error"] == "sandbox-already-up", "a demo would have removed the files of a sandbox that runs"
    finally:
        kmigrate("sandbox", "down", "--folder", "build/second")
    assert kmigrate("sandbox", "status")["state"] == "running"


def _ports(settings: Settings, status: dict[str, Any]) -> set[int]:
    """Return the ports of a sandbox's configuration, which must be those of the sandbox's brokers."""
    brokers = {cluster["name"]: cluster["bootstrap"] for cluster in status["clusters"]}
    assert {name: cluster.bootstrap_servers for name, cluster in settings.clusters.items()} == brokers
    return {int(address.rpartition(":")[2]) for address in brokers.values()} | {settings.router.port}
