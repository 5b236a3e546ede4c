"""A link as a mirror process knows the link: both clusters, the state log and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.records import AssignmentRecord, GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.state.log import StateLog

__all__ = ["Clusters", "MirroredLink"]


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clients of a link's source and target, and their admin clients."""

    source: ClusterClient
    target: ClusterClient
    source_admin: Admin
    target_admin: Admin


@dataclass(frozen=True, slots=True)
class MirroredLink(Clusters):
    """A link and one of its mirror processes; the records are those of the newest known state."""

    name: str
    log: StateLog
    instance: str
    settings: MirrorSettings
    contradictions: Callable[[LinkSettings], Mapping[str, str]] = lambda _: {}
    """Returns in words what the process's configuration says of the link's settings, where the link says otherwise."""

    @property
    def state(self) -> State:
        return self.log.state

    @property
    def record(self) -> LinkRecord | None:
        return self.state.link(self.name)

    @property
    def link_settings(self) -> LinkSettings:
        """The settings that the link's record holds now."""
        record = self.record
        return record.settings if record is not None else LinkSettings()

    @property
    def topics(self) -> list[TopicRecord]:
        return self.state.topics(self.name)

    @property
    def groups(self) -> list[GroupRecord]:
        return self.state.groups(self.name)

    @property
    def assignment(self) -> AssignmentRecord | None:
        return self.state.assignment(self.name)

    def topic(self, topic: str) -> TopicRecord | None:
        return self.state.topic(self.name, topic)

    async def change_topic(
        self, topic: str, change: Callable[[TopicRecord], TopicRecord | None], *, forgotten: bool = False
    ) -> State:
        """Append a topic's record as `change` returns it; None, or a topic that is gone, changes nothing."""

        def decide(state: State) -> TopicRecord | None:
            record = state.topic(self.name, topic, forgotten=forgotten)
            return change(record) if record is not None else None

        return await self.log.append(decide)
