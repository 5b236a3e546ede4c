"""One group for a person: the members with their partitions, then the lag of each partition."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import figure, table
from kmigrate.workflow.status.group_detail import GroupDetail, MemberDetail, PartitionDetail, Place

__all__ = ["group_detail_view", "partitions_text", "place_text", "reader_names"]

_PLACES = {
    Place.SOURCE: Text("source", style="cyan"),
    Place.ROUTER: Text("router", style="yellow"),
    Place.TARGET: Text("target", style="green"),
}


def group_detail_view(detail: GroupDetail) -> RenderableType:
    parts: list[RenderableType] = []
    if detail.trouble:
        parts.append(Text(f"! {detail.trouble}", style="red"))
    parts.append(_members(detail.members) if detail.members else Text("no member on either cluster, or at a router"))
    if detail.partitions:
        parts.append(_partitions(detail))
    return Group(*parts)


def _members(members: Iterable[MemberDetail]) -> RenderableType:
    made = table("at", "client id", "host", "member id", "partitions")
    for each in members:
        held = partitions_text(each.assigned) if each.member_id else "waits for the promote"
        made.add_row(place_text(each.place), each.client_id, each.host, each.member_id, held)
    return made


def _partitions(detail: GroupDetail) -> RenderableType:
    columns = ("topic", "partition", "committed", "log end", "lag", "read by")
    made = table(*columns, right=columns[1:5])
    names = reader_names(detail)
    for each in detail.partitions:
        made.add_row(*_partition_cells(each), names.get(each.reader, each.reader))
    return made


def _partition_cells(each: PartitionDetail) -> tuple[str, ...]:
    committed = f"{each.committed:,}" if each.committed >= 0 else "none"
    return each.topic, str(each.partition), committed, figure(each.end), figure(each.lag)


def place_text(place: Place) -> Text:
    return _PLACES[place]


def reader_names(detail: GroupDetail) -> dict[str, str]:
    """Return a short name for each member: the client id, with the host where the client id is not unique."""
    ids = [each.client_id for each in detail.members]
    return {
        each.member_id: each.client_id if ids.count(each.client_id) == 1 else f"{each.client_id} at {each.host}"
        for each in detail.members
    }


def partitions_text(keys: Iterable[tuple[str, int]]) -> str:
    """Return partitions as in `orders 0-2,7, payments 1`."""
    topics = groupby(sorted(keys), key=lambda key: key[0])
    return ", ".join(f"{topic} {_spans([partition for _, partition in found])}" for topic, found in topics)


def _spans(numbers: list[int]) -> str:
    """Return ascending numbers with runs joined, as in `0-2,7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
