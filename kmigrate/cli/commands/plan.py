"""`kmigrate plan`: the forecast of each topic before anything is written, or what is left of a running copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Link, NewTopics, OffsetsMode, PrintAcls, StartAt
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.values import start_position
from kmigrate.cli.base.words import SafeTable, Text
from kmigrate.cli.commands.target_configs import creation_configs, default_findings
from kmigrate.cli.process.engine_settings import grant_use
from kmigrate.cli.views.acls import ClusterAcls, acls_answer
from kmigrate.cli.views.plans import findings_view
from kmigrate.cli.views.tables import figure, full_width, table
from kmigrate.cluster.brokers import refuse_unreachable_brokers
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import Refused, Unreachable
from kmigrate.model.amounts import bytes_text
from kmigrate.model.ids import is_internal
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.records import TopicRecord
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.workflow import verbs
from kmigrate.workflow.base.broker_settings import OF_CLUSTERS, setting_findings
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.control_markers import AT_THE_TARGET
from kmigrate.workflow.base.rights import Wanted, rights_findings
from kmigrate.workflow.status.lags import copied_up_to, padding_left

if TYPE_CHECKING:
    from kmigrate.mirror.upkeep.forecast import Sample

__all__ = ["TopicForecast", "app", "plan"]

app = typer.Typer()

_PADDING_RATE = 5e6
"""Filler offsets per second and partition: 8.5 M were measured (M4)."""
_STRETCHES = 1_000
"""Maximum stretches of 1 MiB that one call reads, but at least one stretch of each partition: a plan takes seconds."""
_HOUR_MS = 3_600_000
_HOUR_STRETCHES = 3
"""Stretches read of a partition's last hour."""
_LONG_S = 60.0
"""Seconds of filling below which a note about holes is not worth printing."""
_MIN_INSYNC = "min.insync.replicas"
_STYLES = {"identical": "green", "mapped": "cyan"}


@dataclass(frozen=True)
class TopicForecast:
    """A topic's forecast: figures (−1: unknown) of now, and of the remaining copy where a topic is mirrored already."""

    topic: str
    partitions: int = -1
    replicas_source: int = -1
    replicas_target: int = -1
    padding: int = -1
    """Filler offsets below the first record; filler costs bytes once and is deleted again."""
    records: int = -1
    """Offsets from the start, or from the copy's position, to the source's end: a maximum of the records."""
    holes: int = -1
    """Offsets that no reader sees (markers, aborted data, compacted records); a complete count where `holes_exact`."""
    holes_exact: bool = False
    bytes: int = -1
    """Bytes as the source stores them; an estimate on a long topic."""
    seconds: float = -1.0
    """Seconds for padding, for copying at the given rate, and for filling holes."""
    offsets: str = ""
    """`identical`, `mapped`, or the obstacle to both."""
    state: str = "new"
    """`new`, or the topic's phase."""
    notes: tuple[str, ...] = ()
    hourly_bytes: int = -1
    """Bytes written to the source within the last hour, by the records' timestamps."""

    @property
    def disk(self) -> int:
        """Bytes that the copy takes on the target's disks, with all replicas; −1 where unknown."""
        return self._with_replicas(self.bytes)

    @property
    def disk_growth(self) -> int:
        """Bytes by which the copy grows on the target's disks in an hour, with all replicas; −1 where unknown."""
        return self._with_replicas(self.hourly_bytes)

    def _with_replicas(self, size: int) -> int:
        return size * self.replicas_target if size >= 0 and self.replicas_target >= 0 else -1


