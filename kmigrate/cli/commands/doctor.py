"""`kmigrate doctor`: what this machine and the configured clusters can do, and the cost of each missing ability."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import re
import shlex
import shutil
import sys

import typer
from rich.console import Group, RenderableType

from kmigrate import __version__
from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import PrintAcls
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands.probes import find_names, probe_cluster, probe_rights, probe_settings
from kmigrate.cli.process.engine_settings import grant_use
from kmigrate.cli.views.acls import ClusterAcls, acls_answer
from kmigrate.cli.views.plans import findings_view
from kmigrate.config.settings import HooksSection, Settings
from kmigrate.errors import KmigrateError, Refused, UsageError
from kmigrate.extras import EXTRA_MISSING, EXTRAS, Extra
from kmigrate.kafka_jars.java import find_java
from kmigrate.model.presences import RouterPresence
from kmigrate.model.reports import HookPoint
from kmigrate.net.tasks import together
from kmigrate.workflow.base.broker_settings import BrokerSettings, compare_settings
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, refuse, warn
from kmigrate.workflow.base.rights import Wanted
from kmigrate.workflow.status.missing_credentials import credential_findings

__all__ = ["app", "doctor", "machine_findings"]

app = typer.Typer()

_PACKAGES = ("confluent-kafka", "crc32c", "kio", "numpy", "rich", "tomli", "typer", "uvloop")


@command(app, "doctor", target=False)
def doctor(call: Call, print_acls: PrintAcls = False) -> Answer:
    """Check this machine and every cluster.

    Python, Java, packages, the configuration, what each cluster can do, and which rights kmigrate lacks there; changes
    nothing. With --print-acls no cluster is asked, and the rights are for all topics and groups.
    """
    if print_acls:
        return acls_answer(_acls(call.settings))
    parts: dict[str, list[Finding]] = {"machine": machine_findings()}
    try:
        settings = call.settings
    except UsageError as error:
        parts["configuration"] = [refuse(error.ref, error.what, error.next_step)]
    else:
        parts["configuration"] = _configuration(settings)
        with call.out.waiting("asking the clusters"):
            parts.update(asyncio.run(_clusters(settings)))
    bad = any(f.level == "refuse" for findings in parts.values() for f in findings)
    fields = {part: [finding.as_json() for finding in findings] for part, findings in parts.items()}
    return Answer({"ok": not bad, **fields}, _view(parts), Exit.FAILED if bad else Exit.OK)


def _view(parts: dict[str, list[Finding]]) -> RenderableType:
    rows: list[RenderableType] = []
    for part, findings in parts.items():
        rows += [Text(part, style="bold"), findings_view(findings), Text("")]
    return Group(*rows[:-1])


def machine_findings() -> list[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    found = [ok("kmigrate", f"kmigrate {__version__}"), ok("python", f"Python {version}")]
    try:
        java = find_java(os.environ)
        found.append(ok("java", f"Java {java.major} in {java.home}"))
    except Refused as error:
        found.append(warn(error.ref, f"{error.what}: no sandbox and no verify without it", error.next_step))
    versions: list[str] = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(refuse("package-missing", f"{package} is not installed", _install(package)))
    found.append(ok("packages", ", ".join(versions)))
    return [*found, *map(_extra, EXTRAS)]


def _install(package: str) -> str:
    """Return the command that installs a package in the versions that this kmigrate takes."""
    try:
        required = importlib.metadata.requires("kmigrate") or []
    except importlib.metadata.PackageNotFoundError:  # kmigrate runs from a folder of sources
        required = []
    found = next((each for each in required if re.split(r"[^\w.-]", each, maxsplit=1)[0] == package), package)
    return f"pip install {shlex.quote(found.partition(';')[0].strip())}"


def _extra(extra: Extra) -> Finding:
    missing = extra.missing()
    if missing:
        return warn(EXTRA_MISSING, f"{', '.join(missing)}: not installed, so without {extra.purpose}", extra.install)
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in extra.packages)
    return ok(f"extra-{extra.name}", f"{versions}, for {extra.purpose}")


def _configuration(settings: Settings) -> list[Finding]:
    if not settings.clusters:
        return [
            warn(
                "no-config",
                f"no cluster is configured in {settings.place}",
                "write a kmigrate.toml (docs/configuration.md), or try it out: kmigrate sandbox up",
            )
        ]
    names = ", ".join(sorted(settings.clusters))
    found = [ok("config", f"{settings.place}: clusters {names}")]
    overridden = sorted(f"{key} ({origin})" for key, origin in settings.origins.items() if origin != str(settings.path))
    if overridden:
        found.append(ok("config-overrides", "not from the file: " + ", ".join(overridden)))
    return found + _hooks(settings.hooks)


def _hooks(section: HooksSection) -> list[Finding]:
    """Check that this machine can start the commands of `[hooks]`; the controller may run on another machine."""
    found: list[Finding] = []
    for point in HookPoint:
        words = section.command(point)
        if not words:
            continue
        path = shutil.which(words[0])
        if path is None:
            effect = "every promote and rollback is given up" if point is HookPoint.BEFORE_FENCE else "it is left out"
            what = f"{words[0]}, the hook {point}, is no program that this machine can start: without it {effect}"
            found.append(
                warn("hook-not-executable", what, "give the path of an executable file, where the controller runs")
            )
        else:
            found.append(ok("hook", f"hook {point}: {path}"))
    return found


async def _clusters(settings: Settings) -> dict[str, list[Finding]]:
    """Probe all clusters at the same time; a silent cluster does not delay or hide the other clusters' findings."""
    parts: dict[str, list[Finding]] = {}

    async def ask(name: str) -> None:
        try:
            parts[f"cluster {name}"] = await probe_cluster(settings.cluster(name))
        except KmigrateError as error:
            parts[f"cluster {name}"] = [refuse(error.ref, re.sub(r"\s+", " ", error.what), error.next_step)]

    await together(*map(ask, sorted(settings.clusters)))
    target = parts.get(f"cluster {settings.defaults.target}", [])
    answers = bool(target) and not any(finding.level == "refuse" for finding in target)
    routers = await _routers(settings) if answers else {}
    return dict(sorted(parts.items())) | await _compared(settings) | await _rights(settings) | routers


