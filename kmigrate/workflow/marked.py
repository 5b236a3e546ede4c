"""Promoted or mirrored topics with control markers in the copy, and what that changes for readers at the target itself.

A broker gives each marker the time at which the broker wrote the marker. So look-ups by time and time-based retention
of the copied part go by the time of the copy, not by the records' times. Routers answer look-ups by time as the source
does; nobody does so once clients have left the routers.
"""

from __future__ import annotations

from collections.abc import Iterable

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.records import LinkRecord, TopicRecord
from kmigrate.workflow.plan import Finding

__all__ = ["AT_THE_TARGET", "RETENTION", "marked_topics", "marker_findings"]

AT_THE_TARGET = (
    "at the target's own address a look-up by time below the copy's end names the first control marker, so a reader "
    "that starts by time reads again; a router answers as the source does"
)
RETENTION = "segments with markers are kept for retention.ms from the time of the copy, not of their records"


async def marked_topics(target: ClusterClient, link: LinkRecord, records: Iterable[TopicRecord]) -> list[str] | None:
    """Return the topics with control markers of the mirror in the copy; None where the target does not tell.

    The target keeps the marker id of the link among a partition's producers for as long as it remembers producers.
    """
    keys = [
        (record.topic, partition)
        for record in records
        if not record.mapped and record.target_topic_id
        for partition in range(record.partitions)
    ]
    if link.copy is None or not keys:
        return []
    try:
        await target.refresh({topic for topic, _ in keys})
        told = await target.describe_producers(keys)
    except KmigrateError:
        return None
    marker = link.copy.marker_id
    marked = {topic for (topic, _), (_, states) in told.items() if any(s.producer_id == marker for s in states)}
    return sorted(marked)


async def marker_findings(
    target: ClusterClient, link: LinkRecord, records: Iterable[TopicRecord], *, finish: bool
) -> list[Finding]:
    """Return a warning about topics with markers; `finish`: their clients are about to leave the routers."""
    marked = await marked_topics(target, link, records)
    if not marked:
        return []
    what = f"the copies of {', '.join(marked)} hold control markers with the time of the copy: {AT_THE_TARGET}"
    if finish:
        remedy = "have readers start from offsets or committed positions until the copied part has aged out"
        return [Finding("warn", "times-of-the-copy", f"{what}; no router is left to do so; {RETENTION}", remedy)]
    return [Finding("warn", "times-of-the-copy", f"{what}; {RETENTION}", "keep a router for such readers")]
