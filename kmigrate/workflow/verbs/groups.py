"""Verbs on consumer groups: registered first, promoted when nobody is left on the source."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import EARLIEST, LATEST
from kmigrate.model.lifecycle import GroupEvent, GroupPhase, advance_group
from kmigrate.model.patterns import NamePattern, chosen_groups
from kmigrate.model.records import (
    GroupRecord,
    LinkRecord,
)
from kmigrate.net.clock import now_ms
from kmigrate.net.tasks import together
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.handover import members_left
from kmigrate.workflow.plan import Finding, Plan
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link

__all__ = ["mirror_groups", "promote_groups", "unmirrored_readers"]

_AT_ONCE = 20
"""Groups whose positions are asked for side by side."""


async def mirror_groups(estate: Estate, link_name: str | None, groups: Sequence[str], *, plan: bool = False) -> Plan:
    """Register groups; nothing is written to the target before their promote (AL-21, AL-22)."""
    link = resolve_link(estate.log.state, link_name)
    refuse_finished(link)
    _, source_admin = await estate.source(link)
    known = await source_admin.groups()
    found: list[Finding] = []
    new: list[str] = []
    for group in dict.fromkeys(groups):
        owner = next((g for g in estate.log.state.groups() if g.group == group), None)
        if owner is not None and owner.link == link.name:
            found.append(Finding("ok", "already-mirrored", f"group {group} is {owner.phase} already"))
        elif owner is not None:
            found.append(Finding("refuse", "group-owned", f"group {group} belongs to link {owner.link}"))
        elif group not in known:
            found.append(
                Finding(
                    "refuse",
                    "unknown-group",
                    f"the source {link.source.name} has no group {group}",
                    "check the name; a group that never committed has nothing to carry over",
                )
            )
        else:
            new.append(group)
    made = Plan.of("group mirror", [f"register group {g}" for g in new], found)
    made.refuse()
    if plan:
        return made
    for group in new:
        record = GroupRecord(link.name, group, GroupPhase.MIRRORED, now_ms())
        await estate.log.append(lambda state, r=record: None if state.group(r.link, r.group) else r)  # type: ignore[misc]
    return made.done()


async def promote_groups(estate: Estate, link_name: str | None, groups: Sequence[str], *, plan: bool = False) -> Plan:
    """Write the intent to promote groups: positions are carried over, then reads open (AL-31, AL-33)."""
    link = resolve_link(estate.log.state, link_name)
    _, source_admin = await estate.source(link)
    found: list[Finding] = []
    new: list[GroupRecord] = []
    for group in dict.fromkeys(groups):
        record = estate.log.state.group(link.name, group)
        if record is None:
            found.append(
                Finding("refuse", "not-mirrored", f"group {group} is not mirrored", f"kmigrate group mirror {group}")
            )
        elif record.phase is not GroupPhase.MIRRORED:
            found.append(Finding("ok", "already", f"group {group} is {record.phase}"))
        else:
            new.append(record)
            found += [
                Finding(
                    "refuse",
                    "members-on-source",
                    f"group {group} still has member {m.client_id} at {m.host} on the source",
                    "restart that consumer with the router's address",
                )
                for m in await members_left(source_admin, group)
            ]
            found += await _offset_guards(estate, link, source_admin, group)
    made = Plan.of("group promote", [f"promote group {r.group}" for r in new], found)
    made.refuse()
    if plan:
        return made
    for record in new:
        asked = replace(
            record,
            phase=advance_group(record.phase, GroupEvent.PROMOTE_ASKED),
            since_ms=now_ms(),
            asked_ms=now_ms(),
            reason="",
        )
        await estate.advance(record, asked)
    return made.done()


async def unmirrored_readers(estate: Estate, source_admin: Admin) -> dict[str, list[str]]:
    """Groups that nobody mirrors, by the topics that they have positions in: these would stay behind (MM-72)."""
    mirrored = {group.group for group in estate.log.state.groups()}
    names = [name for name in chosen_groups([NamePattern(".*")], await source_admin.groups()) if name not in mirrored]
    turn = asyncio.Semaphore(_AT_ONCE)
    found: dict[str, list[str]] = {}

    async def ask(group: str) -> None:
        async with turn:
            for topic in {topic for topic, _ in await source_admin.group_offsets(group, stable=False)}:
                found.setdefault(topic, []).append(group)

    await together(*map(ask, names))
    return {topic: sorted(groups) for topic, groups in found.items()}


async def _offset_guards(estate: Estate, link: LinkRecord, source_admin: Admin, group: str) -> list[Finding]:
    """Positions that cannot be carried over: beyond the source's log, or of topics nobody mirrors (C5, MM-71)."""
    offsets = await source_admin.group_offsets(group, stable=False)
    mirrored = {t.topic for t in estate.log.state.topics(link.name)}
    found = [
        Finding("warn", "topic-not-mirrored", f"group {group} has positions in {topic}, which is not mirrored")
        for topic in sorted({t for t, _ in offsets} - mirrored)
    ]
    source, _ = await estate.source(link)
    keys = [key for key in offsets if key[0] in mirrored]
    ends = await source.list_offsets(dict.fromkeys(keys, LATEST))
    starts = await source.list_offsets(dict.fromkeys(keys, EARLIEST))
    for key in keys:
        end, first = ends[key], starts[key]
        if not end.error and offsets[key].offset > end.offset and end.offset > first.offset:
            found.append(
                Finding(
                    "refuse",
                    "position-beyond-log",
                    f"group {group} committed {offsets[key].offset} on {key[0]}-{key[1]}, "
                    f"whose log ends at {end.offset}",
                    "reset that position on the source to one that exists",
                )
            )
    return found
