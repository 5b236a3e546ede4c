"""`kmigrate plan`: what each topic of the source would get, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kmigrate.cli.call import Call, command
from kmigrate.cli.options import Link, Topics
from kmigrate.cli.output import Answer
from kmigrate.cli.times import start_position
from kmigrate.cli.views.plans import findings_view
from kmigrate.cli.views.tables import table
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient, TopicInfo
from kmigrate.errors import Refused
from kmigrate.model.ids import is_internal
from kmigrate.workflow import verbs
from kmigrate.workflow.estate import Estate

__all__ = ["TopicOutlook", "app", "plan"]

app = typer.Typer()


@dataclass(frozen=True)
class TopicOutlook:
    """One topic's future: figures are of this moment."""

    topic: str
    partitions: int
    replicas_source: int
    replicas_target: int
    padding: int
    """Filler offsets below the first record (they cost bytes once, and are deleted again)."""
    records: int
    """Offsets from the start to the source's end; records at most."""
    offsets: str
    """identical, or what stands against it."""
    state: str
    """new, or the phase it is in."""
    notes: tuple[str, ...]


@command(app, "plan")
async def plan(
    call: Call,
    topics: Topics = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="earliest|latest|TIME", help="Where to start; TIME: ISO-8601 or epoch ms.")
    ] = "earliest",
    link: Link = None,
) -> Answer:
    """Say what each topic would get.

    Partitions, replicas, padding, records to copy, identical offsets or why not; changes nothing.
    """
    start = start_position(from_)
    async with call.estate() as estate:
        record = verbs.resolve_link(estate.log.state, call.link(link))
        source, source_admin = await estate.source(record)
        known = (await source.refresh(topics or None)).topics
        names = topics or sorted(name for name in known if not is_internal(name))
        configs = await source_admin.topic_configs([name for name in names if name in known])
        readers = await verbs.unmirrored_readers(estate, source_admin)
        access = await verbs.access_findings(estate, record, names)
        rows: list[TopicOutlook] = []
        for name in dict.fromkeys(names):
            notes = _notes({key: value.value for key, value in configs.get(name, {}).items()})
            if name in readers:
                groups = ", ".join(readers[name])
                notes.append(f"groups that read it and are not mirrored would lose their place: {groups}")
            rows.append(await _outlook(estate, record.name, source, known.get(name), name, start, notes))
        json = {"link": record.name, "topics": [asdict(row) for row in rows], "acls": [found.what for found in access]}
        return Answer(json, Group(_view(rows), findings_view(access)))


def _notes(configs: dict[str, str]) -> list[str]:
    """Source settings that decide whether offsets can be kept."""
    notes: list[str] = []
    if "compact" in configs.get("cleanup.policy", ""):
        notes.append("compacted: large gaps between offsets stop a partition in this version")
    if configs.get("message.timestamp.type") == "LogAppendTime":
        notes.append("LogAppendTime: copied with the times that readers see, batch by batch anew (slower)")
    return notes


async def _outlook(
    estate: Estate, link: str, source: ClusterClient, info: TopicInfo | None, name: str, start: str, notes: list[str]
) -> TopicOutlook:
    against = ""
    try:
        checked = await verbs.mirror_topics(estate, link, [name], start, "auto", plan=True)
        notes = [*notes, *(f.what for f in checked.findings if f.level == "warn")]
    except Refused as refused:
        against = refused.what
    known = estate.log.state.topic_owner(name)
    state = known.phase.value if known is not None else "new"
    if info is None:
        return TopicOutlook(name, 0, 0, 0, 0, 0, against, state, tuple(notes))
    keys = [(name, p) for p in info.partitions]
    first = await source.list_offsets(dict.fromkeys(keys, _timestamp(start)))
    ends = await source.list_offsets(dict.fromkeys(keys, LATEST))
    begin = {key: first[key].offset if first[key].offset >= 0 else ends[key].offset for key in keys}
    replicas = max((len(p.replicas) for p in info.partitions.values()), default=0)
    return TopicOutlook(
        name,
        len(info.partitions),
        replicas,
        min(replicas, len(estate.target.metadata.brokers)),
        sum(max(0, offset) for offset in begin.values()),
        sum(max(0, ends[key].offset - begin[key]) for key in keys),
        against or "identical",
        state,
        tuple(notes),
    )


def _timestamp(start: str) -> int:
    return {"earliest": EARLIEST, "latest": LATEST}.get(start) or int(start)


def _view(rows: Sequence[TopicOutlook]) -> RenderableType:
    if not rows:
        return Text("the source has no topic")
    made = table("topic", "state", "partitions", "replicas", "padding", "to copy", "offsets")
    for column in made.columns[2:6]:
        column.justify = "right"
    notes: list[RenderableType] = []
    for row in rows:
        fine = row.offsets == "identical"
        made.add_row(
            row.topic,
            row.state,
            str(row.partitions),
            f"{row.replicas_source} → {row.replicas_target}",
            f"{row.padding:,}",
            f"{row.records:,}",
            Text("identical" if fine else f"refused: {row.offsets}", style="green" if fine else "red"),
        )
        notes += [Text(f"! {row.topic}: {note}", style="yellow") for note in row.notes]
    return Group(made, *notes)
