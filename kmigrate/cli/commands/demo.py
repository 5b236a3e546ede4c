"""The demo: a whole live migration between two real clusters, driven by a playbook, then judged and reported.

As in production, the demo starts brokers, `kmigrate run`, live clients and the playbook as processes of their own.
At the end the sandbox's checker, which shares no code with the engines, judges the result.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Output
from kmigrate.cli.base.words import Text
from kmigrate.errors import Failed
from kmigrate.net.clock import block, monotonic
from kmigrate.report.migration import FAILING, MigrationReport, Millis, ParitySummary
from kmigrate.sandbox.checker import Verdict, check
from kmigrate.sandbox.client_specs import ClientSpec, TransactionalSpec, seeded_clients
from kmigrate.sandbox.estate import SandboxEstate, make_room
from kmigrate.sandbox.final_read import read_topic, saving
from kmigrate.sandbox.history import read_history
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION
from kmigrate.sandbox.pauses import Percentiles, Timeline, Window
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.preload import preload, seeded_preload
from kmigrate.sandbox.processes import ProcessIdentity, spawn_tied
from kmigrate.sandbox.toolchains import DRIVEN, driver_of
from kmigrate.sandbox.traffic import Traffic

__all__ = ["LITTLE_ROOM", "Demo", "DemoPlan"]

LITTLE_ROOM = "[mirror]\ndisk_min_free_percent = 0\ndisk_min_free_bytes = 500000000\n"
"""Lines of the configuration for a workstation's disk, which may be nearly full; the demo writes little."""

TOPICS = ("orders", "payments", "audit")
_LEAST_ACKED = 60_000
_RETRIED_S = 5.0
"""Seconds after a flip until clients repeat no write (default elsewhere: 120 s); the judge reports later repeats."""
_ALONE_S = 5.0
_UNPROMOTED = frozenset({"topic-not-promoted", "group-not-promoted"})
_GOAL = Millis(0.0, 50.0, 250.0)
"""Goal for the pause of producers of five families across a flip, ms."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The settings of a demo that a person may choose."""

    folder: Path
    playbook: str
    """A file, or the name of a playbook that comes with kmigrate."""
    seed: int = 1
    rate: float = 1500.0
    records: int = 200_000
    brokers: int = 1
    families: bool = False
    """True for clients of five families; three of these families need a toolchain of their own."""
    source_version: str = SOURCE_VERSION
    target_version: str = TARGET_VERSION


