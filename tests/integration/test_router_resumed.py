"""Transactions begun at the source, and ended through a router by another process, as Flink does."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

import pytest

from kmigrate.kafka_jars.java import find_java
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.java_clients import SOURCES, java_command
from tests.integration.router_world import ends, link_between, quietly, router

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


class Sink:
    """Kafka's Java producer, begun in a process and ended in another process by the same identity."""

    def __init__(self) -> None:
        self.identities: dict[str, tuple[str, str]] = {}
        """Producer id and epoch of each transaction, by transactional id."""
        self.newest: dict[str, tuple[str, str]] = {}
        java = find_java()
        if not (java.home / "bin" / "javac").is_file():
            pytest.skip(f"{java.home} is no JDK, which compiles source files")

    def begin(self, bootstrap: str, topic: str, *names: str) -> None:
        """Leave an open transaction of each id, with a record; an id that is named twice has two identities."""
        for line in self._run("begin", bootstrap, topic, *names):
            _, name, *identity = line.split()
            self.identities.setdefault(name, (identity[0], identity[1]))
            self.newest[name] = (identity[0], identity[1])
        assert set(names) <= self.identities.keys()

    def end(self, bootstrap: str, **names: str) -> dict[str, str]:
        """Commit or abort transactions; return the library's error for each, or ''."""
        words = [word for name, how in names.items() for word in (how, name, *self.identities[name])]
        told = [line.split(maxsplit=2) for line in self._run("end", bootstrap, *words)]
        return {words[1]: "" if words[0] == "ended" else words[2] for words in told}

    def commit(self, bootstrap: str, *names: str) -> dict[str, str]:
        return self.end(bootstrap, **dict.fromkeys(names, "commit"))

    def go_on(self, bootstrap: str, topic: str, name: str) -> list[str]:
        """Write on in the open transaction, then in another; return the outcome of both."""
        return [line.split()[0] for line in self._run("write", bootstrap, topic, name, *self.identities[name])]

    def _run(self, *words: str) -> list[str]:
        command = java_command(SOURCES / "CommitFromElsewhere.java", *words, level="error")
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if " " in line]


def stored(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    """Return the records that a reader of committed records sees."""
    return [record.value for record in read_topic(cluster.bootstrap, topic)]


def test_a_transaction_begun_at_the_source_is_ended_through_a_router_by_who_has_its_identity(
    source: KafkaCluster, own_cluster: Callable[..., KafkaCluster], make_topic: MakeTopic, unique_name: Names
) -> None:
    """This target has no link of another source:

    another source could be away, and the router would wait for that source.
    """
    topic, sink, target = unique_name("sink"), Sink(), own_cluster()
    for cluster in (source, target):
        make_topic(cluster, topic)
    committed, aborted, fenced, late, unknown, going = (unique_name(f"sink-{number}") for number in range(6))

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await quietly(sink.begin, source.bootstrap, topic, committed, aborted, late, going, fenced, fenced)
            sink.identities[unknown] = ("4711000", "3")
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as running:
                await world.routers_apply()
                ended = dict.fromkeys((committed, fenced, unknown), "commit") | {aborted: "abort"}
                told = await quietly(sink.end, running.bootstrap, **ended)
                assert (told[committed], told[aborted]) == ("", ""), told
                assert told[fenced].startswith(("ProducerFencedException", "InvalidProducerEpochException")), told
                assert told[unknown].startswith("InvalidPidMappingException"), told
                assert await quietly(sink.go_on, running.bootstrap, topic, going) == ["aborted", "written"]
                sink.identities[fenced] = sink.newest[fenced]
                record = await world.fence(topic)
                acks = await world.drained(topic, record.fence_epoch)
                # The sink commits while the topic is fenced, and once more after the flip: the job was restored twice.
                assert await quietly(sink.commit, running.bootstrap, late, fenced) == {late: "", fenced: ""}
                await world.flip(topic, record.fence_epoch, acks)
                await world.routers_apply()
                told = await quietly(sink.commit, running.bootstrap, committed, late, unknown)
                assert (told[committed], told[late]) == ("", ""), told
                assert told[unknown].startswith("InvalidPidMappingException"), told

    asyncio.run(scenario())
    assert stored(source, topic) == [name.encode() for name in (committed, late, fenced, f"anew {going}")]
    assert stored(target, topic) == []
    assert ends(target.bootstrap, topic, 1) == [0]
