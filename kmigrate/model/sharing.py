"""Determines which process copies which partition of a link, and merges the reports of all its mirrors. Pure.

Only a partition's owner reports on the partition; a report of a former owner is outdated.
- A partition of a mapped topic belongs to the lease's holder.
- A partition that Spark copies belongs to the task that has claimed it.
- A partition that is moving between two processes, or is not shared out yet, belongs to nobody.
- Any other partition belongs to the process that the newest assignment names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import AssignmentRecord, CopyEngine, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised

__all__ = ["absence", "assigned", "by_spark", "lease_of", "owner_of", "progress_of", "releasing"]


def lease_of(link: str) -> str:
    """Return the name of the lease of a link's mirrors."""
    return f"mirror/{link}"


def by_spark(record: TopicRecord) -> bool:
    """Return whether Spark's tasks copy a topic now; the daemon copies in a promote, after a rollback and to a map."""
    of_daemon = record.mapped or bool(record.resumed)
    return record.engine is CopyEngine.SPARK and record.phase is TopicPhase.MIRRORING and not of_daemon


def assigned(assignment: AssignmentRecord | None, topic: str, partition: int) -> str:
    """Return the instance that an assignment names as a partition's owner; '' if the assignment names none."""
    place = _place(assignment, topic, partition)
    return assignment.members[place] if assignment is not None and place is not None and place >= 0 else ""


def releasing(assignment: AssignmentRecord | None, topic: str, partition: int) -> str:
    """Return the instance that lets go of a moving partition; '' if the partition is not moving."""
    place = _place(assignment, topic, partition)
    return assignment.members[~place] if assignment is not None and place is not None and place < 0 else ""


def _place(assignment: AssignmentRecord | None, topic: str, partition: int) -> int | None:
    owners = assignment.owners.get(topic, ()) if assignment is not None else ()
    return owners[partition] if partition < len(owners) else None


def owner_of(state: State, record: TopicRecord, partition: int) -> str:
    """Return the instance that copies a partition now; '' if nobody does."""
    if record.mapped:
        lease = state.lease(lease_of(record.link))
        return lease.holder if lease is not None else ""
    if by_spark(record):
        claim = record.claims.get(partition)
        return claim.instance if claim is not None else ""
    return assigned(state.assignment(record.link), record.topic, partition)


def progress_of(
    state: State, record: TopicRecord, words: Iterable[MirrorPresence], *, applied: int = -1
) -> dict[int, PartitionProgress]:
    """Return partitions' progress by owners at `applied` or later; a topic's problem comes with its first partition."""
    told: dict[int, PartitionProgress] = {}
    by_instance = {word.instance: word for word in words if word.link == record.link}
    for partition in range(record.partitions):
        word = by_instance.get(owner_of(state, record, partition))
        seen = word.topics.get(record.topic, {}).get(partition) if word is not None else None
        if word is not None and seen is not None and word.applied >= applied:
            told[partition] = seen
    for word in by_instance.values():
        problem = word.problems.get(record.topic, "") if word.active else ""
        first = told.get(0, PartitionProgress(-1))
        if problem and not first.problem:
            told[0] = replace(first, problem=problem)
    return told


def absence(state: State, record: TopicRecord, partition: int, words: Iterable[MirrorPresence]) -> str:
    """Return why nobody copies a partition now, although its topic is being copied; '' if an instance copies it."""
    words = [word for word in words if word.link == record.link]
    owner = owner_of(state, record, partition)
    word = next((each for each in words if each.instance == owner), None)
    if word is not None and partition in word.topics.get(record.topic, {}):
        return ""
    if by_spark(record):
        return (
            "not-copied: no Spark task copies it now; go on with "
            f"{advised('topic mirror --engine spark', record.link, record.topic)}, or hand it over with --engine daemon"
        )
    if not words:
        return ""  # no mirror is running: that is reported once, not for every partition
    if before := releasing(state.assignment(record.link), record.topic, partition):
        return f"moving: mirror process {before} lets go of it, another one takes it over"
    if not owner or word is not None:
        return "not-copied: a mirror process is about to take it"
    return f"not-copied: mirror process {owner} is silent, another one takes over"
