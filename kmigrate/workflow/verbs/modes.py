"""How a group is mirrored: whether its moved members follow the source's group, or wait for the promote."""

from __future__ import annotations

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.positions import read_positions
from kmigrate.errors import UsageError
from kmigrate.model.lifecycle import NOT_COPIED_YET, PROMOTING, GroupMode, TopicPhase
from kmigrate.model.records import LinkRecord
from kmigrate.model.state import State
from kmigrate.workflow.plan import Finding

__all__ = ["check_mode", "mode_for"]

AUTO = "auto"
_MODES = (AUTO, *GroupMode)


def check_mode(mode: str) -> None:
    """UsageError where a word is none of the modes."""
    if mode not in _MODES:
        raise UsageError(
            "bad-group-mode",
            f"--mode {mode}: no such mode",
            still_true="nothing was changed",
            next_step=f"expected: {', '.join(_MODES)}",
        )


async def mode_for(
    state: State, link: LinkRecord, source: ClusterClient, admin: Admin, group: str, asked: str
) -> tuple[GroupMode, Finding]:
    """The mode that a group gets, and why; a finding that refuses where it cannot be the one that was asked for."""
    if asked == GroupMode.HOLD:
        return GroupMode.HOLD, Finding("ok", "holds", f"members of {group} that move wait for its promote")
    against = await _against_following(state, link, source, admin, group)
    if not against:
        return GroupMode.FOLLOW, Finding("ok", "follows", f"members of {group} that move stay members of its group")
    if asked == AUTO:
        return GroupMode.HOLD, Finding("ok", "holds", f"members of {group} that move wait for its promote: {against}")
    return GroupMode.HOLD, Finding(
        "refuse", "cannot-follow", f"group {group} cannot follow: {against}", "mirror it with --mode hold"
    )


async def _against_following(
    state: State, link: LinkRecord, source: ClusterClient, admin: Admin, group: str
) -> str:
    """What keeps members that read the target's copy from sharing positions with those that read the source."""
    described = (await admin.describe_groups([group]))[group]
    if described.kind not in ("classic", "unknown"):
        return f"it uses the {described.kind} protocol, whose assignments name topics by one cluster's ids (KIP-848)"
    for topic in sorted({topic for topic, _ in await read_positions(source, group, stable=False)}):
        record = state.topic(link.name, topic)
        if record is None:
            return f"it has positions in {topic}, which is not mirrored"
        if record.phase in NOT_COPIED_YET:
            return f"{topic} is {record.phase}: whether its offsets are identical is not known yet"
        if record.mapped:
            return f"the offsets of {topic} are mapped"
        if record.phase in PROMOTING:
            return f"{topic} is {record.phase}: in a moment the source does not get its records any more"
        if record.phase is TopicPhase.PROMOTED:
            return f"{topic} is promoted: the source does not get its records any more"
    return ""
