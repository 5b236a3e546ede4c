"""`kmigrate init`: the first `kmigrate.toml`, by questions or by flags, with a first connection to both clusters."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from kmigrate.cli.base import wizard
from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import PlanOnly, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text, below
from kmigrate.cli.commands.probes import ClusterIdentity, identify_cluster
from kmigrate.cli.guide.cluster_questions import ask_cluster, client_of_file
from kmigrate.cli.guide.draft import ClusterDraft, ConfigDraft, exists, given_key, write_draft
from kmigrate.cli.guide.views import counted
from kmigrate.cli.views.tables import facts
from kmigrate.config.listen import listen_address
from kmigrate.config.load import DEFAULT_FILE
from kmigrate.config.raw_value import located
from kmigrate.errors import KmigrateError, Refused, UsageError
from kmigrate.workflow import verbs

__all__ = ["app", "init"]

app = typer.Typer()

_LISTEN = "127.0.0.1:19092"
_LINK = "migration"
_ANYWHERE = ("0.0.0.0", "::")
_MOST_PORT = 65_535

Servers = Annotated[str | None, typer.Option("--source", metavar="HOST:PORT,...", help="Bootstrap of the source.")]
TargetServers = Annotated[
    str | None, typer.Option("--target", metavar="HOST:PORT,...", help="Bootstrap of the target.")
]
Properties = Annotated[
    Path | None, typer.Option("--source-properties", help="Property file of a Java client of the source.")
]
TargetProperties = Annotated[
    Path | None, typer.Option("--target-properties", help="Property file of a Java client of the target.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--source-set",
        metavar="KEY=VALUE",
        help="A key of the source's section (may be repeated); a password is env:VARIABLE or file:PATH.",
    ),
]
TargetSet = Annotated[
    list[str] | None,
    typer.Option("--target-set", metavar="KEY=VALUE", help="A key of the target's section (may be repeated)."),
]


@dataclass
class _Side:
    """What the flags say about one cluster, and what its first connection found."""

    role: str
    name: str
    servers: str | None
    properties: Path | None
    settings: list[str]
    draft: ClusterDraft = field(init=False)
    left_out: tuple[str, ...] = ()
    """Settings of a Java client that kmigrate does not need."""
    identity: ClusterIdentity | None = None

    def __post_init__(self) -> None:
        self.draft = ClusterDraft(self.name)

    @property
    def given(self) -> bool:
        return bool(self.servers or self.properties or self.settings)

    @property
    def taken(self) -> bool:
        return "bootstrap.servers" in self.draft.keys

    def take_flags(self) -> None:
        """Fill the draft from the flags; a flag wins over the property file."""
        self.draft = ClusterDraft(self.name)
        if self.properties is not None:
            self.left_out = client_of_file(self.draft, self.properties)
        if self.servers:
            self.draft.keys["bootstrap.servers"] = self.servers
        for text in self.settings:
            key, value = given_key(text, f"--{self.role}-set")
            self.draft.keys[key] = value
            self.draft.secrets.pop(key, None)
        if not self.taken:
            raise UsageError(
                "missing-value",
                f"--{self.role} is missing: the bootstrap servers of the {self.role}",
                still_true="nothing was contacted or changed",
                next_step=f"give --{self.role} HOST:PORT, or --{self.role}-properties FILE",
            )

    def ask(self) -> None:
        self.draft, self.left_out = ask_cluster(self.role, self.name, self.servers or "")

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "bootstrap": self.draft.keys["bootstrap.servers"],
            "answer": asdict(self.identity) if self.identity else None,
            "left_out": list(self.left_out),
        }


@command(app, "init", target=False)
def init(
    call: Call,
    source: Servers = None,
    target: TargetServers = None,
    source_name: Annotated[str, typer.Option("--source-name", help="Name of the source in the file.")] = "source",
    target_name: Annotated[str, typer.Option("--target-name", help="Name of the target in the file.")] = "target",
    source_properties: Properties = None,
    target_properties: TargetProperties = None,
    source_set: Set = None,
    target_set: TargetSet = None,
    link: Annotated[str | None, typer.Option("--link", help=f"Name of the link for [defaults] (else {_LINK}).")] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help=f"Address of the router for clients (else {_LISTEN})."),
    ] = None,
    advertised_host: Annotated[
        str | None, typer.Option("--advertised-host", help="Host that clients get (else the host of --listen).")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Contact no cluster.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Write the first kmigrate.toml, by questions on a terminal or by flags.

    Tries both clusters at once, and says which cluster answers or why none does. Passwords stay in environment
    variables or files. The file is --config, else KMIGRATE_CONFIG, else ./kmigrate.toml.
    """
    file = located(Path(), str(call.config or os.environ.get("KMIGRATE_CONFIG") or DEFAULT_FILE))
    if file.exists() and not overwrite and not plan:
        raise exists(file, file)
    asks = call.interactive and not yes
    source_side = _Side("source", source_name, source, source_properties, source_set or [])
    target_side = _Side("target", target_name, target, target_properties, target_set or [])
    sides = (source_side, target_side)
    _check_names(source_name, target_name, link)
    address = None if listen is None else _address(listen)
    for side in sides:
        if side.given or not asks:
            side.take_flags()
    for side in sides:
        _settle(call, side, file.parent, asks=asks, offline=offline)
    _refuse_one_cluster(source_side, target_side)
    router = _router(asks, address, advertised_host)
    name = link or (wizard.type_in("Name of the link?", _LINK, _link_fault) if asks else _LINK)
    draft = ConfigDraft(source_side.draft, target_side.draft, router, name)
    if plan:
        return _answer(file, draft, sides, [])
    if asks:
        _confirm(call, draft, file)
    return _answer(file, draft, sides, write_draft(draft, file, overwrite=overwrite))


