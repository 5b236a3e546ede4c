"""Chooses a group's mode: moved members follow the source's group, or wait for the promote."""

from __future__ import annotations

from kmigrate.errors import UsageError
from kmigrate.model.lifecycle import NOT_COPIED_YET, PROMOTING, GroupMode, TopicPhase
from kmigrate.model.state import State
from kmigrate.workflow.base.plan import Finding, ok, refuse
from kmigrate.workflow.groups.readers import GroupReads

__all__ = ["AUTO", "check_mode", "mode_for"]

AUTO = "auto"
"""Follow where following is possible; a group that is mirrored already keeps its mode."""
_CARRIED = frozenset({"classic", "consumer", "unknown"})
"""Types of groups that can follow, by librdkafka's names: both group protocols (KIP-848), or no members yet."""
_MODES = (AUTO, *GroupMode)


def check_mode(mode: str) -> None:
    """Raise UsageError if a word is no mode."""
    if mode not in _MODES:
        raise UsageError(
            "bad-group-mode",
            f"--mode {mode}: no such mode",
            still_true="nothing was changed",
            next_step=f"expected: {', '.join(_MODES)}",
        )


def mode_for(state: State, link: str, group: str, reads: GroupReads | None, asked: str) -> tuple[GroupMode, Finding]:
    """Return the mode that a group gets, with the reason as a finding.

    The finding refuses where the group cannot have the mode that was asked for. `reads` may be None for a group that is
    to hold.
    """
    if reads is None:
        return GroupMode.HOLD, ok("holds", f"members of {group} that move wait for its promote")
    against = _against_following(state, link, reads)
    if not against:
        return GroupMode.FOLLOW, ok("follows", f"members of {group} that move stay members of its group")
    if asked == AUTO:
        return GroupMode.HOLD, ok("holds", f"members of {group} that move wait for its promote: {against}")
    return GroupMode.HOLD, refuse(
        "cannot-follow", f"group {group} cannot follow: {against}", "mirror it with --mode hold"
    )


def _against_following(state: State, link: str, reads: GroupReads) -> str:
    """Return why members at the target's copy cannot share offsets with members at the source; '' where they can."""
    if reads.kind not in _CARRIED:
        return f"it is a {reads.kind} group, whose members' words with their coordinator are not carried"
    for topic in sorted(reads.topics):
        record = state.topic(link, topic)
        if record is None:
            return f"it reads {topic}, which is not mirrored"
        if record.phase in NOT_COPIED_YET:
            return f"{topic} is {record.phase}: whether its offsets are identical is not known yet"
        if record.mapped:
            return f"the offsets of {topic} are mapped"
        if record.phase in PROMOTING:
            return f"{topic} is {record.phase}: in a moment the source does not get its records any more"
        if record.phase is TopicPhase.PROMOTED:
            return f"{topic} is promoted: the source does not get its records any more"
    return ""
