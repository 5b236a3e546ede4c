"""Errors and findings that no other test meets: each is provoked once, with the smallest piece of the product.

Mostly a broker answers with an error that sound clusters do not give, or a tool of the sandbox fails.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import struct
import subprocess
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.metadata.v12.request import MetadataRequest
from pyspark.errors import PySparkRuntimeError

from kmigrate.cli.base import targets
from kmigrate.cli.commands import demo, doctor, offsets, probes
from kmigrate.cluster import append, brokers, fetch, log_probes
from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.config import load
from kmigrate.config.settings import Settings
from kmigrate.errors import KmigrateError, Refused, Unreachable
from kmigrate.mirror.upkeep import align, forecast, source_changes, topics
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.records import CopyEngine, GroupRecord, PartitionBarrier, TopicRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.net import tls
from kmigrate.protocol import api
from kmigrate.records import old_messages
from kmigrate.sandbox import (
    aiokafka_clients,
    final_read,
    kafka,
    librdkafka_clients,
    preload,
    processes,
    security,
    toolchains,
    traffic,
    zookeeper,
)
from kmigrate.spark import bulk, session
from kmigrate.state import log as state_log
from kmigrate.state.offset_maps import OffsetMaps
from kmigrate.verify import ranges
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.groups import handover, misplaced
from kmigrate.workflow.groups.following import FollowHandover
from kmigrate.workflow.promote import late_writes
from kmigrate.workflow.promote.barrier import BarrierTable
from kmigrate.workflow.verbs import access, creatable, forget, groups, late, links, loops, mirror, promote
from kmigrate.workflow.verbs.matching import forget_patterns
from tests.fakes.finishing import LINK
from tests.fakes.state_log import MemoryLog

Patch = pytest.MonkeyPatch
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 5})
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTED, 1)
SILENT = Unreachable("cluster-unreachable", "cluster s does not answer")
NO_JAVA = Refused("java-not-supported", "found no Java")
NOT_LEADER, DENIED = 6, 29


def it(**fields: Any) -> Any:
    """Return a stand-in with these attributes; a call takes any arguments."""
    return SimpleNamespace(**fields)


def gives(value: Any = None) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that returns, or raises, a value."""

    async def answer(*_: Any, **__: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return answer


def raises(error: Exception) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def refs(act: Callable[[], Any]) -> list[str]:
    """Return the reference of the error that a call raises, or of the findings that the call returns."""
    try:
        result = act()
        found = asyncio.run(result) if asyncio.iscoroutine(result) else result
    except KmigrateError as error:
        return [error.ref]
    return [each.ref for each in found or ()]


# Clusters


def broken(error: int = NOT_LEADER) -> Any:
    """Return a client whose cluster answers each look at a log with an error."""
    client = it(leader=lambda *_: 1, refresh=gives(), settings=it(name="s", principal="User:k"))
    client.list_offsets = client.log_ends = broken_ends(error)
    return client


def broken_ends(error: int) -> Callable[..., Awaitable[Any]]:
    async def answer(keys: Iterable[Any], **_: Any) -> dict[Any, LogOffset]:
        return {key: LogOffset(error, -1, -1) for key in keys}

    return answer


def unread(patch: Patch, module: Any) -> Any:
    """Return a client whose log has ends, and whose reads fail."""
    patch.setattr(module, "fetch_one", gives(it(error=NOT_LEADER, records=b"")))
    client = broken()
    client.list_offsets = client.log_ends = broken_ends(0)
    return client


def of_clusters(patch: Patch) -> Iterator[tuple[str, Callable[[], Any]]]:
    client = broken()
    yield "no-offsets", lambda: forecast.offsets_of(client, "t", [0], -1)
    yield "offsets-unknown", lambda: ranges._read(client, [("t", 0)])
    looked = unread(patch, log_probes)
    looked.list_offsets = gives({("t", 0): LogOffset(0, 0, 0)})
    looked.log_ends = gives({("t", 0): LogOffset(0, 50, 0)})
    yield "log-unreadable", lambda: log_probes.find_batch(looked, "t", 0, 1, 0, 0)
    yield "probe-refused", lambda: log_probes._first_batch(looked, "t", 0, 0, 9)
    tail = unread(patch, append)
    yield "tail-unreadable", lambda: append._scan(tail, "t", 0, 1, 0, 9, 1e18)
    patch.setattr(append, "settled_end", gives(9))
    tail.producers = gives((NOT_LEADER, ()))
    yield "no-producer-state", lambda: append._without_batch(tail, ("t", 0), 1, 0, 9, -1)
    nobody = it(metadata=it(brokers={}), open_connection=lambda *_: None, refresh=gives(), settings=it(name="s"))
    yield "unknown-broker", lambda: ClusterClient.connection(nobody, 7)
    patch.setattr(brokers, "api_versions", gives({}))
    yield "log-dirs-unknown", lambda: brokers.log_dirs(nobody, 1, [])
    maps = it(_turn=asyncio.Lock(), _client=client)
    client.topic = gives(it())
    yield "map-topic-unreadable", lambda: OffsetMaps.read_to_end(maps)
    patch.setattr(fetch, "known_leader", gives(1))
    patch.setattr(fetch, "while_it_leads", gives(b""))
    patch.setattr(fetch, "decode_fetch", lambda _: it(partitions=[it(diverging=None, error=NOT_LEADER)]))
    reader = it(_client=client, _topic="t", _partition=0, _fetch=lambda *_: None, _refresh_quietly=gives())
    yield "tail-refused", lambda: fetch.Tail.poll(reader, 1)
    yield "state-log-reader-died", lambda: _raised(state_log._as_ours(ValueError("odd"), "state"))


def _raised(error: Exception | None) -> Any:
    assert error is not None
    raise error


def of_tls(_: Patch) -> Iterator[tuple[str, Callable[[], Any]]]:
    odd = ssl.SSLCertVerificationError(1, "odd")
    odd.verify_code, odd.verify_message = 999, "odd"
    yield "certificate-refused", lambda: _raised(tls.named_failure(odd, "h:1"))
    strange = ssl.SSLError(1, "odd")
    strange.reason = "ODD"
    yield "tls-failed", lambda: _raised(tls.named_failure(strange, "h:1"))


def of_messages(_: Patch) -> Iterator[tuple[str, Callable[[], Any]]]:
    newer = struct.pack(">bb", 2, 0) + bytes(20)
    body = memoryview(struct.pack(">I", zlib.crc32(newer)) + newer)
    yield "mixed-message-formats", lambda: old_messages._message(0, body)
    yield "kio-schema", lambda: api.element_type(cast("Any", MetadataRequest), "allow_auto_topic_creation")
    yield "no-empty-value", lambda: api._empty((object,))


# The copy


def of_the_copy(patch: Patch) -> Iterator[tuple[str, Callable[[], Any]]]:
    patch.setattr(align, "_PATIENCE_S", -1.0)
    target = it(settings=it(security=it(principal="User:k"), name="t"))
    aligner = it(_target=target, _too_low=gives({0: 5}), _turn=asyncio.Lock(), _settings=lambda: it(align_limit=10))
    for ref, code in (("log-start-refused", DENIED), ("log-start-late", 0)):
        target.delete_records = gives({0: (code, 0)})
        yield ref, lambda: align.Aligner._cut(aligner, "t", {0: 5})
    aligner._tail = gives(it(end=0, sequence=0))
    yield "padding-too-long", lambda: align.Aligner._fill(aligner, TOPIC, 0, 1_000)
    patch.setattr(align, "append_alone", gives(it(error=DENIED, base_offset=-1)))
    yield "filler-refused", lambda: align.Aligner._append(aligner, "t", 0, bytearray(), it(end=0, sequence=0), 1)
    upkeep = it(_link=it(source=None, target=None))
    none = it(partitions={}, is_other_than=lambda _: False)
    yield "no-partitions", lambda: source_changes.Upkeep._follow(upkeep, TOPIC, it(source=none, target=none))
    yield "target-has-more-partitions", lambda: source_changes.Upkeep._follow_partitions(upkeep, TOPIC, 1, 2)
    clusters = it(source=it(topic=gives(None), settings=it(name="s")))
    yield "no-source-topic", lambda: topics.TopicMaker.prepare(it(_clusters=clusters), TOPIC, gives(True))
    clock = count(0, 100)
    patch.setattr(topics, "monotonic", lambda: next(clock))
    stays = it(_clusters=it(target_admin=it(delete_topic=gives()), target=it(topic=gives(it()))))
    yield "not-deleted", lambda: topics.TopicMaker._delete(stays, "t")
    patch.setattr(bulk, "_Try", lambda *_: None)
    spark = it(setJobGroup=lambda *_, **__: None, parallelize=raises(PySparkRuntimeError("odd")))
    yield "bulk-copy-failed", lambda: bulk.run_tasks(spark, cast("Any", None), [{}], "run")


# Verbs


def of_verbs(patch: Patch) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "bad-group-mode", lambda: groups._check_mode("odd")
    yield "which-link", lambda: links.resolve_link(MemoryLog(LINK, replace(LINK, name="k", uuid="v")).state, None)
    connections = it(log=MemoryLog(LINK), source=gives(SILENT), target_admin=None, target=it(settings=it(name="t")))
    yield "unknown-expression", lambda: forget_patterns(connections, "l", "topic", ["orders.*"])
    yield "mapped-by-daemon", lambda: _found(mirror._engine_guard(CopyEngine.SPARK, replace(TOPIC, mapped=True)))
    writer = it(in_the_way=True, reason="producer 7 writes", silent_ms=1)
    yield "direct-writers-accepted", lambda: promote.direct_findings([writer], accepted=True)
    patch.setattr(loops, "read_state", gives(SILENT))
    yield "source-state-unread", lambda: loops.loop_findings(broken(), broken(), ["t"])
    patch.setattr(links, "closed_topics", lambda _: [replace(TOPIC, phase=TopicPhase.PROMOTED)])
    yield "source-stays-closed", lambda: links._open_sources(connections, LINK)
    promoted = replace(TOPIC, phase=TopicPhase.PROMOTED, barrier={0: PartitionBarrier(9, 1)})
    away = it(log=MemoryLog(LINK, promoted, GROUP), source=gives(SILENT), target_admin=None)
    yield "source-unasked", lambda: late.late_guards(away, LINK, accepted=False)
    patch.setattr(misplaced, "describe_groups", gives({GROUP.group: SILENT}))
    patch.setattr(misplaced, "read_all_positions", gives({GROUP.group: SILENT}))
    yield "members-unknown", lambda: misplaced.promoted_group_findings(away, LINK, broken())
    patch.setattr(creatable, "limit", lambda settings, _: settings)
    patch.setattr(creatable, "transaction_timeouts", gives(SILENT))
    yield (
        "transaction-timeouts-unknown",
        lambda: creatable.timeout_findings(broken(), cast("Any", None), cast("Any", 1)),
    )
    patch.setattr(access, "read_acls", gives(()))
    patch.setattr(access, "topic_rights", lambda *_: it(now=(1,), promoted=(1, 2)))
    sound = it(log=MemoryLog(LINK), source=gives((it(), it())), target=it(settings=it(name="t")))
    yield "topic-acls", lambda: _only("topic-acls", access.access_findings(sound, LINK, ["t"]))
    keeper = it(target=it(log_ends=gives({("t", 0): LogOffset(0, 9, 0)}), delete_records=gives({0: (DENIED, 0)})))
    yield "fillers-stay", lambda: forget._delete_fillers(keeper, TOPIC)
    many = [it(missing=False, text="late", topic="t")] * (late._MOST + 1)
    yield "late-writes-more", lambda: [late.late_findings("l", many, accepted=False)[-1]]


def _found(finding: Finding | None) -> list[Finding]:
    assert finding is not None
    return [finding]


async def _only(ref: str, found: Awaitable[list[Finding]]) -> list[Finding]:
    return [each for each in await found if each.ref == ref]


# Promotes


def carried(patch: Patch, **answers: Any) -> Awaitable[Any]:
    """Carry positions over with these answers of the clusters, in order."""
    at = {("t", 0): CommittedOffset(7, "")}
    read = iter(answers.get("read", ()))
    patch.setattr(handover, "read_positions", lambda *_, **__: gives(next(read, at))())
    patch.setattr(handover, "write_positions", gives(answers.get("failed", {})))
    patch.setattr(handover, "unread", gives({}))
    connections = it(log=MemoryLog(LINK, TOPIC), target=it())
    record = replace(GROUP, phase=GroupPhase.PROMOTING)
    made = it(record=record, connections=connections, timeout_s=1.0, _again="again", still_ours=None)
    made.refuse_outsiders, made._translate = gives(), gives(at)
    return handover.GroupHandover._carry(made, broken())


def of_promotes(patch: Patch) -> Iterator[tuple[str, Callable[[], Any]]]:
    here, there = {("t", 0): CommittedOffset(7, "")}, {("t", 0): CommittedOffset(8, "")}
    yield "offsets-not-written", lambda: carried(patch, failed={("t", 0): "GROUP_AUTHORIZATION_FAILED"})
    yield "offsets-not-read-back", lambda: carried(patch, read=[here, {}, there])
    yield "offsets-moved", lambda: carried(patch, read=[here, {}, here, there])
    gone = it(log=MemoryLog(LINK), link="l", group="g")
    yield "not-promoting", lambda: FollowHandover._record(gone)
    source = it(describe_producers=gives({("t", 0): (DENIED, ())}))
    table = it(_written=source, recent=it(read_to=gives({})))
    yield "no-barrier", lambda: BarrierTable.read(table, TOPIC, 1e18)
    patch.setattr(late_writes, "encode_produce", lambda *_, **__: b"")
    patch.setattr(late_writes, "decode_produce", lambda _: {("t", 0): it(error=DENIED)})
    target = broken()
    target.connection, target.settings = gives(it(call_raw=gives(b""))), it(request_timeout_s=1.0)
    watch = it(connections=it(target=target))
    yield "late-refused", lambda: late_writes.LateWatch._append(watch, "t", 0, memoryview(b""))


# The check, positions and the machine


def of_checks(patch: Patch) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "not-caught-up", lambda: ranges._Deadline(-1.0, print).wait("t lags")
    yield "which-partition", lambda: offsets._partition(TOPIC, None)
    here = Path(__file__)
    yield "out-exists", lambda: offsets._check_places(here, here)
    patch.setattr(offsets, "Positions", lambda *_: it(up_to_barrier=gives({0: OffsetMap()})))
    connections = it(target=None, log=MemoryLog(LINK, TOPIC))
    yield "position-not-copied", lambda: _moved(connections)
    patch.setattr(session, "launch_gateway", raises(PySparkRuntimeError("odd")))
    yield "spark-start-failed", lambda: session._start(cast("Any", None), Path("/dev/null"), None)
    patch.setattr(probes, "find_strays", gives(["a record that nobody knows"]))
    yield "stray-records", lambda: probes._strays(broken())
    patch.setattr(targets, "_state_logs", gives(([], [])))
    two = Settings(clusters={name: ClusterSettings(name, (("h", 1),)) for name in ("a", "b")})
    yield "no-target", lambda: targets.find_target(two, None)
    given = replace(two, path=here, origins={"[router] port": "a flag"})
    yield "config-overrides", lambda: doctor._configuration(given)[1:]
    yield "broker-settings", lambda: doctor._differences({}, {})
    yield "config-unreadable", lambda: load._text(here.parent)
    patch.setattr(doctor, "find_java", raises(NO_JAVA))
    patch.setattr(doctor, "_PACKAGES", ("no-package-of-this-name",))
    yield "package-missing", lambda: [each for each in doctor.machine_findings() if each.level == "refuse"]


async def _moved(connections: Any) -> None:
    move = await offsets._translator(connections, "l", ["t"], "source")
    move("t", 0, 9)


# The sandbox


def of_the_sandbox(patch: Patch, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    patch.setattr(kafka, "_java", lambda *_: ["sh", "-c", "echo no room; exit 1"])
    broker = it(alive=False, properties="p", started=lambda: it(signal=lambda _: None, alive=lambda: True))
    cluster = it(brokers={1: broker}, spec=it(name="s"), zookeeper=None, distribution=it(), cluster_id="c")
    cluster._log_end, cluster.client = lambda _: "its last line", dict
    yield "broker-format-failed", lambda: kafka.KafkaCluster._format_by_tool(cluster, cluster.distribution, broker)
    yield "broker-ended", lambda: kafka.KafkaCluster._refuse_dead(cluster)
    yield "broker-still-running", lambda: kafka.KafkaCluster.terminate(cluster, 1, timeout=-1.0)
    cluster._refuse_dead = lambda: None
    yield "brokers-not-ready", lambda: kafka.KafkaCluster._wait_named(cluster, "127.0.0.1:1", -1.0, 1.0)
    yield "broker-not-started", processes.Server(1, 2, folder).started
    patch.setattr(zookeeper, "SESSION_MS", -1)
    yield (
        "broker-still-registered",
        lambda: zookeeper.ZooKeeper.wait_forgotten(it(_sessions=lambda: "/brokers/ids/1\n"), 1),
    )
    yield "openssl-failed", lambda: security._openssl("odd-command")
    yield "driver-build", lambda: toolchains._run("java", ["sh", "-c", "echo no compiler >&2; exit 1"])
    failed = subprocess.CompletedProcess([], 1, "{}")
    yield "demo-status", lambda: demo.Demo._ask(it(_kmigrate=lambda *_: failed), {}, "status")
    patch.setattr(demo, "spawn_tied", lambda *_, **__: it(alive=lambda: False))
    yield "demo-engines", lambda: demo.Demo._engines(it(), folder, {}).__enter__()
    nothing = it(topic=lambda: None, partition=lambda: None, offset=lambda: None)
    yield "message-without-offset", lambda: final_read.position_of(nothing)
    unknown = it(topics={"t": it(error=it(str=lambda: "odd"), partitions={})})
    patch.setattr(final_read, "AdminClient", lambda _: it(list_topics=lambda *_, **__: unknown))
    yield "final-read-topic", lambda: final_read._ends({}, "t")
    writer = it(list_topics=lambda *_, **__: unknown)
    yield "traffic-topic", lambda: librdkafka_clients._partitions_of(writer, "t", patience_s=-1.0)
    yield "preload-unanswered", lambda: preload._flush(it(flush=lambda _: 3))
    yield "preload-refused", lambda: preload._Stretch._answered(it(), it(str=lambda: "odd"), it())
    patch.setattr(preload, "Producer", lambda _: it(produce_batch=lambda *_, **__: 0, flush=lambda _: 0))
    admin = it(delete_records=lambda cuts: {cut: it(result=lambda _: it(low_watermark=0)) for cut in cuts})
    plan = it(log_start=1, filled_partitions=[0])
    yield "preload-log-start", lambda: preload._move_log_starts(admin, {}, plan)
    yield from of_the_traffic(patch, folder)


def of_the_traffic(patch: Patch, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    client = it(name="c", running=True, bootstrap="h:1", run=1, spec=None, signal=lambda _: None)
    patch.setattr(traffic, "_wait_until", lambda *_: False)
    busy = it(kill=lambda _: None, folder=folder)
    yield "traffic-stuck", lambda: traffic.Traffic._end(busy, [client], signal.SIGTERM)
    yield "traffic-unanswered", lambda: traffic.Traffic._wait_for_answer(busy, client, 0.0)
    yield "traffic-family", lambda: aiokafka_clients.produce(it(name="c"), it(), it(), it())
    (folder / traffic._STATE).write_text("{}", encoding="utf-8")
    patch.setattr(traffic.Traffic, "__init__", lambda *_: None)
    patch.setattr(traffic.Traffic, "clients", lambda _: [client])
    yield "traffic-running", lambda: traffic.Traffic.create(folder, [])


ALL = (of_clusters, of_tls, of_messages, of_the_copy, of_verbs, of_promotes, of_checks)


@pytest.mark.parametrize("of_part", ALL, ids=lambda part: part.__name__)
def test_a_rare_error_has_its_reference(of_part: Callable[..., Any], monkeypatch: Patch) -> None:
    met = {ref: refs(act) for ref, act in of_part(monkeypatch)}
    assert met == {ref: [ref] for ref in met}
    assert met


def test_a_rare_error_of_the_sandbox_has_its_reference(monkeypatch: Patch, tmp_path: Path) -> None:
    met = {ref: refs(act) for ref, act in of_the_sandbox(monkeypatch, tmp_path)}
    assert met == {ref: [ref] for ref in met}
