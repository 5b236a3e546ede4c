"""A promote after a kill, with least privileges, names the missing right and the command that helps."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.integration.command_line import Call
from tests.integration.secure_router import SecureRouter, entry, secure_router
from tests.integration.secure_world import SecurePair
from tests.integration.test_router_secure import made, permit


def test_a_promote_after_a_kill_names_the_missing_right_and_the_command_that_helps(
    pair: SecurePair, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    topic, till, link = unique_name("paid"), unique_name("till"), unique_name("link")
    folder = tmp_path / unique_name("edge")
    made(pair, topic)
    for cluster in (pair.source, pair.target):
        permit(cluster, "producers", topic)
    clients = entry("producers", pair.source, "producers")

    def started(until: ExitStack) -> SecureRouter:
        text = 'security_protocol = "SASL_SSL"'
        return until.enter_context(secure_router(pair, folder, text, clients, verb=("run",)))

    def kmigrate(*words: str) -> tuple[int, dict[str, Any]]:
        done = Call([*words, "--config", str(folder / "kmigrate.toml"), "--json"]).end(90)
        assert done is not None, f"{words} had not ended"
        return done[0], json.loads(done[1])

    with ExitStack() as until:
        first = started(until)
        assert kmigrate("link", "create", link, "--source", "source")[0] == 0
        assert kmigrate("topic", "mirror", topic, "--link", link)[0] == 0
        producer = Producer(first.client("producers", **{"transactional.id": till}))
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"1", partition=0)
        producer.commit_transaction(30)
        first.process.kill()
        first.process.wait(10)
        started(until)

        promote = ("promote", topic, "--link", link, "--yes")
        code, told = kmigrate(*promote)
        assert (code, told["error"]) == (3, "transactional-id-denied"), told
        assert f"User:kmigrate WRITE transactional id {till}" in told["what"]
        assert f"allow User:kmigrate WRITE on transactional id {till}" in told["next"]
        forget = ("router", "forget", folder.name, "--dead")
        assert f"kmigrate {' '.join(forget)}" in told["next"]
        assert "mend the cause" not in told["next"]

        assert kmigrate(*forget, "--yes")[0] == 0
        code, told = kmigrate(*promote)
        assert (code, [each["phase"] for each in told["topics"]]) == (0, ["promoted"]), told