async def _routers(settings: Settings) -> dict[str, list[Finding]]:
    """Return what running routers report of their clients; nothing where the default target has no state log."""
    try:
        async with await Connections.open(settings.cluster, settings.defaults.target) as connections:
            routers = connections.log.alive(RouterPresence)
    except KmigrateError:
        return {}
    return {"routers": credential_findings(routers)} if routers else {}


async def _compared(settings: Settings) -> dict[str, list[Finding]]:
    """Compare every other cluster's broker settings with those of the default target."""
    target = settings.defaults.target
    if target not in settings.clusters:
        return {}
    found: dict[str, BrokerSettings | Finding] = {}

    async def ask(name: str) -> None:
        try:
            found[name] = await probe_settings(settings.cluster(name))
        except KmigrateError as error:
            found[name] = warn("broker-settings-unknown", f"not compared: {error.what}", error.next_step)

    await together(*map(ask, sorted(settings.clusters)))
    return {
        f"settings {name} → {target}": _differences(found[name], found[target])
        for name in sorted(settings.clusters)
        if name != target
    }


def _sides(settings: Settings) -> dict[str, str]:
    """Return each cluster's side: all clusters beside the default target are sources."""
    target = settings.defaults.target
    return {name: "target" if name == target else "source" for name in sorted(settings.clusters)}


def _acls(settings: Settings) -> list[ClusterAcls]:
    use = grant_use(settings)
    return [ClusterAcls(settings.cluster(name), Wanted(side, use=use)) for name, side in _sides(settings).items()]


async def _rights(settings: Settings) -> dict[str, list[Finding]]:
    """Check kmigrate's rights: at a source on all its topics and groups, at the target on those of all sources."""
    sides, use = _sides(settings), grant_use(settings)
    if settings.defaults.target not in settings.clusters:
        return {}
    wanted: dict[str, Wanted] = {}
    found: dict[str, list[Finding]] = {}

    async def name_all(name: str) -> None:
        try:
            topics, groups = await find_names(settings.cluster(name))
            wanted[name] = Wanted("source", topics, groups, use)
        except KmigrateError as error:
            found[name] = [warn("rights-unknown", f"rights on {name} were not checked: {error.what}", error.next_step)]

    async def ask(name: str) -> None:
        found[name] = await probe_rights(settings.cluster(name), wanted[name])

    await together(*(name_all(name) for name, side in sides.items() if side == "source"))
    topics = {topic for each in wanted.values() for topic in each.topics}
    groups = {group for each in wanted.values() for group in each.groups}
    wanted[settings.defaults.target] = Wanted("target", sorted(topics), sorted(groups), use)
    await together(*map(ask, sorted(wanted)))
    return {f"rights {name}": findings for name, findings in sorted(found.items())}


def _differences(source: BrokerSettings | Finding, target: BrokerSettings | Finding) -> list[Finding]:
    if isinstance(source, Finding):
        return [source]
    if isinstance(target, Finding):
        return [target]
    same = ok("broker-settings", "no broker setting of the target is in the way of the source's clients")
    return compare_settings(source, target) or [same]
