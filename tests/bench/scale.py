"""An estate of thousands of topics and groups: the cost of looks, verbs, presences, state records and a promote.

    python -m tests.bench.scale [--topics 2000] [--groups 2000] [--logged 10000] [--only real,logged]

real      Two brokers, a mirror, a router and a controller. Topics are promoted while the link has ten topics, and once
          more when the link has them all: the time from fence to flip must not grow. Each verb is a process of its own.
logged    A state log of the stated number of topics without brokers: its replay, the work of a router, of a mirror with
          the lease and of a controller for a record, and the presences of a mirror and a router.

CPU seconds are of the process that does the work. Presence bytes are keys and values of `__kmigrate_presence`. The
bench writes build/bench/scale.json; figures that miss their limits (`LIMITS`) are named there, and at the end, with
exit code 1. A run with other sizes than the usual sizes writes scale-part.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import CommittedOffset, write_positions
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.process.engine import MirrorEngine
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.sharing.lease import Lease
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.mirror.upkeep.lease_holder import LeaseHolder
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress, RouterPresence
from kmigrate.model.records import (
    AssignmentRecord,
    ClusterRef,
    CopyIdentity,
    GroupRecord,
    LeaseRecord,
    LinkRecord,
    TopicRecord,
)
from kmigrate.model.routes import next_table, routing_table
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.state import State
from kmigrate.records.batch import walk
from kmigrate.records.build import one_record_batch
from kmigrate.router.shared.state import SharedState
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, KafkaCluster
from kmigrate.state.codec import Envelope, PresenceReader, PresenceWriter, encode_envelope
from kmigrate.state.fold import Fold, state_producer_id
from kmigrate.state.log import StateLog
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC
from kmigrate.workflow.base.unit import decided
from kmigrate.workflow.controller.controller import is_moving, is_moving_group
from tests.bench.limits import at_most, conclude
from tests.bench.meter import cpu_seconds
from tests.fakes.state_log import MemoryLog
from tests.integration.command_line import program
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.unit.router.router_fakes import Stage

_FEW = 10
"""Topics of the small estate that the large estate is compared with."""
_PROMOTES = 5
_LISTEN_S = 20.0
_RECORDS = 200
"""State records of which the router's CPU is measured."""
_PATIENCE_S = 600.0
_NEW_TOPICS_S = 60.0
"""Seconds within which a broker takes committed offsets of topics that were just created."""
_MOVING = 100
"""Topics whose copies go on within a second, in the presences without brokers."""

LIMITS = (
    at_most("real.verbs.status.seconds", 5),
    at_most("real.router_cpu_s_per_look", 1),
    at_most("real.router_cpu_ms_per_record", 1),
    at_most("real.presence_bytes_per_s", 100_000),
    at_most("real.promote_ratio", 1.5),
    at_most("logged.router_cpu_ms_per_record", 1),
    at_most("logged.mirror_cpu_ms_per_record", 1),
    at_most("logged.controller_cpu_ms_per_record", 1),
    at_most("logged.presence_bytes_per_s", 100_000),
)
"""The requirements of a large estate."""

say = Console(stderr=True, highlight=False).print


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:05}" for number in range(count)]


