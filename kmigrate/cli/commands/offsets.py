"""`kmigrate offsets`: exact translation of positions from one cluster to the other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Link
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.errors import Failed, Refused, UsageError
from kmigrate.model.digits import whole_number
from kmigrate.model.nearest import name_hint
from kmigrate.model.offset_map import OffsetMap, Place
from kmigrate.model.records import TopicRecord
from kmigrate.model.words import advised
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.groups.external_offsets import (
    Translate,
    is_beginning,
    needs_beginnings,
    newest_batches,
    positions_in,
    spark_positions,
    translated,
    translated_spark,
)

__all__ = ["app", "export", "translate"]

app = typer.Typer(name="offsets", help="Positions, from one cluster to the other.", no_args_is_help=True)

From = Annotated[str, typer.Option("--from", metavar="source|target", help="The side the positions are of.")]


@command(app, "translate")
async def translate(
    call: Call,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic of one partition may go without.")
    ] = None,
    offsets: Annotated[list[int] | None, typer.Argument(metavar="OFFSET...", help="Positions.", min=0)] = None,
    from_: From = "source",
    link: Link = None,
) -> Answer:
    """Translate offsets of one cluster to the other.

    A position means the next record at or after that offset. A position that holds a record becomes that record's
    offset; a position without a record becomes the next record's offset. A position beyond the copied range has no
    place yet; a position beyond the barrier of a promoted topic has no place on the other side.
    """
    _check_side(from_)
    name, _, part = call.required(topic, "TOPIC[:PARTITION]", "the partition").partition(":")
    number = whole_number(part)
    if not offsets or (part and number is None):
        raise UsageError(
            "usage",
            f"no partition {part} of {name}" if offsets else "no OFFSET is given",
            still_true="nothing was contacted or changed",
            next_step="kmigrate offsets translate TOPIC:PARTITION OFFSET...",
        )
    async with call.connections() as connections:
        record = _record(connections, call.link(link), name)
        partition = _partition(record, number)
        made = (await Positions(connections.target, connections.log).up_to_barrier(record))[partition]
        places = [(offset, _place(made, offset, from_)) for offset in offsets]
    json = {
        "topic": name,
        "partition": partition,
        "from": from_,
        "offsets": "mapped" if record.mapped else "identical",
        "runs": len(made),
        "positions": [
            {"offset": offset, "to": place.offset if place else None, "record": bool(place and place.is_record)}
            for offset, place in places
        ],
    }
    return Answer(json, _view(record, places, from_))


@command(app, "export")
async def export(
    call: Call,
    positions: Annotated[
        Path | None,
        typer.Argument(metavar="FILE|CHECKPOINT", help='JSON {"topic": {"0": 123}}, or a Spark checkpoint directory.'),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the translated copy goes; must not exist yet.")
    ] = None,
    from_: From = "source",
    link: Link = None,
) -> Answer:
    """Translate positions kept outside Kafka into a copy; the given file or directory stays unchanged.

    A Spark checkpoint is copied with only the two newest files of its offsets, both translated. While no batch is
    committed, the starting positions of its sources are translated, too. A stopped query that starts from the copy goes
    on at exactly the next record.
    """
    _check_side(from_)
    given = Path(call.required(str(positions) if positions else None, "FILE|CHECKPOINT", "the positions"))
    place = Path(call.required(str(out) if out else None, "--out", "where the copy goes"))
    _check_places(given, place)
    files = _read(given)
    wanted = (
        [found for path, text in files.items() for found in spark_positions(text, str(path))]
        if given.is_dir()
        else [positions_in(text, str(path)) for path, text in files.items()]
    )
    topics = sorted({topic for each in wanted for topic in each})
    async with call.connections() as connections:
        move = await _translator(connections, call.link(link), topics, from_)
    if given.is_dir():
        copies = {path.relative_to(given): translated_spark(text, str(path), move) for path, text in files.items()}
        _whole(place, lambda beside: _copy_checkpoint(given, beside, copies))
    else:
        text = translated(wanted[0], move)
        _whole(place, lambda beside: beside.write_text(text, encoding="utf-8"))
    count = sum(len(parts) for each in wanted for parts in each.values())
    json = {"from": from_, "out": str(place), "topics": topics, "positions": count}
    return Answer(json, Text(f"{count} positions of {', '.join(topics) or 'no topic'} → {place}"))


def _check_places(given: Path, place: Path) -> None:
    try:
        if not given.exists():
            why = "no-positions", f"{given} does not exist", "name a file of positions, or a checkpoint directory"
        elif place.exists():
            why = "out-exists", f"{place} exists already", "name a place that does not exist yet"
        elif given.resolve() in place.resolve().parents:
            why = "out-within", f"{place} lies within {given}", "name a place outside: what is given stays as it is"
        else:
            return
    except OSError as error:
        why = "bad-positions", f"{error.filename} cannot be looked at: {error.strerror}", "check both paths"
    ref, what, next_step = why
    raise UsageError(ref, what, still_true="nothing was written", next_step=next_step)


def _read(given: Path) -> dict[Path, str]:
    """Return the texts to translate, by file."""
    try:
        return _checkpoint(given) if given.is_dir() else {given: given.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(
            "bad-positions",
            f"{given} cannot be read: {why}",
            still_true="nothing was written",
            next_step='expected: JSON of the form {"topic": {"0": 123}}, or a Spark checkpoint directory',
        ) from error


def _check_side(side: str) -> None:
    if side not in ("source", "target"):
        raise UsageError(
            "bad-side",
            f"--from {side}: no such side",
            still_true="nothing was contacted or changed",
            next_step="expected: source or target",
        )


def _record(connections: Connections, link: str | None, topic: str) -> TopicRecord:
    name = verbs.resolve_link(connections.log.state, link).name
    record = connections.log.state.topic(name, topic)
    if record is None:
        raise Refused(
            "not-mirrored",
            f"topic {topic} is not mirrored by link {name}"
            f"{name_hint(topic, (each.topic for each in connections.log.state.topics(name)))}",
            still_true="nothing was changed",
            next_step=advised("topic mirror", name, topic),
        )
    return record


def _partition(record: TopicRecord, asked: int | None) -> int:
    if asked is None and record.partitions == 1:
        return 0
    if asked is None or asked >= record.partitions:
        which = "" if asked is None else f", no partition {asked}"
        raise UsageError(
            "which-partition",
            f"topic {record.topic} has {record.partitions} partitions{which}",
            next_step=f"kmigrate offsets translate --link {record.link} {record.topic}:0 OFFSET...",
        )
    return asked


def _place(made: OffsetMap, offset: int, side: str) -> Place | None:
    return made.to_target(offset) if side == "source" else made.to_source(offset)


async def _translator(connections: Connections, link: str | None, topics: Iterable[str], side: str) -> Translate:
    """Return the function that moves a position of these topics; the function refuses a position without a place."""
    positions = Positions(connections.target, connections.log)
    records = {topic: _record(connections, link, topic) for topic in topics}
    maps: dict[str, Mapping[int, OffsetMap]] = {
        topic: await positions.up_to_barrier(record) for topic, record in records.items()
    }

    def move(topic: str, partition: int, offset: int) -> int:
        made = maps[topic].get(partition)
        place = _place(made, offset, side) if made is not None else None
        if place is None:
            raise Refused(
                "position-not-copied",
                f"position {offset} of {topic}-{partition} has no place on the other side: "
                f"{_without_place(records[topic])}",
                still_true="nothing was written",
                next_step="kmigrate status shows how far the copy is; or check the position",
            )
        return place.offset

    return move


def _without_place(record: TopicRecord) -> str:
    """Return the reason why a position has no place on the other side."""
    if record.at_target:
        return "beyond the barrier of its promote"
    return "not copied yet"


def _checkpoint(folder: Path) -> dict[Path, str]:
    offsets = folder / "offsets"
    names = newest_batches(path.name for path in offsets.iterdir()) if offsets.is_dir() else []
    if not names:
        raise UsageError(
            "bad-checkpoint",
            f"{folder} holds no offsets of a Spark query",
            still_true="nothing was written",
            next_step="name the checkpoint directory itself: it has a folder offsets",
        )
    paths = [offsets / name for name in names]
    if needs_beginnings(names, {path.name for path in folder.glob("commits/*")}):
        paths += [path for path in sorted(folder.glob("sources/*/0")) if is_beginning(path.read_bytes())]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def _whole(place: Path, write: Callable[[Path], object]) -> None:
    """Write beside `place`, then rename: a partial copy never has the name from which somebody may start a query."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name[:100]}.") as staging:
            made = Path(staging) / place.name
            write(made)
            made.rename(place)
    except OSError as error:
        raise Failed(
            "copy-not-written",
            f"{place} cannot be written: {error.strerror or error}",
            still_true="what was given is as it was, and nothing has the copy's name",
            next_step="make room or give the right to write there, then repeat",
        ) from error


def _copy_checkpoint(folder: Path, place: Path, copies: Mapping[Path, str]) -> None:
    """Copy the checkpoint with the translated files, without other offsets and without stale checksums."""
    sums = {(folder / path).with_name(f".{path.name}.crc") for path in copies}

    def left_out(at: str, names: list[str]) -> list[str]:
        return names if Path(at) == folder / "offsets" else [name for name in names if Path(at) / name in sums]

    shutil.copytree(folder, place, ignore=left_out)
    for path, text in copies.items():
        (place / path).write_text(text, encoding="utf-8")


def _view(record: TopicRecord, places: list[tuple[int, Place | None]], side: str) -> Any:
    other = "target" if side == "source" else "source"
    made = table(side, other, "", right=(side, other))
    for offset, place in places:
        if place is None:
            made.add_row(f"{offset:,}", "–", Text(_without_place(record), style="yellow"))
        else:
            gap = record.mapped and not place.is_record
            made.add_row(f"{offset:,}", f"{place.offset:,}", Text("the next record" if gap else "", style="dim"))
    return made
