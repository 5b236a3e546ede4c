"""Writes the end of a promote into its topic's record: promoted, or mirroring as before, with the reason.

A promote without a way back goes forward with the target alone, whatever has become of the source. Two kinds of topics
have no way back: a topic whose flip another topic's flip has decided (`unit`, rule C), and a topic that is flipped and
not settled.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kmigrate.cluster.admin import Admin
from kmigrate.model.lifecycle import TopicEvent, TopicPhase, advance_topic
from kmigrate.model.records import ProvenTopic, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import now_ms
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.unit import decided
from kmigrate.workflow.promote.settling import settle

__all__ = ["flipped", "flipped_as_decided", "given_up", "go_forward", "no_way_back"]


def no_way_back(state: State, record: TopicRecord) -> bool:
    """Return True if the topic's promote can only go forward."""
    return record.unsettled or (record.phase is TopicPhase.FENCED and decided(state, record) is not None)


async def go_forward(record: TopicRecord, log: StateLog, target: Admin) -> None:
    """Take the next step of a promote that has no way back."""
    if record.unsettled:
        await settle(record, log, target)
    else:
        await log.append(partial(flipped_as_decided, record, log.now_ms()))


def flipped_as_decided(record: TopicRecord, at_ms: int, state: State) -> TopicRecord | None:
    """Return the flipped record that another topic's flip demands.

    Returns None where no flip names the topic, or the record has changed since the look.
    """
    proven = decided(state, record)
    unchanged = state.records.get(record.key) == record
    return flipped(record, at_ms, proven) if proven is not None and unchanged else None


def flipped(record: TopicRecord, at_ms: int, proven: ProvenTopic) -> TopicRecord:
    """Return the flipped record; `at_ms` is a time of the state log's clock.

    The time for which producers may repeat their writes is counted from `at_ms`.
    """
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.FLIP),
        since_ms=now_ms(),
        promoted_ms=at_ms,
        reason="",
        target_ends=proven.target_ends,
        unsettled=True,
    )


def given_up(record: TopicRecord, reason: str, way_on: str = "") -> TopicRecord:
    """Return the record of a topic whose promote is given up: mirroring as before, with the reason."""
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.UNFENCE),
        since_ms=now_ms(),
        reason=reason,
        way_on=way_on,
        terms=None,
        barrier={},
    )
