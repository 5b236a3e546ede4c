"""Picks up topics and groups of the source that match an expression of the link and are not mirrored yet.

A topic or group that already exists on the target is not taken over, but noted, unless a person names it. Otherwise
routers would at once cut off the clients that use it there.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from kmigrate.mirror.link import MirroredLink
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.patterns import auto_asked, chosen_groups, chosen_topics, offsets_asked
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms

__all__ = ["Pickup"]


class Pickup:
    """Writes the intents that a person would write for each matching name."""

    def __init__(self, link: MirroredLink) -> None:
        self._link = link

    async def look(self, link: LinkRecord) -> tuple[str, ...]:
        """Pick up what is new; return a sentence on every match that cannot be picked up."""
        notes: list[str] = []
        if link.finished_ms:
            return ()  # the clients of a finished link write to the target without a router
        if link.topic_patterns:
            notes += await self._topics(link)
        if link.group_patterns:
            notes += await self._groups(link)
        notes += [
            f"slow-regex: {pattern.include} chooses nothing ({pattern.slow}): forget it, and write it otherwise"
            for pattern in (*link.topic_patterns, *link.group_patterns)
            if pattern.slow
        ]
        return tuple(notes)

    async def _topics(self, link: LinkRecord) -> list[str]:
        known = (await self._link.source.refresh()).topics
        owners = {topic.topic: topic.link for topic in self._link.state.topics(forgotten=True)}
        chosen = chosen_topics(link.topic_patterns, known)
        new = [topic for topic in chosen if topic not in owners]
        existing = (await self._link.target.refresh(new)).topics if new else {}
        for topic in new:
            if topic not in existing:
                # The copy starts at the beginning: the topic came after the expression, which asked for all of it.
                asked, partitions = offsets_asked(link.topic_patterns, topic), len(known[topic].partitions)
                phase = TopicPhase.INITIALISING
                record = TopicRecord(self._link.name, topic, phase, now_ms(), offsets=asked, partitions=partitions)
                await self._claim(record)
        return self._notes("topic", chosen, owners, existing, "adopts it where it is empty")

    async def _groups(self, link: LinkRecord) -> list[str]:
        owners = {group.group: group.link for group in self._link.state.groups(forgotten=True)}
        chosen = chosen_groups(link.group_patterns, await self._link.source_admin.groups())
        new = [group for group in chosen if group not in owners]
        existing = await self._link.target_admin.groups() if new else {}
        for group in new:
            if group not in existing:
                auto = auto_asked(link.group_patterns, group)
                await self._claim(GroupRecord(self._link.name, group, GroupPhase.MIRRORED, now_ms(), auto=auto))
        return self._notes("group", chosen, owners, existing, "mirrors it all the same")

    def _notes(
        self, kind: str, chosen: Collection[str], owners: Mapping[str, str], existing: Container[str], effect: str
    ) -> list[str]:
        """Return sentences on the matches that belong to another link, or exist on the target."""
        link = self._link.name
        return [
            *(
                f"{kind}-owned: {kind} {name} matches, and belongs to link {owners[name]}"
                for name in chosen
                if owners.get(name, link) != link
            ),
            *(
                f"target-{kind}-exists: {kind} {name} matches, and the target has a {kind} of that name: "
                f"{advised(f'{kind} mirror', link, name)} {effect}"
                for name in chosen
                if name not in owners and name in existing
            ),
        ]

    async def _claim(self, record: TopicRecord | GroupRecord) -> None:
        """Write an intent, unless the link was finished or no longer chooses the name since the clusters were asked."""

        def decide(state: State) -> Record | None:
            link = state.link(self._link.name)
            if link is None or link.finished_ms:
                return None
            if isinstance(record, TopicRecord):
                chosen = chosen_topics(link.topic_patterns, [record.topic])
                return record if chosen and state.topic_owner(record.topic) is None else None
            chosen = chosen_groups(link.group_patterns, [record.group])
            return record if chosen and state.group_owner(record.group) is None else None

        await self._link.log.append(decide)