class RealEstate:
    """Two brokers with topics and groups, and the engines of kmigrate."""

    def __init__(self, run: Migration) -> None:
        self.run = run

    def pid(self, engine: str) -> int:
        return self.run.engines[engine].pid

    # the estate

    def make_topics(self, topics: Collection[str]) -> None:
        admin = AdminClient(dict(self.run.source.client()))
        made = admin.create_topics([NewTopic(name, 1, 1) for name in topics], operation_timeout=60)
        for each in made.values():
            each.result(120)

    def commit(self, groups: list[str], topics: list[str]) -> None:
        """Let each group have a committed offset in a topic."""

        async def fine() -> None: ...

        async def commit_all() -> None:
            async with ClusterClient(settings_of(self.run.source)) as client:
                turn = asyncio.Semaphore(16)

                async def one(at: int, group: str) -> None:
                    async with turn:
                        where = {(topics[at % len(topics)], 0): CommittedOffset(0, "")}
                        deadline = time.monotonic() + _NEW_TOPICS_S
                        while refused := await write_positions(client, group, where, fine):
                            assert time.monotonic() < deadline, refused  # the broker learns of 2,000 new topics
                            await asyncio.sleep(0.2)

                await asyncio.gather(*(one(at, group) for at, group in enumerate(groups)))

        asyncio.run(commit_all())

    def grow(self, topics: list[str], groups: list[str]) -> dict[str, float]:
        """Make topics and groups, mirror them, and return the seconds until all topics are mirroring."""
        self.make_topics(topics)
        self.commit(groups, topics)
        began = time.monotonic()
        taken = self.verb("topic", "mirror", *topics, "--no-wait")
        known = time.monotonic()
        self.verb("group", "mirror", *groups)
        held = time.monotonic()
        wait_until(lambda: self.mirroring() >= len(topics), _PATIENCE_S, "all topics to be mirroring")
        return {
            "topic_mirror_s": round(known - began, 2),
            "topic_mirror_cpu_s": taken["cpu_s"],
            "group_mirror_s": round(held - known, 2),
            "all_mirroring_s": round(time.monotonic() - began, 2),
        }

    # measurements

    def verb(self, *words: str) -> dict[str, Any]:
        """Run a verb; return seconds, CPU seconds, bytes of output, and the seconds of CPU that the router took."""
        command = [*program("kmigrate", *words), "--config", str(self.run.config), "--json"]
        before, router = children_cpu_s(), cpu_seconds(self.pid("router"))
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)
        seconds = time.monotonic() - began
        if done.returncode not in (0, 3):
            raise RuntimeError(f"{words}: {done.returncode} {done.stdout[-500:]!r} {done.stderr[-1500:]!r}")
        return {
            "seconds": round(seconds, 2),
            "cpu_s": round(children_cpu_s() - before, 2),
            "bytes": len(done.stdout),
            "router_cpu_s": round(cpu_seconds(self.pid("router")) - router, 2),
        }

    def state(self) -> State:
        async def read() -> State:
            async with state_log(self.run.target) as log:
                return log.state

        return asyncio.run(read())

    def mirroring(self) -> int:
        """Return the number of topics whose copy goes on, now and then: a look takes its share of the machine."""
        time.sleep(1.0)
        return sum(topic.phase is not TopicPhase.PROMOTED for topic in self.state().topics() if is_copied(topic))

    def promote(self, topics: list[str]) -> dict[str, Any]:
        """Promote topics one after the other, and return the milliseconds from each fence to its flip."""
        took: list[float] = []
        for topic in topics:
            self.run.does("promote", topic, "--yes", timeout=_PATIENCE_S)
            record = self.state().topic("blue", topic)
            assert record is not None
            took.append(record.promoted_ms - record.fenced_ms)
        return {"median_ms": statistics.median(took), "each_ms": took}

    def router_cpu_ms_per_record(self, topics: list[str]) -> float:
        """Return the router's CPU for a state record, without its CPU in a time of the same length without records."""
        pid, before = self.pid("router"), self.state().epoch
        began, spent = time.monotonic(), cpu_seconds(pid)
        self.verb("topic", "pause", *topics)
        lasted, spent = time.monotonic() - began, cpu_seconds(pid) - spent
        records = self.state().epoch - before
        idle = cpu_seconds(pid)
        time.sleep(lasted)
        idle = cpu_seconds(pid) - idle
        self.verb("topic", "resume", *topics)
        return round(max(0.0, spent - idle) * 1000 / records, 3)

    def presence_bytes_per_s(self) -> dict[str, float]:
        """Return the bytes of presences per second by the kind of the process."""
        part = TopicPartition(PRESENCE_TOPIC, 0)
        consumer = Consumer({**self.run.target.client(), "group.id": "bench-presence", "log_level": 0})
        found: dict[str, float] = {}
        try:
            part.offset = consumer.get_watermark_offsets(part, timeout=10)[1]
            consumer.assign([part])
            until = time.monotonic() + _LISTEN_S
            while time.monotonic() < until:
                record = consumer.poll(0.2)
                if record is not None and record.error() is None:
                    key, value = record.key() or b"", record.value() or b""
                    kind = key.decode().partition("/")[0]
                    found[kind] = found.get(kind, 0.0) + len(key) + len(value)
        finally:
            consumer.close()
        return {kind: round(size / _LISTEN_S) for kind, size in sorted(found.items())}

    def idle_cpu(self) -> dict[str, float]:
        """Return the CPU of each engine, as a part of a core, while nothing happens."""
        before = {name: cpu_seconds(self.pid(name)) for name in self.run.engines}
        time.sleep(_LISTEN_S)
        return {name: round((cpu_seconds(self.pid(name)) - spent) / _LISTEN_S, 3) for name, spent in before.items()}


