"""Tests of the AdminClient: the end of its client, members read from its description, brokers that leave meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import MemberAssignment, MemberDescription, NewTopic

from kmigrate.cluster.admin import Admin, GroupState, _assigned
from kmigrate.errors import BrokerRefused, Unreachable, UsageError
from kmigrate.model.security import Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.sandbox.security import SandboxSecurity

THREADS = Path("/proc/self/task")
SCENE = """
import gc
from pathlib import Path
from kmigrate.cluster.admin import Admin
from kmigrate.model.security import PLAINTEXT, Bearer, Login, Security
from kmigrate.model.settings import ClusterSettings

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

def admin():
    made = Admin(ClusterSettings("c", (("127.0.0.1", 1),), security={security}))
    made.client
    return made

gc.disable()
one = admin()
running = threads()
del one
print(running > 1, threads())
with admin() as other:
    running = threads()
print(running > 1, threads())
other.close()
"""
"""A script for a process of its own, in which nothing else starts or ends threads."""


@pytest.mark.skipif(not THREADS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "security",
    ["PLAINTEXT", "Security(sasl=Login('PLAIN', 'me', 'x'))", "Security(sasl=Bearer(token='x'))"],
    ids=["plain", "login", "bearer"],
)
def test_a_client_ends_with_the_last_who_holds_it_and_when_it_is_closed(security: str) -> None:
    command = [sys.executable, "-c", SCENE.format(security=security)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.split() == ["True", "1", "True", "1"], ran.stderr


def test_a_renewed_certificate_is_read_by_a_client_that_runs_and_a_broken_one_is_not(tmp_path: Path) -> None:
    """librdkafka reads a certificate only once.

    A mirror that went on with an expired certificate could not create a topic.
    """
    authority = SandboxSecurity.create(tmp_path / "s")
    first, second = authority.issue("one"), authority.issue("two")
    certificate, key = tmp_path / "ours.pem", tmp_path / "ours.key"

    def put(file: Path, made: Path) -> None:
        file.write_bytes(made.read_bytes())

    put(certificate, first[0])
    security = Security(Tls(str(authority.ca_file), str(certificate), str(key)))
    with Admin(ClusterSettings("c", (("127.0.0.1", 1),), security=security)) as admin:
        with pytest.raises(UsageError, match="tls-file-unusable"):
            _ = admin.client
        put(key, first[1])
        used = admin.client
        assert admin.client is used
        put(certificate, second[0])
        assert admin.client is used
        put(key, second[1])
        assert admin.client is not used


def given(*topics: str) -> MemberAssignment:
    return MemberAssignment([TopicPartition(topic, 0) for topic in topics])


@pytest.mark.parametrize(
    ("wanted", "found"), [(None, ["a"]), (given("b"), ["a", "b"]), (given(), ["a"])], ids=["classic", "more", "less"]
)
def test_a_member_reads_what_it_has_and_what_it_is_about_to_get(
    wanted: MemberAssignment | None, found: list[str]
) -> None:
    member = MemberDescription("m", "c", "h", given("a"), target_assignment=wanted)
    assert [part.topic for part in _assigned(member)] == found


def test_a_group_that_keeps_the_type_of_its_hold_has_no_members_and_other_types_are_errors() -> None:
    """Brokers keep the protocol type of a group's last member, and librdkafka describes consumer groups alone."""

    class Brokers:
        def __init__(self, kind: str) -> None:
            self.error = KafkaError(KafkaError._INVALID_ARG, f"GroupId g is not a consumer group ({kind}).")

        def poll(self, _: float) -> None: ...

        def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
            future: Future[Any] = Future()
            future.set_exception(KafkaException(self.error))
            return dict.fromkeys(names, future)

    found = asyncio.run(_admin(Brokers("kmigrate")).describe_groups(["g"]))  # type: ignore[arg-type]
    assert found == {"g": GroupState("g", "empty", "classic", ())}
    with pytest.raises(BrokerRefused, match="connect"):
        asyncio.run(_admin(Brokers("connect")).describe_groups(["g"]))  # type: ignore[arg-type]


