"""`kmigrate sandbox`: two real clusters and live clients for trying everything."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text, below
from kmigrate.cli.commands.demo import LITTLE_ROOM, Demo, DemoPlan
from kmigrate.cli.views.migration import migration_view
from kmigrate.cli.views.tables import table
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Refused, UsageError
from kmigrate.extras import SANDBOX
from kmigrate.kafka_jars.jars import JarProgress
from kmigrate.model.records import RouterRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.sandbox.client_specs import demo_clients
from kmigrate.sandbox.estate import DEFAULT_FOLDER, SandboxEstate, SandboxStatus
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION
from kmigrate.sandbox.ports import free_ports, reserve
from kmigrate.sandbox.preload import DEMO_TOPICS, Preload, preload
from kmigrate.sandbox.security import CLIENT_USERS, router_section
from kmigrate.sandbox.traffic import Client, Logins, Traffic
from kmigrate.workflow.playbook.shipped import read_playbook

__all__ = ["CONFIG_FILE", "app", "config_text", "demo", "down", "roll", "show_status", "start", "stop", "up"]

app = typer.Typer(name="sandbox", help="Two real Kafka clusters on this machine.", no_args_is_help=True)
traffic_app = typer.Typer(name="traffic", help="Live clients of the sandbox.", no_args_is_help=True)
app.add_typer(traffic_app)

CONFIG_FILE = "kmigrate.toml"
_RATE = 1500.0
_FAMILIES_RATE = 600.0
"""Records per second of five families of clients: at 1,500 their drivers, a process each, take 0.6 of two cores."""
_RATE_OF_THREE = 500.0
"""Records per second with three brokers a side: at 1,500 six take all of two cores, and a mirror lags more and more."""
_OLDEST = (2, 8)
"""The oldest Kafka that kmigrate supports (`cluster.requests`) and that starts on the Java that kmigrate needs."""
_OLDEST_SECURE = (3, 5)
"""The oldest Kafka whose brokers have SCRAM users without a ZooKeeper (KIP-900)."""
_RETRIED_S = 10
"""Seconds after a flip until the sandbox's clients repeat no write: all brokers are on this machine."""
_PRELOAD = "preload.jsonl"
_HISTORY = "history.jsonl"

Folder = Annotated[
    Path | None, typer.Option("--folder", help=f"Run folder (else KMIGRATE_SANDBOX, else {DEFAULT_FOLDER}).")
]
SourceVersion = Annotated[
    str,
    typer.Option("--source-version", metavar="X.Y.Z", help="Kafka of the source; before 3.3 with a ZooKeeper."),
]
TargetVersion = Annotated[
    str,
    typer.Option("--target-version", metavar="X.Y.Z", help="Kafka of the target; before 3.3 with a ZooKeeper."),
]
Which = Annotated[
    str | None, typer.Argument(metavar="[WHICH]", help="all, producers, consumers, transactional, a group or a name.")
]


def _folder(call: Call, folder: Path | None) -> Path:
    """Return the run folder; the folder's configuration serves this call unless another configuration was named."""
    chosen = folder or Path(os.environ.get("KMIGRATE_SANDBOX") or DEFAULT_FOLDER)
    own = chosen / CONFIG_FILE
    if call.config is None and not os.environ.get("KMIGRATE_CONFIG") and own.is_file():
        call.config = own
    return chosen


def config_text(
    source: str, target: str, router_port: int, logins: tuple[str, str] = ("", ""), listeners: str = ""
) -> str:
    """Return a configuration with which the next command works; `logins` are lines for source and target."""
    return (
        "# Written by `kmigrate sandbox up`; removed by `kmigrate sandbox down`.\n"
        f'[clusters.source]\n"bootstrap.servers" = "{source}"\n{logins[0]}\n'
        f'[clusters.target]\n"bootstrap.servers" = "{target}"\n{logins[1]}\n'
        f'[router]\nhost = "127.0.0.1"\nport = {router_port}\n{listeners}\n'
        f"[finish]\ndelivery_timeout_s = {_RETRIED_S}  # of the sandbox's clients; producers elsewhere: 120\n\n"
        f"{LITTLE_ROOM}\n"
        '[defaults]\ntarget = "target"\n'
    )


def _config_of(sandbox: SandboxEstate, router_port: int) -> str:
    source, target = sandbox.clusters
    logins = [each.security.access("kmigrate").toml() if each.spec.secure else "" for each in sandbox.clusters]
    listeners = router_section(source.security, target.security) if target.spec.secure else ""
    return config_text(source.bootstrap, target.bootstrap, router_port, (logins[0], logins[1]), listeners)


