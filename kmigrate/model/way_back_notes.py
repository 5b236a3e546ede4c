"""Defines the notes about a copy back that a mirror keeps at the source, for the day on which the target is gone.

The state log is lost with the target. So the mirror keeps a note of each partition that is copied back, in the metadata
of a committed offset at the source (docs/decisions/0020). The offset is the copy's position. A note of another form is
no note.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

__all__ = [
    "NOTES_PREFIX",
    "NoteState",
    "WayBackNote",
    "decode_note",
    "encode_note",
    "first_names",
    "link_of_notes",
    "notes_group",
]

NOTES_PREFIX = "kmigrate-way-back-"
"""Prefix of the groups whose committed offsets hold the notes; each link has a group."""
_VERSION = 1
_MOST_CHARACTERS = 3_000
"""Longest note: brokers take 4,096 bytes of metadata by default (`offset.metadata.max.bytes`)."""
_MOST_OF_REASON = 300
_MOST_NAMES = 10
"""Maximum number of transactional ids in a note; the same of coupled topics, and of coupled groups."""
_MOST_OF_NAMES = 600
"""Maximum number of characters of these names."""
_LARGEST = (1 << 63) - 1


class NoteState(StrEnum):
    """The state of a partition's copy back when its note was written."""

    OPEN = "open"
    """The copy back went on."""
    ENDED = "ended"
    """The way back had ended: the source lacks what the target took since."""
    ROLLED_BACK = "rolled-back"
    """The topic was rolled back: writes went to the source."""


@dataclass(frozen=True, slots=True)
class WayBackNote:
    """The facts about the copy back of one partition, as a mirror last knew them."""

    state: NoteState
    position: int
    """Next offset to be copied: everything below is at the source."""
    target: str = ""
    """Name of the target cluster."""
    producer_id: int = -1
    """Producer id of the copy at the source; −1: the copy had not begun."""
    target_end: int = -1
    """Last known log end of the target; −1 if unknown."""
    seen_ms: int = 0
    """Time at which the target reported this end, by the mirror's clock."""
    fresh_ms: int = 0
    """Moment up to which the target's records were at the source, by the mirror's clock; 0 if unknown."""
    reason: str = ""
    """Reason why the way back had ended, or why the copy stood still."""
    routers: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the registered routers, by name; in the note of one partition of each topic."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Times at which groups with committed offsets in the topic were promoted, by group; in the same note."""
    more_groups: int = 0
    """Number of such groups that did not fit into the note."""
    transactional_ids: tuple[str, ...] = ()
    """First transactional ids, by name, that write the topic; in the same note."""
    more_transactional_ids: int = 0
    """Number of further such ids."""
    coupled_topics: tuple[str, ...] = ()
    """First topics, by name, that these ids write, with this topic."""
    coupled_groups: tuple[str, ...] = ()
    """First groups, by name, with committed offsets in transactions of these ids."""

    @property
    def lacked(self) -> int:
        """Number of offsets that the source lacked; −1 if unknown."""
        return max(0, self.target_end - self.position) if self.target_end >= 0 else -1


def notes_group(link: str) -> str:
    """Return the group whose committed offsets hold a link's notes."""
    return f"{NOTES_PREFIX}{link}"


def link_of_notes(group: str) -> str:
    """Return the link of a group of notes; '' for any other group."""
    return group.removeprefix(NOTES_PREFIX) if group.startswith(NOTES_PREFIX) else ""


def first_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first names, in order, for which a note has room."""
    found, left = list[str](), _MOST_OF_NAMES
    for name in sorted(names)[:_MOST_NAMES]:
        left -= len(json.dumps(name))
        if left >= 0:
            found.append(name)
    return tuple(found)


def encode_note(note: WayBackNote) -> str:
    """Return the metadata of a note's committed offset; groups that do not fit are counted."""
    note = replace(note, reason=note.reason[:_MOST_OF_REASON])
    groups = sorted(note.groups.items())
    text = _text(note)
    while len(text) > _MOST_CHARACTERS and groups:
        groups = groups[: len(groups) * 3 // 4]
        left_out = note.more_groups + len(note.groups) - len(groups)
        text = _text(replace(note, groups=dict(groups), more_groups=left_out))
    return text if len(text) <= _MOST_CHARACTERS else _text(replace(note, groups={}, routers={}))


def _text(note: WayBackNote) -> str:
    fields = {
        "v": _VERSION,
        "state": note.state.value,
        "target": note.target,
        "producer_id": note.producer_id,
        "target_end": note.target_end,
        "seen_ms": note.seen_ms,
        "fresh_ms": note.fresh_ms,
        "reason": note.reason,
        "routers": dict(note.routers),
        "groups": dict(note.groups),
        "more_groups": note.more_groups,
        "transactional_ids": list(note.transactional_ids),
        "more_transactional_ids": note.more_transactional_ids,
        "coupled_topics": list(note.coupled_topics),
        "coupled_groups": list(note.coupled_groups),
    }
    return json.dumps({name: value for name, value in fields.items() if value not in ("", {}, [])}, ensure_ascii=True)


def decode_note(position: int, metadata: str) -> WayBackNote | None:
    """Return the note in a committed offset; None where the metadata is no note of this version."""
    try:
        found: Any = json.loads(metadata)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("v") != _VERSION or _word(found.get("state")) not in set(NoteState):
        return None
    return WayBackNote(
        NoteState(found["state"]),
        position,
        _word(found.get("target")),
        _number(found.get("producer_id"), -1),
        _number(found.get("target_end"), -1),
        _number(found.get("seen_ms"), 0),
        _number(found.get("fresh_ms"), 0),
        _word(found.get("reason")),
        {name: _word(address) for name, address in _table(found.get("routers")).items()},
        {name: _number(at, 0) for name, at in _table(found.get("groups")).items()},
        _number(found.get("more_groups"), 0),
        _words(found.get("transactional_ids")),
        _number(found.get("more_transactional_ids"), 0),
        _words(found.get("coupled_topics")),
        _words(found.get("coupled_groups")),
    )


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> tuple[str, ...]:
    return tuple(filter(None, map(_word, value))) if isinstance(value, list) else ()


def _number(value: object, otherwise: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= _LARGEST:
        return value
    return otherwise


def _table(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
