"""Metrics of a controller: what the sources of promoted topics took at or beyond the barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from kmigrate.model.records import LateWrites, SourceAccess
from kmigrate.observe.registry import Kind, Metric, Registry, Sample
from kmigrate.state.log import StateLog

__all__ = ["METRICS", "show_controller"]

_OF_PARTITIONS = {
    Metric(
        "kmigrate_late_offsets",
        Kind.GAUGE,
        "Offsets of the source at or beyond the barrier of a promoted topic; no sample where there is none.",
        ("link", "topic", "partition"),
    ): lambda late: late.end - late.start,
    Metric(
        "kmigrate_late_records",
        Kind.GAUGE,
        "Records among them that readers see, as far as they are read.",
        ("link", "topic", "partition"),
    ): lambda late: late.records,
    Metric(
        "kmigrate_late_missing_records",
        Kind.GAUGE,
        "These records without those that were copied or quarantined: they are on the source alone.",
        ("link", "topic", "partition"),
    ): lambda late: late.lost,
}
_CLOSED = Metric(
    "kmigrate_source_closed",
    Kind.GAUGE,
    "1 where the source topic of a promoted topic refuses writes, else 0.",
    ("link", "topic"),
)

METRICS: tuple[Metric, ...] = (*_OF_PARTITIONS, _CLOSED)


def show_controller(registry: Registry, log: StateLog) -> None:
    """Show in a registry what the state log says of late writes."""
    for metric, read in _OF_PARTITIONS.items():
        registry.add(metric, partial(_late, log, read))
    registry.add(_CLOSED, partial(_closed, log))


def _late(log: StateLog, read: Callable[[LateWrites], int]) -> Iterator[Sample]:
    for record in log.state.topics():
        late = log.state.late(record.link, record.topic)
        for partition, writes in sorted(late.partitions.items()) if late is not None else ():
            yield (record.link, record.topic, str(partition)), read(writes)


def _closed(log: StateLog) -> Iterator[Sample]:
    for record in log.state.topics():
        if record.source_access is not None:
            yield (record.link, record.topic), int(record.source_access is SourceAccess.CLOSED)