@command(app, "up", target=False)
def up(
    call: Call,
    folder: Folder = None,
    brokers: Annotated[int, typer.Option("--brokers", help="Brokers a side: 1 or 3.")] = 1,
    source_version: SourceVersion = SOURCE_VERSION,
    target_version: TargetVersion = TARGET_VERSION,
    secure: Annotated[
        bool, typer.Option("--secure", help="SASL_SSL, an authorizer, and users with their own passwords.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and take the brokers down with this process.")
    ] = False,
) -> Answer | None:
    """Start a source and a target cluster; returns when both take clients."""
    if brokers not in (1, 3):
        raise UsageError("bad-broker-count", f"--brokers {brokers}", next_step="expected: 1 or 3")
    _check_versions(source_version, target_version, oldest=_OLDEST_SECURE if secure else _OLDEST)
    SANDBOX.need("kmigrate sandbox up")
    chosen = folder or Path(os.environ.get("KMIGRATE_SANDBOX") or DEFAULT_FOLDER)
    router_port = free_ports(1)[0]  # before the brokers: without a port nothing is started
    sandbox = _start(call, chosen, brokers, source_version, target_version, detached=not foreground, secure=secure)
    config = chosen / CONFIG_FILE
    reserve(router_port, sandbox.file)
    config.write_text(_config_of(sandbox, router_port), encoding="utf-8")
    answer = _up_answer(sandbox.status(), config, f"127.0.0.1:{router_port}")
    if not foreground:
        return answer
    try:
        call.out.answer(answer)
        call.out.note("brokers run until Ctrl-C")
        _wait_for_the_end()
    finally:
        sandbox.down()
        config.unlink(missing_ok=True)
    return None


def _check_versions(source: str, target: str, *, oldest: tuple[int, int] = _OLDEST) -> None:
    """Refuse versions that a sandbox cannot run, before anything is downloaded."""
    for option, version in (("--source-version", source), ("--target-version", target)):
        if not re.fullmatch(r"\d+\.\d+\.\d+", version):
            raise UsageError("bad-version", f"{option} {version}", next_step="expected: as in 2.8.2")
        if tuple(map(int, version.split("."))) >= oldest:
            continue
        if oldest == _OLDEST_SECURE:
            raise UsageError(
                "secure-needs-kraft",
                f"--secure with {option} {version}",
                next_step="expected: 3.5.0 or newer, or no --secure",
            )
        raise UsageError("bad-version", f"{option} {version}", next_step="expected: 2.8.0 or newer")


def _start(
    call: Call, folder: Path, brokers: int, source_version: str, target_version: str, *, detached: bool, secure: bool
) -> SandboxEstate:
    """Start the brokers, and show which jars are fetched; SIGTERM ends the start and cleans up."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    with call.out.waiting("starting brokers …") as waiting:

        def on_progress(progress: JarProgress) -> None:
            waiting.say(f"fetching {progress.label}: {progress.done} of {progress.total} jars")

        return SandboxEstate.up(
            folder,
            brokers=brokers,
            source_version=source_version,
            target_version=target_version,
            detached=detached,
            secure=secure,
            on_progress=on_progress,
        )


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _wait_for_the_end() -> None:
    """Wait for Ctrl-C or SIGTERM, which are the ordinary end here, not a failure."""
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def _up_answer(status: SandboxStatus, config: Path, router: str) -> Answer:
    hint = f"export KMIGRATE_CONFIG={config}"
    steps = below(
        [
            f"ports are written to {config}; the router will listen at {router}",
            "",
            "next:",
            f"  {hint}",
            "  kmigrate link create demo --source source --target target",
        ]
    )
    fields = {**_status_json(status), "router": router, "config": str(config), "next": hint}
    return Answer(fields, Group(_status_view(status), steps))


@command(app, "status", target=False)
def show_status(call: Call, folder: Folder = None) -> Answer:
    """Show the brokers of the sandbox."""
    status = SandboxEstate.load(_folder(call, folder)).status()
    return Answer(_status_json(status), _status_view(status))


@command(app, "down", target=False)
def down(call: Call, folder: Folder = None) -> Answer:
    """End the sandbox's clients and brokers, and remove its data."""
    chosen = _folder(call, folder)
    sandbox = SandboxEstate.load(chosen)
    ended = [client.name for client in _running(chosen / "traffic")]
    if ended:
        Traffic(chosen / "traffic").kill("all")
    sandbox.down()
    (chosen / CONFIG_FILE).unlink(missing_ok=True)
    clients = f"{len(ended)} clients and " if ended else ""
    text = Text(f"{clients}both clusters are down, their data is gone")
    return Answer({"ended_clients": ended, "state": "down"}, text)


