"""A router in front of the secure pair, started by the command line, and clients that log in through the router."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Producer

from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.command_line import Call, program
from tests.integration.migration import wait_until
from tests.integration.secure_world import SecurePair


@dataclass
class SecureRouter:
    """A running `kmigrate router run`; `log` holds all its output."""

    pair: SecurePair
    bootstrap: str
    log: Path
    process: subprocess.Popen[bytes]

    def client(self, user: str = "producers", mechanism: str = "SCRAM-SHA-512", **more: Any) -> dict[str, Any]:
        """Return librdkafka's settings for a user of the target.

        The target's authority signed the router's certificate.
        """
        login = self.pair.target.security.access(user, mechanism).librdkafka() if user else {}
        return {**login, "bootstrap.servers": self.bootstrap, "log_level": 0, **more}

    def said(self, words: str) -> None:
        wait_until(lambda: words in self.log.read_text("utf-8"), 15, f"the router to say {words!r}: {self.log}")


def answered(folder: Path, *words: str, within_s: float = 90) -> dict[str, Any]:
    """Return the JSON of a verb that must succeed, with the configuration of the router in this folder."""
    done = Call([*words, "--config", str(folder / "kmigrate.toml"), "--json"]).end(within_s)
    assert done is not None, f"{words} had not ended"
    assert done[0] == 0, done
    told: dict[str, Any] = json.loads(done[1])
    return told


@contextlib.contextmanager
def secure_router(
    pair: SecurePair,
    folder: Path,
    section: str,
    clients: str = "",
    clusters: str = "",
    verb: Sequence[str] = ("router", "run"),
) -> Iterator[SecureRouter]:
    """Run a router in front of the pair while the block lasts.

    `section` holds the settings of `[router]` beside the certificate, `clients` the table of clients. `clusters`
    replaces the sections of the clusters, which log in by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = pair.target.security.issue("router")
    lines = [clusters or by_login(pair)]
    lines.append(f'[defaults]\ntarget = "target"\n[router]\nname = "{folder.name}"\n')
    lines.append(f'certificate = "{certificate}"\nkey = "{key}"\n{section}\n')
    if clients:
        (folder / "clients.toml").write_text(clients, encoding="utf-8")
        lines.append('credentials = "clients.toml"\n')
    config, log = folder / "kmigrate.toml", folder / "router.log"
    config.write_text("".join(lines), encoding="utf-8")
    with log.open("wb") as sink:
        command = program("kmigrate", *verb, "--config", str(config), "--json")
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:

        def listens() -> str:
            assert process.poll() is None, log.read_text("utf-8")
            told = [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
            return next((one["bootstrap"] for one in told if one["event"] == "router-listening"), "")

        yield SecureRouter(pair, str(wait_until(listens, 30, "the router to listen")), log, process)
    finally:
        process.terminate()
        process.wait(15)


def by_login(pair: SecurePair) -> str:
    lines = []
    for cluster in (pair.source, pair.target):
        lines.append(f'[clusters.{cluster.spec.name}]\n"bootstrap.servers" = "{cluster.bootstrap}"\n')
        lines.append(cluster.security.access("kmigrate").toml())
    return "".join(lines)


def by_certificate(pair: SecurePair) -> str:
    """Return both clusters' sections with the listeners that identify a client by its certificate alone."""
    lines = []
    for cluster in (pair.source, pair.target):
        name, security = cluster.spec.name, cluster.security
        lines.append(f'[clusters.{name}]\n"bootstrap.servers" = "127.0.0.1:{pair.certificate_ports[name]}"\n')
        lines.append(f'"security.protocol" = "SSL"\n"ssl.ca.location" = "{security.ca_file}"\n')
        lines.append(shown(*security.issue("kmigrate")))
    return "".join(lines)


def shown(certificate: Path, key: Path) -> str:
    return f'"ssl.certificate.location" = "{certificate}"\n"ssl.key.location" = "{key}"\n'


def entry(name: str, cluster: KafkaCluster, user: str, password: str = "", certificate: str = "") -> str:
    """Return a client's entry of the table: at a cluster, a user of that cluster stands for the client."""
    access = replace(cluster.security.access(user), mechanism="SCRAM-SHA-256")
    head = f"[clients.{name}]\n" if password or certificate else ""
    head += f'password = "{password}"\n' if password else ""
    head += f'certificate = "{certificate}"\n' if certificate else ""
    return f"{head}[clients.{name}.clusters.{cluster.spec.name}]\n{access.sasl_toml()}"


class Calm:
    """Watches a client for a stretch without a lost connection and without a resent request."""

    def __init__(self) -> None:
        self._troubles = -1
        self._since = float("inf")

    @property
    def config(self) -> dict[str, Any]:
        return {"statistics.interval.ms": 200, "stats_cb": self._look}

    def _look(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        troubles = sum(int(broker["disconnects"]) + int(broker["txretries"]) for broker in brokers)
        if troubles != self._troubles:
            self._troubles, self._since = troubles, time.monotonic()

    def lasts(self, seconds: float) -> None:
        """Wait for a stretch of that many seconds.

        A machine that stands still for a moment may end a session; then the next stretch counts.
        """
        wait_until(lambda: time.monotonic() - self._since > seconds, 60, f"{seconds} s without any trouble")


def written(config: dict[str, Any], topic: str, *values: str) -> list[KafkaError | None]:
    """Write the values with a producer, and return the outcome of each record."""
    told: list[KafkaError | None] = []
    producer = Producer({**config, "message.timeout.ms": 20_000})
    for value in values:
        producer.produce(topic, value.encode(), partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(25) == 0
    return told