def _check_names(source: str, target: str, link: str | None) -> None:
    for name, other in ((source, target), (target, source)):
        if not name.strip() or name == other:
            raise UsageError(
                "bad-name",
                f"source and target cannot have the names {source!r} and {target!r}",
                still_true="nothing was contacted or changed",
                next_step="expected: two different names, --source-name and --target-name",
            )
    if link:
        verbs.check_link_name(link)


def _settle(call: Call, side: _Side, folder: Path, *, asks: bool, offline: bool) -> None:
    """Ask for a section that no flag gives, and try the cluster; on a terminal ask again after a failure."""
    if not side.taken:
        side.ask()
    if offline:
        side.draft.check(folder)
        return
    while True:
        try:
            with call.out.waiting(f"asking the {side.role}"):
                side.identity = asyncio.run(identify_cluster(side.draft.settings(folder, os.environ)))
        except KmigrateError as error:
            error.still_true = "no file was written"
            if not asks:
                raise
            call.out.error(error)
            if not wizard.choose(f"The {side.role} cannot be used yet. How do you go on?", _AFTER_FAILURE):
                return
            side.ask()
        else:
            if asks:
                call.out.show(_found(side))
            return


_AFTER_FAILURE = (
    ("answer the questions about this cluster again", True),
    ("keep the answers; kmigrate doctor tries them later", False),
)


def _found(side: _Side) -> Text:
    assert side.identity is not None
    seen = side.identity
    figures = f"{counted(seen.brokers, 'broker')}, Kafka {seen.version}, {counted(seen.topics, 'topic')}"
    return Text.assemble(("✓ ", "green"), f"{side.role} {side.name} answers: {figures}, cluster id {seen.cluster_id}")


def _refuse_one_cluster(source: _Side, target: _Side) -> None:
    if source.identity is None or target.identity is None:
        return
    if source.identity.cluster_id == target.identity.cluster_id:
        raise Refused(
            "source-is-target",
            f"source and target are the same cluster: both answer with cluster id {source.identity.cluster_id}",
            still_true="no file was written",
            next_step="give the bootstrap servers of two clusters",
        )


def _router(asks: bool, address: tuple[str, int] | None, advertised: str | None) -> Mapping[str, str | int]:
    """Return the `[router]` section of an address; fixed ports let clients find the router after a restart."""
    if address is None:
        asked = wizard.type_in("Address of the router for clients?", _LISTEN, _listen_fault) if asks else _LISTEN
        address = _address(asked)
    host, port = address
    if advertised is None and host in _ANYWHERE:
        advertised = platform.node()
        if asks:
            advertised = wizard.type_in("Name or address of this host, as clients reach the host?", advertised)
    named: dict[str, str | int] = {"advertised_host": advertised} if advertised else {}
    return {"host": host, **named, "port": port, "broker_ports": port + 1}


def _address(listen: str) -> tuple[str, int]:
    found = listen_address(listen)
    if found is None or not 0 < found[1] < _MOST_PORT:
        raise UsageError(
            "bad-listen-address",
            f"--listen {listen}: not an address",
            still_true="nothing was changed",
            next_step="expected: HOST:PORT, or a port of 127.0.0.1; brokers get the ports behind",
        )
    return found


def _listen_fault(text: str) -> str:
    try:
        _address(text)
    except UsageError as error:
        return error.next_step
    return ""


def _link_fault(text: str) -> str:
    try:
        verbs.check_link_name(text)
    except UsageError as error:
        return error.next_step
    return ""


def _confirm(call: Call, draft: ConfigDraft, file: Path) -> None:
    call.out.show(below(draft.text(hide=True).splitlines()), as_it_is=True)
    if not wizard.agree(f"Write this to {file}?"):
        raise Refused("not-confirmed", "not confirmed", still_true="no file was written")


def _answer(file: Path, draft: ConfigDraft, sides: tuple[_Side, _Side], written: list[Path]) -> Answer:
    place = "" if file == Path(DEFAULT_FILE) else f" --config {shlex.quote(str(file))}"
    following = [f"kmigrate doctor{place}", f"kmigrate guide{place}"]
    shown_text = draft.text(hide=True)
    fields = {
        "config": str(file),
        "written": [str(path) for path in written],
        "clusters": {side.role: side.as_json() for side in sides},
        "router": dict(draft.router),
        "link": draft.link,
        "text": shown_text,
        "next": following,
    }
    lines = [_found(side) for side in sides if side.identity is not None]
    lines += [
        Text(f"not needed from the property file of the {side.role}: {', '.join(side.left_out)}", style="dim")
        for side in sides
        if side.left_out
    ]
    if not written:
        return Answer(fields, Group(*lines, below(shown_text.splitlines())))
    rows = [("written", str(path)) for path in written]
    return Answer(fields, Group(*lines, facts([*rows, *(("next", each) for each in following)])))
