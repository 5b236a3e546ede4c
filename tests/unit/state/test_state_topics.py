"""Tests of the advice about a state topic that cannot be read, or cannot hold state."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kmigrate
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import BrokerRefused, KmigrateError, Refused, Unreachable
from kmigrate.model.security import Bearer, Login, Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.state.log import STATE_TOPIC
from kmigrate.state.topics import single_partition_topic


class Told:
    """A cluster with the same answer about a topic at each refresh, and the same log end for all partitions."""

    def __init__(self, partitions: int, error: int = 0, end: int = 0, end_error: int = 0) -> None:
        self.settings = ClusterSettings("target", (("h", 9092),), security=Security(None, Login("PLAIN", "mover", "x")))
        parts = {number: PartitionInfo(1, 0, (1,)) for number in range(partitions)}
        self._info = TopicInfo(STATE_TOPIC, None, parts, error)
        self._end = SimpleNamespace(offset=end, error=end_error)

    async def topic(self, name: str) -> TopicInfo:
        return self._info

    async def list_offsets(self, keys: dict[tuple[str, int], int]) -> dict[tuple[str, int], Any]:
        return dict.fromkeys(keys, self._end)


def refusal(told: Told, patience_s: float = 0.0) -> KmigrateError:
    with pytest.raises(KmigrateError) as caught:
        asyncio.run(single_partition_topic(told, STATE_TOPIC, patience_s))  # type: ignore[arg-type]
    return caught.value


def test_a_topic_that_may_not_be_seen_has_no_wrong_number_of_partitions() -> None:
    error = refusal(Told(0, Code.TOPIC_AUTHORIZATION_FAILED))
    assert isinstance(error, BrokerRefused)
    assert f"refused DESCRIBE on topic {STATE_TOPIC} to User:mover" in error.what
    assert "partitions" not in error.what


def test_a_topic_whose_leader_is_not_elected_yet_has_no_wrong_number_of_partitions() -> None:
    error = refusal(Told(0, Code.LEADER_NOT_AVAILABLE))
    assert isinstance(error, Unreachable)
    assert "LEADER_NOT_AVAILABLE" in error.what


def test_only_a_topic_that_surely_holds_no_record_may_be_deleted() -> None:
    assert isinstance(refusal(Told(3)), Refused)
    assert "delete the empty topic" in refusal(Told(3)).next_step
    for told in (Told(3, end=1), Told(3, end_error=Code.TOPIC_AUTHORIZATION_FAILED)):
        assert "delete" not in refusal(told).next_step
        assert f"keep topic {STATE_TOPIC}" in refusal(told).next_step


@pytest.mark.parametrize(
    ("security", "named"),
    [
        (Security(None, Login("PLAIN", "mover", "secret")), "User:mover"),
        (Security(None, Bearer("token")), "the principal of its token"),
        (Security(Tls(cert_file="me.pem")), "the principal of certificate me.pem"),
        (Security(), "User:ANONYMOUS"),
    ],
)
def test_a_principal_is_named_as_far_as_the_configuration_tells_it(security: Security, named: str) -> None:
    assert security.principal == named


_DESTROYS = re.compile(r"\b(delete|remove|drop)\b.*(\btopics?\b|STATE_TOPIC|PRESENCE_TOPIC|MAP_TOPIC|__kmigrate)")
_ASKS_FIRST = ("delete_unneeded(", "empty topic", "delete the copy on the target")


def _advice() -> Iterator[tuple[str, str]]:
    """Return every next step in the source code, with the names of values in place of the values."""
    for file in sorted(Path(kmigrate.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "next_step":
                yield file.name, ast.unparse(node.value)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and len(node.args) > 3:
                yield file.name, ast.unparse(node.args[3])


def test_no_message_advises_to_delete_a_topic_that_somebody_may_need() -> None:
    found = list(_advice())
    assert len(found) > 200
    unasked = [
        (file, text)
        for file, text in found
        if _DESTROYS.search(text) and not any(words in text for words in _ASKS_FIRST)
    ]
    assert not unasked
