"""`kmigrate rollback --target-lost`: the report on the source once the target is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer, harmless_json, write_report
from kmigrate.cli.views.target_lost import target_lost_view
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import UsageError
from kmigrate.model.way_back_notes import link_of_notes
from kmigrate.net.clock import now_ms
from kmigrate.net.tasks import together
from kmigrate.workflow.base.connections import reach
from kmigrate.workflow.verbs.target_lost import (
    SourceFindings,
    denied_at_source,
    examine_source,
    read_notes,
    refuse_living_target,
    release_groups,
    router_findings,
)

__all__ = ["report_target_lost"]


async def report_target_lost(
    call: Call,
    topics: Sequence[str],
    link: str | None,
    source: str | None,
    out: Path | None,
    *,
    routers_stopped: bool,
    release: bool,
) -> Answer:
    """Return what the source holds of the link's topics, and write the report to a file.

    With `release` members may join the named groups at the source again.
    """
    settings = call.settings.cluster(source or _only_source(call))
    async with ClusterClient(settings) as client:
        with call.out.waiting(f"asking source {settings.name}"):
            await reach(client)
            name = call.link(link) or await _only_link(Admin(settings), settings.name)
            notes = await read_notes(client, name, topics)
        named = call.target or call.settings.defaults.target
        targets = {named} if named else {note.target for note in notes.values()}
        with call.out.waiting(f"asking target {', '.join(sorted(targets))}"):
            await together(*(refuse_living_target(call.settings.cluster(target)) for target in sorted(targets)))
            found = await router_findings(notes, settings, stopped=routers_stopped)
            found += await denied_at_source(client, notes)
        with call.out.waiting(f"reading source {settings.name}"):
            report = await examine_source(client, name, notes, found)
            report = await release_groups(client, report) if release else report
    document = _json(report, settings.name, settings.bootstrap_servers, sorted(targets))
    if out is not None:
        text = harmless_json(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        changed = "the named groups were released on the source" if release else "nothing was changed on the source"
        write_report(out, text, changed)
    return Answer(document, target_lost_view(report, settings), Exit.OK if report.is_complete else Exit.PARITY_MISMATCH)


def _only_source(call: Call) -> str:
    """Return the only configured cluster beside the target."""
    target = call.target or call.settings.defaults.target
    others = [name for name in call.settings.clusters if name != target]
    if target and len(others) == 1:
        return others[0]
    raise UsageError(
        "no-source",
        "which cluster is the source? the state log that says so is lost with the target",
        still_true="nothing was contacted or changed",
        next_step=f"give --source NAME; configured: {', '.join(sorted(call.settings.clusters)) or 'none'}",
    )


async def _only_link(admin: Admin, source: str) -> str:
    """Return the only link that has notes at the source."""
    try:
        links = sorted(filter(None, map(link_of_notes, await admin.groups())))
    finally:
        admin.close()
    if len(links) == 1:
        return links[0]
    raise UsageError(
        "which-link",
        f"which link? source {source} has notes of {', '.join(links) or 'no link'}",
        still_true="nothing was changed",
        next_step="give --link NAME",
    )


def _json(report: SourceFindings, source: str, bootstrap: str, targets: Sequence[str]) -> dict[str, Any]:
    return {
        "at_ms": now_ms(),
        "link": report.link,
        "source": source,
        "targets": list(targets),
        "clients_bootstrap": bootstrap,
        "complete": report.is_complete,
        "partitions": [{**asdict(each), "complete": each.is_complete} for each in report.partitions],
        "groups": [asdict(each) for each in report.groups],
        "more_groups": report.more_groups,
        "units": [asdict(each) for each in report.units],
        "findings": [each.as_json() for each in report.findings],
    }