@command(app, "plan")
async def plan(
    call: Call,
    topics: NewTopics = None,
    from_: StartAt = "earliest",
    offsets: OffsetsMode = "auto",
    rate: Annotated[float, typer.Option("--rate", help="Assumed rate of the copy in MB per second.", min=0.1)] = 50,
    link: Link = None,
    print_acls: PrintAcls = False,
) -> Answer:
    """Print what each topic would get, or what is left of its copy.

    Partitions, replicas, padding, holes, records to copy, time, identical or mapped offsets, and rights that kmigrate
    lacks; changes nothing. The figures of a topic that is mirrored already count only the remaining copy, whatever
    --from and --offsets say. With --print-acls the call prints only the rights for these topics and their groups.
    """
    start = start_position(from_)
    verbs.check_offsets_mode(offsets)
    async with call.connections() as connections:
        record = verbs.resolve_link(connections.log.state, call.link(link))
        source, source_admin = await connections.source(record)
        await refuse_unreachable_brokers(source)
        known = (await source.refresh(topics or None)).topics
        names = topics or sorted(name for name in known if not is_internal(name))
        configs = await source_admin.topic_configs([name for name in names if name in known])
        readers = await verbs.unmirrored_readers(connections, source, source_admin)
        moving = {each.group for each in connections.log.state.groups(record.name)}
        moving |= {group for name in names for group in readers.get(name, ())}
        of_source, of_target = (
            Wanted(side, tuple(names), tuple(sorted(moving)), grant_use(call.settings, record.settings))
            for side in ("source", "target")
        )
        if print_acls:
            sides = (ClusterAcls(source.settings, of_source), ClusterAcls(connections.target.settings, of_target))
            return acls_answer(sides)
        rights = [*await rights_findings(source, of_source), *await rights_findings(connections.target, of_target)]
        access = await verbs.access_findings(connections, record, names)
        defaults = await default_findings(connections, record, [name for name in names if name in known])
        limits = await setting_findings(connections, record)
        limits += await verbs.memory_findings(connections, raises=call.settings.mirror.raise_producer_expiration)
        rows: list[TopicForecast] = []
        partitions = sum(len(known[name].partitions) for name in names if name in known)
        stretches = max(1, min(10, _STRETCHES // max(1, partitions)))
        round_trip_s = await _round_trip_s(connections.target)
        configs_of = creation_configs(connections, record.name)
        for name in dict.fromkeys(names):
            values = {key: value.value for key, value in configs.get(name, {}).items()}
            notes = _notes(values)
            if name in readers:
                groups = ", ".join(readers[name])
                notes.append(f"groups that read it and are not mirrored would lose their position: {groups}")
            compacted = "compact" in values.get("cleanup.policy", "")
            in_sync = await _min_insync(connections.target, name, values)
            asked = _Asked(
                start,
                offsets,
                rate,
                compacted,
                stretches,
                record.settings,
                round_trip_s,
                in_sync,
                call.settings.mirror.windows,
                configs_of,
            )
            rows.append(await _forecast(connections, record.name, source, known.get(name), name, asked, notes))
        json = {
            "link": record.name,
            "topics": [{**asdict(row), "disk": row.disk, "disk_growth": row.disk_growth} for row in rows],
            "acls": [found.what for found in access],
            "source_defaults": [found.what for found in defaults],
            "broker_settings": [found.what for found in limits],
            "rights": [found.what for found in rights],
        }
        return Answer(
            json,
            Group(
                _Forecasts(rows) if rows else Text("the source has no topic"),
                findings_view([*access, *rights, *defaults, *limits]),
            ),
        )


def _notes(configs: dict[str, str]) -> list[str]:
    """Return notes on source settings that make a topic slower to copy."""
    if configs.get("message.timestamp.type") == "LogAppendTime":
        return ["LogAppendTime: copied with the times that readers see, batch by batch anew (slower)"]
    return []


@dataclass(frozen=True)
class _Asked:
    """The inputs that decide about a topic, beside the topic's logs."""

    start: str
    offsets: str
    rate: float
    compacted: bool
    stretches: int
    settings: LinkSettings
    round_trip_s: float
    """Seconds of a round trip to the target."""
    min_insync: int
    """`min.insync.replicas` of the topic on the target."""
    windows: str
    """Windows that `[mirror]` allows."""
    configs_of: verbs.ConfigsOf
    """Function that returns the configs with which the mirror would create a topic."""


async def _round_trip_s(target: ClusterClient) -> float:
    """Return the shortest of three round trips, because the first may open a connection."""
    found: list[float] = []
    for _ in range(3):
        began = monotonic()
        await target.refresh([])
        found.append(monotonic() - began)
    return min(found)


async def _min_insync(target: ClusterClient, name: str, configs: Mapping[str, str]) -> int:
    """Return `min.insync.replicas` of the target's topic; of a topic to be created, the source's value."""
    from kmigrate.mirror.copy.min_insync import read_min_insync

    known = (await read_min_insync(target, [name])).get(name)
    return known if known is not None else min(int(configs.get(_MIN_INSYNC, 1)), len(target.metadata.brokers))


async def _forecast(
    connections: Connections,
    link: str,
    source: ClusterClient,
    info: TopicInfo | None,
    name: str,
    asked: _Asked,
    notes: list[str],
) -> TopicForecast:
    # Imported here: the module reads batches and loads modules that no other command needs.
    from kmigrate.mirror.upkeep.forecast import sample

    obstacle = ""
    try:
        checked = await verbs.mirror_topics(
            connections, link, [name], asked.start, asked.offsets, configs_of=asked.configs_of
        )
        notes += [f.what for f in checked.plan.findings if f.level == "warn" and f.ref not in OF_CLUSTERS]
    except Refused as refused:
        obstacle = refused.what
    owner = connections.log.state.topic_owner(name)
    known = owner if owner is not None and owner.link == link and not owner.forgotten_ms else None
    made = TopicForecast(name, offsets=obstacle, state=owner.phase.value if owner is not None else "new")
    if info is not None:
        replicas = max((len(p.replicas) for p in info.partitions.values()), default=0)
        on_target = min(replicas, len(connections.target.metadata.brokers))
        made = replace(made, partitions=len(info.partitions), replicas_source=replicas, replicas_target=on_target)
    if known is not None and known.at_target:
        offsets = "mapped" if known.mapped else "identical"
        made = replace(made, partitions=known.partitions, padding=0, records=0, holes=0, holes_exact=True, bytes=0)
        return replace(made, seconds=0.0, offsets=offsets, hourly_bytes=0)
    if info is None:
        return replace(made, notes=tuple(notes))
    if known is not None:
        notes += _held_back(known)
        asked = replace(asked, start="earliest" if known.starts else known.start, offsets=known.offsets)
    keys = [(name, p) for p in sorted(info.partitions)]
    first = await source.list_offsets(dict.fromkeys(keys, _timestamp(asked.start)))
    ends = await source.list_offsets(dict.fromkeys(keys, LATEST))
    if silent := sorted(p for _, p in keys if ends[name, p].error or ends[name, p].offset < 0):
        parts = ", ".join(map(str, silent))
        notes.append(f"the source returns no end of these partitions, so nothing is counted: {parts}")
        return replace(made, offsets=obstacle or "unknown", notes=tuple(notes))
    if known is not None and known.starts:
        left = await _rest_of_copy(connections, known, {p: first[name, p].offset for _, p in keys})
    else:
        starts = {p: first[name, p].offset if first[name, p].offset >= 0 else ends[name, p].offset for _, p in keys}
        left = await _whole_copy(source, name, starts, asked)
    begin, mapped = left.begin, left.mapped
    seen = [await sample(source, name, p, begin[p], ends[name, p].offset, stretches=asked.stretches) for _, p in keys]
    size, holes = sum(each.bytes for each in seen), sum(each.holes for each in seen)
    copying = size / (asked.rate * 1e6)
    filling, way = (0.0, "") if mapped else _filling(seen, asked)
    notes += left.notes
    if filling > max(copying, _LONG_S):
        way += "" if known is not None else "; --offsets mapped leaves them out"
        notes.append(f"holes, mostly of transactions, take {filling:,.0f} s of it: {way}")
    if not mapped and holes:
        notes.append(f"holes are filled with control markers, which bear the time of the copy: {AT_THE_TARGET}")
    return replace(
        made,
        padding=left.padding,
        records=sum(max(0, ends[key].offset - begin[key[1]]) for key in keys),
        holes=holes,
        holes_exact=all(each.exact for each in seen),
        bytes=size,
        seconds=round(copying + filling + left.padding / _PADDING_RATE, 1),
        offsets=obstacle or left.obstacle or ("mapped" if mapped else "identical"),
        notes=tuple(notes),
        hourly_bytes=await _hourly_bytes(source, name, {p: ends[name, p].offset for _, p in keys}, asked),
    )


def _filling(seen: Collection[Sample], asked: _Asked) -> tuple[float, str]:
    """Return the seconds that a topic's holes take, and how they are filled."""
    from kmigrate.mirror.upkeep.forecast import filling_s

    if asked.windows == "long" and asked.min_insync == 1:
        way = "up to 64 of a partition in a round trip, as min.insync.replicas is 1 on the target"
        return filling_s(seen, asked.round_trip_s, long=True), way
    because = f"min.insync.replicas is {asked.min_insync} on the target"
    why = because if asked.windows == "long" else f"[mirror] has windows = {asked.windows}"
    trips, count = (2, "two round trips") if asked.windows == "apart" else (1, "a round trip")
    way = f"each {count} of {asked.round_trip_s * 1000:.1f} ms, as {why}"
    return filling_s(seen, trips * asked.round_trip_s), way


async def _hourly_bytes(source: ClusterClient, name: str, ends: Mapping[int, int], asked: _Asked) -> int:
    """Return the bytes of the last hour's records; −1 on an error, or where the record found is over an hour ahead."""
    from kmigrate.mirror.upkeep.forecast import sample

    now = now_ms()
    found = await source.list_offsets({(name, partition): now - _HOUR_MS for partition in ends})
    if any(each.error or each.timestamp > now + _HOUR_MS for each in found.values()):
        return -1
    begins = {partition: each.offset for (_, partition), each in found.items() if each.offset >= 0}
    stretches = min(_HOUR_STRETCHES, asked.stretches)
    seen = [await sample(source, name, p, at, ends[p], stretches=stretches) for p, at in begins.items() if at < ends[p]]
    return sum(each.bytes for each in seen)


@dataclass(frozen=True)
class _Left:
    """The part of a topic that is to be copied, and the way of copying."""

    begin: dict[int, int]
    """First source offset to copy, by partition."""
    mapped: bool
    padding: int
    obstacle: str = ""
    notes: tuple[str, ...] = ()


async def _whole_copy(source: ClusterClient, name: str, starts: dict[int, int], asked: _Asked) -> _Left:
    """Return the plan for a whole topic of which nothing is copied yet."""
    from kmigrate.mirror.upkeep.forecast import why_mapped

    padding = sum(max(0, offset) for offset in starts.values())
    if asked.offsets == "mapped":
        return _Left(starts, True, 0)
    why = await why_mapped(source, asked.settings, name, starts, compacted=asked.compacted)
    if why and asked.offsets == "identical":
        return _Left(starts, False, padding, f"identical offsets can not be had: {why}")
    return _Left(starts, True, 0, notes=(f"mapped: {why}",)) if why else _Left(starts, False, padding)


async def _rest_of_copy(connections: Connections, record: TopicRecord, kept: dict[int, int]) -> _Left:
    """Return what is left of a copy: nothing below `kept`, the source logs' first offsets; added partitions whole."""
    notes: tuple[str, ...] = ()
    try:
        at, padding = await copied_up_to(connections, record), await padding_left(connections, record)
    except Unreachable as error:
        at, padding = dict(record.starts), 0
        notes = (f"the target does not tell how far the copy is, so all of it is counted: {error.what}",)
    begin = {partition: max(at.get(partition, 0), start) for partition, start in kept.items()}
    if not record.mapped:
        padding += sum(max(0, kept[partition]) for partition in kept.keys() - record.starts.keys())
    return _Left(begin, record.mapped, padding, notes=notes)


def _held_back(record: TopicRecord) -> list[str]:
    """Return the reasons why the copy takes longer than the figures say."""
    notes = []
    if record.paused:
        notes.append(f"it is paused: {advised('topic resume', record.link, record.topic)}")
    if record.stops:
        stopped = ", ".join(map(str, sorted(record.stops)))
        notes.append(f"partitions that have stopped, and that only a person lets go on (kmigrate status): {stopped}")
    return notes


def _timestamp(start: str) -> int:
    return {"earliest": EARLIEST, "latest": LATEST}.get(start) or int(start)


class _Forecasts:
    """A table that fits the terminal: on a narrow terminal states follow below, without replicas; --json has both."""

    def __init__(self, rows: Sequence[TopicForecast]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(_COLUMNS)
        if full_width(whole, console, options) <= options.max_width:
            yield whole
        else:
            yield self._table([column for column in _COLUMNS if column not in ("state", "replicas")])
            states = [f"{row.topic} ({row.state})" for row in self._rows if row.state != "new"]
            if states:
                yield Text(f"mirrored already: {', '.join(states)}")
        disk, growth = (_total(row.disk for row in self._rows), _total(row.disk_growth for row in self._rows))
        if disk or growth:
            yield Text(f"disk on the target for what is to be copied, with all replicas: {disk or '0 B'}")
            yield Text(f"growth by the source's last hour, with all replicas: {growth or '0 B'}/h")
        for row in self._rows:
            for note in row.notes:
                yield Text(f"! {row.topic}: {note}", style="yellow")

    def _table(self, columns: Sequence[str]) -> SafeTable:
        made = table(*columns, right=_COLUMNS[2:8])
        for row in self._rows:
            fine = row.offsets in ("identical", "mapped")
            cells: dict[str, str | Text] = {
                "topic": row.topic,
                "state": row.state,
                "partitions": figure(row.partitions),
                "replicas": f"{figure(row.replicas_source)} → {figure(row.replicas_target)}",
                "padding": figure(row.padding),
                "to copy": figure(row.records),
                "holes": ("" if row.holes_exact or row.holes < 0 else "≥ ") + figure(row.holes),
                "time": f"{figure(round(row.seconds))} s",
                "offsets": Text(
                    row.offsets if fine else f"refused: {row.offsets}", style=_STYLES.get(row.offsets, "red")
                ),
            }
            made.add_row(*(cells[column] for column in columns))
        return made


def _total(sizes: Iterable[int]) -> str:
    """Return a sum of bytes as text: with `≥` where some sizes are unknown, `?` where all are, '' for nothing."""
    figures = list(sizes)
    known = [size for size in figures if size >= 0]
    if figures and not known:
        return "?"
    at_least = "≥ " if len(known) < len(figures) else ""
    return f"{at_least}{bytes_text(sum(known))}" if sum(known) or at_least else ""


_COLUMNS = ("topic", "state", "partitions", "replicas", "padding", "to copy", "holes", "time", "offsets")


def _view(rows: Sequence[TopicForecast]) -> RenderableType:
    return _Forecasts(rows) if rows else Text("the source has no topic")