class _Leaving:
    """A cluster that loses the given number of requests, and answers the next with the given code (0: no error)."""

    def __init__(self, times: int, code: int = 0) -> None:
        self.times = times
        self.code = code
        self.asked = 0

    def poll(self, _: float) -> None:
        return

    def _answer(self) -> Future[Any]:
        self.asked += 1
        code = KafkaError._DESTROY_BROKER if self.asked <= self.times else self.code
        future: Future[Any] = Future()
        if code:
            future.set_exception(KafkaException(KafkaError(code)))
        else:
            future.set_result({})
        return future

    def create_topics(self, topics: Sequence[NewTopic], **_: Any) -> dict[str, Future[Any]]:
        return {topics[0].topic: self._answer()}

    def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[Any, Future[Any]]:
        return {resource: self._answer() for resource in resources}


class _Groups:
    """A cluster whose only group has another protocol type than consumers have."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def poll(self, _: float) -> None:
        return

    def describe_consumer_groups(self, names: Sequence[str], **_: Any) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        why = f"GroupId {names[0]} is not a consumer group ({self.kind})."
        future.set_exception(KafkaException(KafkaError(KafkaError._INVALID_ARG, why)))
        return {names[0]: future}


def _admin(client: _Leaving | _Groups, timeout: float = 30.0) -> Admin:
    admin = Admin(ClusterSettings("target", (("127.0.0.1", 1),), request_timeout_s=timeout))
    admin._client = client  # type: ignore[assignment]
    return admin


@pytest.mark.parametrize(("code", "made"), [(0, True), (KafkaError.TOPIC_ALREADY_EXISTS, False)])
def test_a_topic_is_asked_for_again(code: int, made: bool) -> None:
    client = _Leaving(2, code)
    assert asyncio.run(_admin(client).create_topic("orders", 1, 1)) is made
    assert client.asked == 3


def test_a_group_that_a_hold_has_left_is_empty_and_a_group_of_workers_is_no_group_of_consumers() -> None:
    """Brokers keep the protocol type of the last member until somebody joins."""
    described = asyncio.run(_admin(_Groups("kmigrate")).describe_groups(["billing"]))
    assert described == {"billing": GroupState("billing", "empty", "classic", ())}
    with pytest.raises(BrokerRefused):
        asyncio.run(_admin(_Groups("connect")).describe_groups(["workers"]))


def test_configs_of_all_topics_are_asked_for_again() -> None:
    client = _Leaving(1)
    assert asyncio.run(_admin(client).topic_configs(["a", "b"])) == {"a": {}, "b": {}}
    assert client.asked == 4


def test_a_cluster_whose_brokers_only_leave_is_unreachable_and_nothing_is_claimed() -> None:
    with pytest.raises(Unreachable) as caught:
        asyncio.run(_admin(_Leaving(1_000), timeout=0.3).create_topic("orders", 1, 1))
    assert caught.value.still_true == "nothing is known to have changed"


@pytest.mark.parametrize("steps", range(4))
def test_who_is_ended_just_as_the_answer_comes_is_ended(steps: int) -> None:
    """Otherwise a loop around an admin request would never end, and its canceller would wait for ever."""
    answer: Future[Any] = Future()

    class _Slow(_Leaving):
        def _answer(self) -> Future[Any]:
            return answer

    async def scene() -> None:
        task = asyncio.create_task(_admin(_Slow(0)).create_topic("orders", 1, 1))
        await asyncio.sleep(0.01)
        answer.set_result({})  # the answer is scheduled on the loop, and the loop has not run yet
        for _ in range(steps):
            await asyncio.sleep(0)
        ended = task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled() == ended

    asyncio.run(scene())