def is_copied(topic: TopicRecord) -> bool:
    return topic.phase not in (TopicPhase.INITIALISING, TopicPhase.ALIGNING)


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def settings_of(cluster: KafkaCluster) -> ClusterSettings:
    addresses = (each.rpartition(":") for each in cluster.bootstrap.split(","))
    return ClusterSettings("bench", tuple((host, int(port)) for host, _, port in addresses))


@asynccontextmanager
async def state_log(cluster: KafkaCluster) -> AsyncIterator[StateLog]:
    async with ClusterClient(settings_of(cluster)) as client, StateLog(client) as log:
        yield log


def measure_real(folder: Path, topics: int, groups: int) -> dict[str, Any]:
    # A broker keeps two files of each partition open.
    config = {"log.index.size.max.bytes": "65536"}
    with fresh_migration(folder, config=config) as run:
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router", "controller")
        estate = RealEstate(run)
        few, all_topics, all_groups = names("few", _FEW), names("t", topics), names("g", groups)
        found: dict[str, Any] = {"topics": topics + _FEW, "partitions": topics + _FEW, "groups": groups + _FEW}
        estate.grow(few, names("h", _FEW))
        for group in names("h", _FEW):
            run.does("group", "promote", group, "--yes", timeout=_PATIENCE_S)
        found["promote_of_ten"] = estate.promote(few[:_PROMOTES])
        say(f"  among ten topics: {found['promote_of_ten']}")
        found["grow"] = estate.grow(all_topics, all_groups[: groups // 2])
        estate.commit(all_groups[groups // 2 :], all_topics)
        estate.verb("group", "mirror", *all_groups[groups // 2 :], "--mode", "auto")
        say(f"  grown: {found['grow']}")
        found["idle_cpu"] = estate.idle_cpu()
        say(f"  idle: {found['idle_cpu']}")
        found["presence_by_kind"] = estate.presence_bytes_per_s()
        found["presence_bytes_per_s"] = sum(found["presence_by_kind"].values())
        say(f"  presences, bytes/s: {found['presence_by_kind']}")
        found["verbs"] = dict(verbs(estate, all_topics, all_groups))
        found["router_cpu_s_per_look"] = found["verbs"]["status"]["router_cpu_s"]
        found["router_cpu_ms_per_record"] = estate.router_cpu_ms_per_record(all_topics[-_RECORDS:])
        say(f"  router CPU per record: {found['router_cpu_ms_per_record']} ms")
        found["promote_of_all"] = estate.promote(few[_PROMOTES:])
        say(f"  among all topics: {found['promote_of_all']}")
        found["promote_ratio"] = round(found["promote_of_all"]["median_ms"] / found["promote_of_ten"]["median_ms"], 2)
        return found


def verbs(estate: RealEstate, topics: list[str], groups: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    calls = {
        "status": ("status",),
        "plan": ("plan",),
        "topic_list": ("topic", "list"),
        "topic_show": ("topic", "show", topics[1]),
        "group_list": ("group", "list"),
        "group_show": ("group", "show", groups[1]),
        "link_show": ("link", "show", "blue"),
        "doctor": ("doctor",),
        "wait": ("wait", "topics mirroring", topics[1]),
        "group_promote_plan": ("group", "promote", groups[1], "--plan"),
        "topic_pause": ("topic", "pause", topics[2]),
        "topic_resume": ("topic", "resume", topics[2]),
    }
    for name, words in calls.items():
        try:
            found = estate.verb(*words)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found = {"failed": str(error)[:300]}
        say(f"  {name}: {json.dumps(found)}")
        yield name, found


# without brokers

_LINK = LinkRecord("blue", "uuid", ClusterRef("s", "h:1", "S"), ClusterRef("t", "h:2", "T"), 1)
_ID = "00000000-0000-0000-0000-{:012}"


def logged_state(topics: int, groups: int) -> State:
    records: dict[str, Any] = {_LINK.key: _LINK}
    for number, name in enumerate(names("t", topics)):
        here, there = _ID.format(number), _ID.format(topics + number)
        record = TopicRecord("blue", name, TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})
        record = replace(record, source_topic_id=here, target_topic_id=there)
        records[record.key] = record
    for name in names("g", groups):
        group = GroupRecord("blue", name, GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
        records[group.key] = group
    return State().with_records(records, len(records))


def cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def replay_ms(state: State) -> float:
    """Return the CPU milliseconds in which a process reads the whole state log."""
    fold = Fold(state_producer_id(STATE_TOPIC))
    nonce = ""
    batches = []
    for at, (key, record) in enumerate(state.records.items()):
        before, nonce = nonce, f"{at:016x}"
        value = encode_envelope(Envelope(at, before, nonce, record))
        written = one_record_batch(key.encode(), value, timestamp=1, producer_id=fold.producer_id, epoch=0, sequence=at)
        written[:8] = at.to_bytes(8, "big")
        batches.append(written)

    def replay() -> None:
        for written in batches:
            for batch in walk(memoryview(written)):
                fold.take(batch)
        assert fold.state.epoch == len(batches) - 1

    return round(cpu_ms(replay), 1)


def shared_of(state: State) -> SharedState:
    """Return a router's memory with the routing table of a state."""
    shared = Stage().shared
    shared.swap(routing_table(state), 0.0)
    return shared


def router_ms_per_record(state: State) -> float:
    """Return the CPU milliseconds of a router's new table, presence included, over fences and flips of some topics."""
    shared = shared_of(state)
    known, count = state, 0

    def follow() -> None:
        nonlocal known, count
        for name in names("t", _RECORDS // 4):
            for phase in (TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED, TopicPhase.PROMOTED):
                before = known.topic("blue", name)
                assert before is not None
                count += 1
                record = replace(before, phase=phase, fence_epoch=known.epoch)
                now = known.with_record(record.key, record, known.epoch + 1)
                shared.swap(next_table(now, known, shared.table), count * 0.001)
                shared.mirrored()
                shared.hidden()
                known = now

    spent = cpu_ms(follow)
    return round(spent / count, 3)


def mirror_ms_per_record(state: State) -> float:
    """Return the CPU milliseconds of the mirror that holds the lease, and copies all topics, for a fence's record."""
    names_ = [record.topic for record in state.topics()]
    log, ref = MemoryLog(), ClusterRef("s", "h:1", "S")
    log.state = state.with_records(
        {
            each.key: each
            for each in (
                replace(_LINK, source=ref, copy=CopyIdentity(1, 0)),
                LeaseRecord("mirror/blue", "m", 1),
                AssignmentRecord("blue", 2, ("m",), dict.fromkeys(names_, (0,))),
            )
        },
        state.epoch + 3,
    )
    nowhere, nothing = ClusterClient(ClusterSettings("nowhere", (("127.0.0.1", 1),))), cast("Any", None)
    link = MirroredLink(
        nowhere, nowhere, nothing, nothing, "blue", cast("StateLog", log), "m", MirrorSettings(lease_s=3600)
    )
    copier = Copier(CopyContext(nowhere, nowhere, CopyIdentity(1, 0), nothing, MirrorSettings()))
    engine = MirrorEngine(link)
    members = Membership(link.log, "blue", "m", 3600)
    holder = LeaseHolder(link, Lease(members), members, nothing, cast("Any", _NeverLooks()), on_change=lambda: None)
    log.say(MirrorPresence("m", "blue", 1, True, 500, {}, shares=True, generation=2))
    log.presence["mirror/blue/m"] = (log.presence["mirror/blue/m"][0], time.monotonic())

    async def act() -> None:
        engine._apply(log.state, copier)
        holder._apply(log.state)
        await holder._share_out()

    async def follow() -> float:
        for _ in range(3):
            await act()
        pending = [replace(topic, phase=TopicPhase.PROMOTE_PENDING) for topic in log.state.topics()[:_RECORDS]]
        for record in pending:
            log._put(record.key, record)
        await act()
        began = time.process_time()
        for record in pending:
            log._put(record.key, replace(record, phase=TopicPhase.FENCING, fence_epoch=log.state.epoch))
            await act()
        spent = time.process_time() - began
        await holder._work.close()
        return spent

    return round(asyncio.run(follow()) * 1000 / _RECORDS, 3)


class _NeverLooks:
    """Log starts that nobody asks a cluster for."""

    async def recheck(self, *_: object) -> Mapping[int, int]:
        await asyncio.Event().wait()
        return {}


def controller_ms_per_record(state: State) -> float:
    """Return the CPU milliseconds in which a controller finds the promotes, and the decisions of other flips."""
    now, spent = state, 0.0
    for record in state.topics()[:_RECORDS]:
        now = now.with_record(record.key, replace(record, phase=TopicPhase.FENCED), now.epoch + 1)
        began = time.process_time()
        assert record.topic in {each.topic for each in now.topics_that(is_moving)}
        assert decided(now, record) is None
        assert not now.groups_that(is_moving_group)
        spent += time.process_time() - began
    return round(spent * 1000 / _RECORDS, 3)


def presences(topics: int, groups: list[str]) -> dict[str, float]:
    """Return bytes per second, and CPU milliseconds per second, of a mirror's and a router's presences."""
    copied = {name: {0: PartitionProgress(5, 5, 5)} for name in names("t", topics)}
    writer, reader, sizes, written, read = PresenceWriter(), PresenceReader(), [0, 0], 0.0, 0.0
    order = list(copied)
    shared = shared_of(logged_state(10, len(groups)))
    began = time.monotonic()
    seconds = 0
    while time.monotonic() - began < _LISTEN_S:
        for number in range(_MOVING):
            name = order[(seconds * _MOVING + number) % len(order)]
            copied[name] = {0: PartitionProgress(6 + seconds, 6 + seconds, 6 + seconds)}
        mirror = MirrorPresence("m", "blue", 1, True, 1_000, dict(copied), generation=1, shares=True)
        for half in range(2):
            router = RouterPresence("r", "r", 1, 500, groups=shared.group_reports(time.monotonic()))
            for place, each in ((0, mirror), (1, router)) if not half else ((1, router),):
                spent = time.process_time()
                value = writer.write(each)
                writer.stored(each.key)
                written += time.process_time() - spent
                spent = time.process_time()
                reader.read(value)
                read += time.process_time() - spent
                sizes[place] += len(value) if seconds else 0
            time.sleep(0.5)
        seconds += 1
    each_s = seconds - 1
    return {
        "presence_bytes_per_s": round(sum(sizes) / each_s),
        "mirror_presence_bytes_per_s": round(sizes[0] / each_s),
        "router_presence_bytes_per_s": round(sizes[1] / each_s),
        "presence_write_ms_per_s": round(written * 1000 / seconds, 2),
        "presence_read_ms_per_s": round(read * 1000 / seconds, 2),
    }


def measure_logged(topics: int, groups: int) -> dict[str, Any]:
    state = logged_state(topics, groups)
    found: dict[str, Any] = {"topics": topics, "groups": groups, "replay_cpu_ms": replay_ms(state)}
    found["table_cpu_ms"] = round(cpu_ms(lambda: routing_table(state)), 1)
    found["router_cpu_ms_per_record"] = router_ms_per_record(state)
    found["mirror_cpu_ms_per_record"] = mirror_ms_per_record(state)
    found["controller_cpu_ms_per_record"] = controller_ms_per_record(state)
    found.update(presences(topics, names("g", groups)))
    say(f"  logged: {json.dumps(found)}")
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--topics", type=int, default=2_000)
    arguments.add_argument("--groups", type=int, default=2_000)
    arguments.add_argument("--logged", type=int, default=10_000, help="topics of the state log without brokers")
    arguments.add_argument("--only", default="real,logged")
    chosen = arguments.parse_args()
    parts = chosen.only.split(",")
    began = time.monotonic()
    found: dict[str, Any] = {"cores": os.cpu_count(), "source": SOURCE_VERSION, "target": TARGET_VERSION}
    if "logged" in parts:
        found["logged"] = measure_logged(chosen.logged, chosen.groups)
    if "real" in parts:
        with tempfile.TemporaryDirectory(prefix="kmigrate-bench-") as folder:
            found["real"] = measure_real(Path(folder), chosen.topics, chosen.groups)
    found["seconds"] = round(time.monotonic() - began)
    usual = (chosen.topics, chosen.groups, chosen.logged) >= (2_000, 2_000, 10_000) and len(parts) == 2
    return conclude("scale", found, LIMITS, say, whole=usual)


if __name__ == "__main__":
    raise SystemExit(main())