def _running(folder: Path) -> list[Client]:
    try:
        return [client for client in Traffic(folder).clients() if client.running]
    except Refused as refused:
        if refused.ref != "no-traffic":
            raise
        return []


def _status_json(status: SandboxStatus) -> dict[str, Any]:
    fields = dataclasses.asdict(status)
    return {"state": status.state, "folder": str(status.folder), "clusters": fields["clusters"]}


def _status_view(status: SandboxStatus) -> RenderableType:
    made = table("cluster", "version", "bootstrap", "brokers")
    for cluster in status.clusters:
        alive = sum(broker.alive for broker in cluster.brokers)
        style = "green" if alive == len(cluster.brokers) else "red"
        made.add_row(
            cluster.name, cluster.version, cluster.bootstrap, Text(f"{alive} of {len(cluster.brokers)} run", style)
        )
    return made


@command(app, "demo", target=False)
def demo(
    call: Call,
    seed: Annotated[int, typer.Option("--seed", help="Another estate for each number.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=10.0, help="Live records/s; 1500, 600 with --families, 500 with --brokers 3."),
    ] = None,
    records: Annotated[int, typer.Option("--records", min=1000, help="Records in orders before the start.")] = 200_000,
    brokers: Annotated[int, typer.Option("--brokers", help="Brokers a side: 1 or 3.")] = 1,
    folder: Annotated[Path, typer.Option("--folder", help="Where histories and the report go.")] = Path("build/demo"),
    playbook: Annotated[str, typer.Option("--playbook", help="The playbook to run: a file or a name.")] = "quickstart",
    families: Annotated[
        bool, typer.Option("--families", help="Clients of five families; needs a JDK, Go and pip.")
    ] = False,
    source_version: SourceVersion = SOURCE_VERSION,
    target_version: TargetVersion = TARGET_VERSION,
    report_to: Annotated[
        Path | None, typer.Option("--report", help="Where the report goes; else report.json in the folder.")
    ] = None,
) -> Answer:
    """Run a whole live migration between two clusters, judge the result, and report."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    usual = _FAMILIES_RATE if families else _RATE
    rate = rate or (min(usual, _RATE_OF_THREE) if brokers == 3 else usual)
    _check_versions(source_version, target_version)
    read_playbook(playbook)
    SANDBOX.need("kmigrate sandbox demo")
    plan = DemoPlan(folder, playbook, seed, rate, records, brokers, families, source_version, target_version)
    report = Demo(plan, call.out).run()
    chosen = report_to or folder / "report.json"
    chosen.parent.mkdir(parents=True, exist_ok=True)
    chosen.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    good = report.clean and not report.missed
    return Answer(report.as_json(), migration_view(report), Exit.OK if good else Exit.FAILED)


# live clients


@command(traffic_app, "start", target=False)
def start(
    call: Call,
    which: Which = None,
    to: Annotated[str, typer.Option("--to", metavar="source|target|router|HOST:PORT", help="Where to.")] = "source",
    rate: Annotated[float, typer.Option("--rate", min=1.0, help="Records per second of all producers.")] = _RATE,
    records: Annotated[int, typer.Option("--records", min=1000, help="Records in orders before the start.")] = 200_000,
    folder: Folder = None,
) -> Answer:
    """Start live clients: producers of two families, two groups of consumers, a transactional writer.

    The first start fills the source with topics that hold records already.
    """
    SANDBOX.need("kmigrate sandbox traffic start")
    chosen = _folder(call, folder)
    bootstrap = _address(call, to)
    filled = _fill(call, chosen, records)
    if filled or not (chosen / "traffic" / "traffic.json").exists():
        Traffic.create(chosen / "traffic", demo_clients(rate))
    started = Traffic(chosen / "traffic").start(bootstrap, which or "all", access=_logins(chosen, to, bootstrap))
    return _clients_answer("started", started, bootstrap)


def _fill(call: Call, folder: Path, records: int) -> bool:
    """Fill the source of a new sandbox with records; return whether the source was empty."""
    source = call.settings.cluster("source")
    if asyncio.run(_exists(source, next(iter(DEMO_TOPICS)))):
        return False
    own = SandboxEstate.load(folder).source  # topics are created on a sandbox's source only
    with call.out.waiting("filling the source") as waiting:
        preload(
            source.bootstrap_servers,
            folder / _PRELOAD,
            Preload(records=records),
            on_progress=waiting.say,
            login=own.client(),
        )
    return True


async def _exists(settings: ClusterSettings, topic: str) -> bool:
    async with ClusterClient(settings) as client:
        return await client.topic(topic) is not None


@command(traffic_app, "roll", target=False)
def roll(
    call: Call,
    which: Which = None,
    to: Annotated[str, typer.Option("--to", metavar="source|target|router|HOST:PORT", help="Where to.")] = "router",
    folder: Folder = None,
) -> Answer:
    """Restart live clients one by one with another bootstrap address: the router's."""
    which = call.required(which, "WHICH", "the clients to roll", iter(("producers", "consumers", "all")))
    chosen = _folder(call, folder)
    bootstrap = _address(call, to)
    traffic = Traffic(chosen / "traffic")
    with call.out.waiting(f"rolling {which} to {bootstrap}"):
        rolled = traffic.roll(which, bootstrap, access=_logins(chosen, to, bootstrap))
        return _clients_answer("rolled", rolled, bootstrap)


@command(traffic_app, "stop", target=False)
def stop(call: Call, which: Which = None, folder: Folder = None) -> Answer:
    """Stop live clients: writers first, readers after they have read everything; then join their histories."""
    chosen = _folder(call, folder)
    traffic = Traffic(chosen / "traffic")
    past = [path for path in (chosen / _PRELOAD, chosen.parent / _PRELOAD) if path.exists()][:1]
    with call.out.waiting("stopping clients"):
        behind = traffic.stop(which or "all", also_read=past)
    fields: dict[str, Any] = {
        "behind": [{"group": g, "topic": t, "partition": p, "offsets": n} for g, t, p, n in behind]
    }
    text = Text("stopped")
    if not any(client.running for client in traffic.clients()):
        fields["events"] = traffic.write_history(chosen / _HISTORY, with_files=past)
        fields["history"] = str(chosen / _HISTORY)
        text.append(f"; {fields['events']:,} events in {fields['history']}")
    late = [
        Text(f"! {group} was {offsets:,} behind on {topic}-{partition}", style="yellow")
        for group, topic, partition, offsets in behind
    ]
    return Answer(fields, below([text, *late]))


def _address(call: Call, to: str) -> str:
    """Return the bootstrap address that a word stands for; host:port stands for itself."""
    if ":" in to:
        return to
    if to in ("source", "target"):
        return call.settings.cluster(to).bootstrap_servers
    if to != "router":
        raise UsageError("bad-address", f"--to {to}", next_step="expected: source, target, router or HOST:PORT")
    return asyncio.run(_router(call))


def _logins(folder: Path, to: str, bootstrap: str) -> Logins | None:
    """Return the live clients' logins on a secure sandbox; at the router the target's: the target checks logins."""
    try:
        clusters = SandboxEstate.load(folder).clusters
    except Refused as refused:
        if refused.ref != "no-sandbox":  # without a sandbox the clients run on the user's own clusters
            raise
        return None
    for cluster in clusters:
        here = cluster.bootstrap == bootstrap or (to == "router" and cluster.spec.name == "target")
        if cluster.spec.secure and here:
            return {role: cluster.security.access(user) for role, user in CLIENT_USERS.items()}
    return None


async def _router(call: Call) -> str:
    """Return the addresses of the registered routers: a router's `--port` replaces the configured port."""
    routers: Sequence[RouterRecord] = ()
    try:
        async with call.connections() as connections:
            routers = connections.log.state.routers()
    except Refused as refused:
        if refused.ref != "no-state-log":
            raise
    if not routers:
        raise Refused(
            "no-router", "no router is registered", still_true="no client was touched", next_step="kmigrate run"
        )
    return ",".join(router.bootstrap for router in routers)


def _clients_answer(word: str, clients: list[Client], bootstrap: str) -> Answer:
    names = [client.name for client in clients]
    text = f"{word} {len(names)} clients at {bootstrap}: {', '.join(names)}" if names else f"nothing to be {word}"
    return Answer({word: names, "bootstrap": bootstrap}, Text(text))
