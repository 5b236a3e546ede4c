"""Reads and writes positions that are kept outside Kafka, in the formats of their owners. Pure.

    JSON              {"topic": {"0": 123}}
    Spark checkpoint  offsets/N: `v1`, a line of metadata, then a line per source: such JSON for a Kafka source
                      sources/N/0: where a source began; for a Kafka source a NUL byte, `v1`, and a line of such JSON

In a Spark file only the lines of Kafka sources change. The file's metadata and the lines of other sources stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kmigrate.errors import UsageError
from kmigrate.model.digits import whole_number

__all__ = [
    "Translate",
    "is_beginning",
    "needs_beginnings",
    "newest_batches",
    "positions_in",
    "spark_positions",
    "translated",
    "translated_spark",
]

Translate = Callable[[str, int, int], int]
"""Maps a topic, a partition and a position on one cluster to the position on the other cluster."""

Positions = Mapping[str, Mapping[int, int]]

_SPARK_VERSION = "v1"
_SPARK_HEAD = 2
"""Lines of a Spark file before its sources: version and metadata."""

_SPARK_BEGINNING = "\0v1\n"
"""First bytes of a Kafka source's own file; its positions follow at once. Files of other sources begin otherwise."""


def positions_in(text: str, name: str) -> Positions:
    """Return the positions of a JSON file; UsageError where the file holds anything else."""
    found = _positions(text)
    if found is None:
        raise UsageError(
            "bad-positions",
            f'{name} does not hold positions of the form {{"topic": {{"0": 123}}}}',
            still_true="nothing was written",
            next_step="each partition once, with an offset from 0 on",
        )
    return found


def translated(positions: Positions, translate: Translate) -> str:
    return json.dumps(_moved(positions, translate), indent=2) + "\n"


def spark_positions(text: str, name: str) -> list[Positions]:
    """Return the positions of every Kafka source in a file of a checkpoint's offsets, or in a source's own file."""
    lines, head = _spark_lines(text, name)
    return [found for line in lines[head:] if (found := _of_a_source(line, name)) is not None]


def translated_spark(text: str, name: str, translate: Translate) -> str:
    lines, head = _spark_lines(text, name)
    for index, line in enumerate(lines[head:], head):
        if (found := _of_a_source(line, name)) is not None:
            lines[index] = json.dumps(_moved(found, translate), separators=(",", ":"))
    return "\n".join(lines)


def newest_batches(names: Iterable[str]) -> list[str]:
    """Return the files of `offsets` that a query starts from: the newest file and the file before.

    Spark runs an uncommitted batch again from the end of the batch before, the first from where its sources began.
    """
    numbered = sorted((number for name in names if (number := whole_number(name)) is not None), reverse=True)
    return [str(number) for number in numbered[:2]]


def needs_beginnings(batches: Collection[str], committed: Collection[str]) -> bool:
    """Return True if a query starts where its sources began: its first batch was not committed, and none is before."""
    return list(batches) == ["0"] and "0" not in committed


def is_beginning(content: bytes) -> bool:
    """Return True if a file of `sources` says where a Kafka source began."""
    return content.startswith(_SPARK_BEGINNING.encode())


def _spark_lines(text: str, name: str) -> tuple[list[str], int]:
    """Return the file's lines, and the number of lines before its sources."""
    lines = text.split("\n")
    if text.startswith(_SPARK_BEGINNING):
        return lines, 1
    if lines[0] != _SPARK_VERSION or len(lines) <= _SPARK_HEAD:
        raise _bad_checkpoint(f"{name} is not a Spark offsets file of version {_SPARK_VERSION}")
    return lines, _SPARK_HEAD


def _of_a_source(line: str, name: str) -> Positions | None:
    """Return a Kafka source's positions, or None; UsageError if damaged: a query would use foreign offsets."""
    found = _positions(line)
    if found is None and line.startswith("{") and _damaged(line):
        raise _bad_checkpoint(f"{name} holds positions that cannot be read: {line:.60}")
    return found


def _bad_checkpoint(what: str) -> UsageError:
    cut = "see whether the file was cut; a checkpoint is exported while its query is stopped"
    return UsageError("bad-checkpoint", what, still_true="nothing was written", next_step=cut)


def _damaged(line: str) -> bool:
    try:
        positions = json.loads(line)
    except (ValueError, RecursionError):
        return True
    by_partition = [parts for parts in positions.values() if isinstance(parts, dict) and parts]
    return bool(by_partition) and all(whole_number(key) is not None for parts in by_partition for key in parts)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse a repeated key, because nobody knows which of the two values is meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _positions(text: str) -> Positions | None:
    try:
        found = json.loads(text, object_pairs_hook=_once)
        if not isinstance(found, dict) or not found:
            return None
        each = [(partition, offset) for parts in found.values() for partition, offset in parts.items()]
    except (ValueError, AttributeError, RecursionError):
        return None
    if any(len({*map(whole_number, parts)}) != len(parts) for parts in found.values()):
        return None
    if any(whole_number(partition) is None or type(offset) is not int or offset < 0 for partition, offset in each):
        return None
    return {topic: {int(partition): offset for partition, offset in parts.items()} for topic, parts in found.items()}


def _moved(positions: Positions, translate: Translate) -> dict[str, dict[str, int]]:
    return {
        topic: {str(p): translate(topic, p, offset) for p, offset in sorted(parts.items())}
        for topic, parts in positions.items()
    }
