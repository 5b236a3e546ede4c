"""Builds elements of answers that refuse an element of a request, in the shape of any API and version."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kmigrate.protocol.api import Message, blank, element_type

__all__ = ["NAMES", "refusal", "refusals", "topic_name"]

NAMES = ("name", "topic", "topic_name", "resource_name", "resource_name_filter")
"""Fields that name a topic or a resource."""
_ASKED_PARTITIONS = ("partitions", "partition_indexes")
_REFUSED_PARTITIONS = frozenset({"partitions", "results_by_partition", "partition_result"})
_INDEXES = ("partition_index", "partition", "partition_id")
_ERRORS = ("error_code", "partition_error_code")
_REPEATED = ("topic_id", "resource_type")
_NO_VALUES = {"preferred_read_replica": -1, "low_watermark": -1, "committed_leader_epoch": -1}


def topic_name(asked: Message | str) -> str | None:
    """Return the name in an element of a request; None where the element has a topic id alone."""
    if isinstance(asked, str):
        return asked
    return next((getattr(asked, name) for name in NAMES if hasattr(asked, name)), None)


def refusal(kind: type[Message], asked: Message | str, code: int, text: str = "", **values: object) -> Message:
    """Return the answer to a refused element, with all partitions; `values`: more fields of element and partitions."""
    fields: dict[str, object] = dict.fromkeys(NAMES, topic_name(asked)) | dict.fromkeys(_ERRORS, code)
    fields |= {name: getattr(asked, name) for name in _REPEATED if hasattr(asked, name)} | _NO_VALUES | values
    if text:
        fields["error_message"] = text
    for name in _REFUSED_PARTITIONS.intersection(field.name for field in dataclasses.fields(kind)):
        part_type = element_type(kind, name)
        parts = next((getattr(asked, each) for each in _ASKED_PARTITIONS if hasattr(asked, each)), None) or ()
        fields[name] = tuple(blank(part_type, **fields | dict.fromkeys(_INDEXES, _index(part))) for part in parts)
    return blank(kind, **fields)


def refusals(kind: type[Message], array: str, asked: Iterable[Message], code: int, **values: object) -> Message:
    """Return an answer of class `kind` that refuses all elements of a request, in the array of this name."""
    each = element_type(kind, array)
    return blank(kind, **{array: tuple(refusal(each, one, code, "", **values) for one in asked)})


def _index(part: Message | int) -> object:
    return part if isinstance(part, int) else next(getattr(part, name) for name in _INDEXES if hasattr(part, name))