@dataclass
class Demo:
    """A run of the demo, from starting the clusters to the report."""

    plan: DemoPlan
    out: Output
    started: float = field(default_factory=monotonic)

    @property
    def _clients(self) -> tuple[ClientSpec, ...]:
        return seeded_clients(self.plan.seed, self.plan.rate, families=self.plan.families)

    def run(self) -> MigrationReport:
        folder = self.plan.folder.absolute()
        for family in sorted({client.family for client in self._clients} & DRIVEN):
            self._say(f"the clients of {family}: built, or in the cache already")
            driver_of(family)
        make_room(folder / "sandbox")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._say(f"starting source {self.plan.source_version} and target {self.plan.target_version}")
        # Brokers live for a minute: Java's second compiler costs more processor time than saved, and clients wait.
        os.environ.setdefault("KMIGRATE_SANDBOX_JVM", "-XX:TieredStopAtLevel=1")
        sandbox = SandboxEstate.up(
            folder / "sandbox",
            brokers=self.plan.brokers,
            source_version=self.plan.source_version,
            target_version=self.plan.target_version,
        )
        try:
            return self._migrate(folder, sandbox)
        finally:
            sandbox.down()

    def _migrate(self, folder: Path, sandbox: SandboxEstate) -> MigrationReport:
        router = f"127.0.0.1:{free_ports(1)[0]}"
        config = folder / "kmigrate.toml"
        config.write_text(_config(sandbox, router), encoding="utf-8")
        environment = {
            **os.environ,
            "KMIGRATE_CONFIG": str(config),
            "KMIGRATE_SANDBOX": str(folder / "sandbox"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._say("filling the source: orders, payments, audit")
        filled = preload(
            sandbox.source.bootstrap,
            folder / "preload.jsonl",
            seeded_preload(self.plan.seed, self.plan.records, self.plan.brokers),
        )
        self._say(f"filled in {filled.seconds:.0f} s; starting live clients ({self.plan.rate:g} records/s)")
        traffic = Traffic.create(folder / "sandbox" / "traffic", self._clients, tied=True)
        live_since = monotonic()
        traffic.start(sandbox.source.bootstrap)
        try:
            with self._engines(folder, environment) as end_engines:
                results = self._playbook(environment)
                self._more_traffic(live_since)
                topics = self._ask(environment, "status")["topics"]
                held = [p["hold_ms"] for topic in topics for p in topic["partitions"] if p["hold_ms"] >= 0]
                if left := self._leave(environment):
                    end_engines()
                    self._say(f"kmigrate has ended; the clients go on without it for {_ALONE_S:.0f} s")
                    block(_ALONE_S)
                fallen = traffic.fallen()
                behind = traffic.stop(also_read=[folder / "preload.jsonl"])
                if not left:
                    end_engines()
            if behind:
                self._say(f"still unread when the consumers were stopped: {behind[:3]}")
            shown = {**self._ask(environment, "status"), "held": held, "left_router": left, "fallen": fallen}
            shown["versions"] = {  # KMIGRATE_KAFKA_HOME may have chosen other versions than the plan's
                f"{cluster.spec.name}_version": cluster.distribution.version for cluster in sandbox.clusters
            }
            records = self._ask(environment, "topic", "list"), self._ask(environment, "group", "list")
        finally:
            traffic.kill("all")
        self._say("judging: reading the target once more with librdkafka")
        return self._judge(folder, sandbox, traffic, results, shown, records)

    @contextmanager
    def _engines(self, folder: Path, environment: dict[str, str]) -> Iterator[Callable[[], None]]:
        """Run `kmigrate run` as a process tied to this process; yield the function that ends `kmigrate run`."""
        log = folder / "run.log"
        process = spawn_tied(
            [sys.executable, "-m", "kmigrate", "run", "--json"],
            log=log,
            environment=environment,
            folder=folder / "run-tied",
        )
        deadline = monotonic() + 30
        while "router-listening" not in (log.read_text(encoding="utf-8") if log.exists() else ""):
            if not process.alive() or monotonic() > deadline:
                raise Failed("demo-engines", f"kmigrate run did not start; see {log}")
            block(0.05)

        def end() -> None:
            if not process.alive():
                raise Failed("demo-engines", f"kmigrate run ended by itself; see {log}")
            _stop(process)

        try:
            yield end
        finally:
            _stop(process)

    def _playbook(self, environment: Mapping[str, str]) -> list[dict[str, Any]]:
        """Run the playbook, print each step as the step ends, and return the results."""
        self._say(f"running {self.plan.playbook}")
        command = [sys.executable, "-m", "kmigrate", "playbook", "run", self.plan.playbook, "--yes", "--json"]
        results: list[dict[str, Any]] = []
        with subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                step = json.loads(line)
                results.append(step)
                if step.get("event") == "step-ended":
                    self._say(f"  {step['step']:>2}. {step['what']}: {step['outcome']} in {step['seconds']:.1f} s")
        if process.returncode:
            self._say(f"the playbook ended with exit code {process.returncode}: {json.dumps(results[-1:])}")
        return results

    def _more_traffic(self, live_since: float) -> None:
        """Let the clients go on: a migration may end before enough writes are acknowledged for a judgement."""
        left = live_since + _LEAST_ACKED * 1.08 / self.plan.rate - monotonic()
        if 0 < left < 120:
            self._say(f"letting the clients go on for {left:.0f} s")
            block(left)

    def _leave(self, environment: Mapping[str, str]) -> bool:
        """Run `link finish`; return whether all clients left the router: False where a topic or group is unpromoted."""
        # The playbook has restarted the producers whose former ids the target knows.
        self._say("link finish: the clients leave the router, with no restart")
        done = self._kmigrate(environment, "link", "finish", "--accept-restarts", "--yes", "--timeout", "120")
        answer = json.loads(done.stdout)
        if done.returncode == Exit.REFUSED and answer["error"] in _UNPROMOTED:
            self._say(f"refused: {answer['what']}")
            return False
        if done.returncode:
            raise Failed("demo-finish", f"clients did not leave the router: {done.stdout}")
        return True

    def _ask(self, environment: Mapping[str, str], *verb: str) -> dict[str, Any]:
        done = self._kmigrate(environment, *verb)
        answer: dict[str, Any] = json.loads(done.stdout)
        if done.returncode:
            raise Failed("demo-status", f"kmigrate {' '.join(verb)} failed: {answer}")
        return answer

    def _kmigrate(self, environment: Mapping[str, str], *verb: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kmigrate", *verb, "--json"],
            env=dict(environment),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )

    def _judge(
        self,
        folder: Path,
        sandbox: SandboxEstate,
        traffic: Traffic,
        results: list[dict[str, Any]],
        shown: Mapping[str, Any],
        records: tuple[dict[str, Any], dict[str, Any]],
    ) -> MigrationReport:
        history = folder / "history.jsonl"
        traffic.write_history(history, with_files=[folder / "preload.jsonl"])
        timeline = Timeline()
        records_of = (read_topic(sandbox.target.bootstrap, topic) for topic in TOPICS)
        final = saving(itertools.chain.from_iterable(records_of), folder / "final-read.jsonl.gz")
        verdict = check(timeline.observing(read_history(history)), final)
        return _report(self, self._clients, verdict, timeline, results, shown, *records)

    def _say(self, text: str) -> None:
        seconds = monotonic() - self.started
        self.out.err.print(Text.assemble((f"{seconds:6.1f} s", "dim"), f"  {text}"))


def _stop(process: ProcessIdentity) -> None:
    process.signal(signal.SIGTERM)
    deadline = monotonic() + 15
    while process.alive() and monotonic() < deadline:
        block(0.05)


def _config(sandbox: SandboxEstate, router: str) -> str:
    host, port = router.split(":")
    return (
        f'[clusters.source]\n"bootstrap.servers" = "{sandbox.source.bootstrap}"\n\n'
        f'[clusters.target]\n"bootstrap.servers" = "{sandbox.target.bootstrap}"\n\n'
        f'[router]\nhost = "{host}"\nport = {port}\n\n[finish]\ndelivery_timeout_s = {_RETRIED_S}\n\n'
        f"{LITTLE_ROOM}\n"
        '[defaults]\ntarget = "target"\n'
    )


def _millis(found: Percentiles) -> Millis:
    return Millis(found.p50, found.p99, found.max)


def _window(start_ms: int, end_ms: int) -> Window:
    return Window(start_ms * 1_000_000, (end_ms + 1) * 1_000_000)


def _quantiles(values: Iterable[float]) -> Millis:
    ranked = sorted(values) or [0.0]

    def rank(share: float) -> float:
        return round(ranked[min(len(ranked) - 1, int(share * len(ranked)))], 3)

    return Millis(rank(0.5), rank(0.99), rank(1.0))


def _report(
    demo: Demo,
    clients: tuple[ClientSpec, ...],
    verdict: Verdict,
    timeline: Timeline,
    results: list[dict[str, Any]],
    shown: Mapping[str, Any],
    topics: Mapping[str, Any],
    groups: Mapping[str, Any],
) -> MigrationReport:
    fences = {
        (row["topic"], partition): _window(row["fenced_ms"], row["promoted_ms"])
        for row in topics["topics"]
        if row["promoted_ms"]
        for partition in range(row["partitions"])
    }
    promotes = {
        row["group"]: _window(row["asked_ms"], row["promoted_ms"]) for row in groups["groups"] if row["promoted_ms"]
    }
    committed = {spec.topic for spec in clients if isinstance(spec, TransactionalSpec)}
    gaps = {
        group: [gap / 1e6 for (of, _), gap in timeline.consumer_gaps(group, window).items() if of not in committed]
        for group, window in promotes.items()
    }
    fallen = tuple(f"{name} ended by itself" for name in shown["fallen"])
    anomalies = {name: verdict.count(name) for name in (*FAILING, "group_rereads")}
    examples = {name: finding.examples for name, finding in verdict.named.items()}
    if fallen:
        anomalies["client_errors"] += len(fallen)
        examples["client_errors"] = (*examples.get("client_errors", ()), *fallen)
    first = min((w.start for w in fences.values()), default=None)
    parity = next((r["result"] for r in reversed(results) if "mismatches" in (r.get("result") or {})), None)
    return MigrationReport(
        acked=verdict.acked,
        preloaded=verdict.preloaded,
        anomalies=anomalies,
        examples=examples,
        offsets_identical=verdict.offsets_identical and all(t["offsets"] == "identical" for t in shown["topics"]),
        producer_pause_ms=_millis(timeline.producer_pause_ms(fences)),
        router_hold_ms=_quantiles(shown["held"]),
        baseline_ack_ms=_millis(timeline.baseline_ack_ms(first)),
        consumer_gap_ms=_millis(timeline.consumer_gap_ms(promotes)),
        consumer_gap_live_ms=_quantiles(gap for found in gaps.values() for gap in found),
        group_gap_ms={group: round(max(found, default=0.0), 1) for group, found in gaps.items()},
        transaction_pause_ms=_millis(paused) if (paused := timeline.transaction_pause_ms(fences)).of else None,
        baseline_transaction_ms=_millis(timeline.baseline_transaction_ms(first)),
        # A playbook that stopped before its verify step has proved nothing: no topics, so not clean.
        parity=ParitySummary(**{k: parity[k] if parity else 0 for k in ("topics", "records", "mismatches")}),
        moved={
            t["topic"]: {
                "partitions": len(t["partitions"]),
                "phase": t["phase"],
                "offsets": t["offsets"],
                "target_offsets": sum(p["target_end"] - p["target_start"] for p in t["partitions"]),
            }
            for t in shown["topics"]
        },
        seconds=monotonic() - demo.started,
        facts={
            "seed": demo.plan.seed,
            "rate": demo.plan.rate,
            "left_router": shown["left_router"],
            "records": demo.plan.records,
            "brokers": demo.plan.brokers,
            "families": sorted({client.family for client in clients}),
            **shown["versions"],
        },
        goal=_GOAL if demo.plan.families else None,
    )
