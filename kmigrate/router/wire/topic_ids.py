"""Maps topic ids between the clusters: the new group protocol (KIP-848) assigns topics by id alone.

Only topics that a member at a router may read are mapped: topics copied under the same offsets, now or until their
promote. Other topics exist on one cluster alone, are not mirrored or not yet copied, or have other offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from kmigrate.model.routes import RoutingTable, Serve, TopicRoute

__all__ = ["TopicIds"]


@dataclass(slots=True)
class TopicIds:
    """The topic ids of a routing table, computed at first use, because most tables are never asked."""

    routes: Mapping[str, TopicRoute]
    _at_target: dict[UUID, UUID] | None = None
    _at_source: dict[UUID, UUID] = field(default_factory=dict)
    _names: dict[UUID, str] = field(default_factory=dict)
    _target_names: dict[bytes, str] | None = None

    def following(self, table: RoutingTable) -> TopicIds:
        """Return the ids of the next table; ids that no change concerns are not computed anew."""
        names = table.changes_since(self.routes)
        if any(_identity(self.routes.get(name)) != _identity(table.topics.get(name)) for name in names):
            return TopicIds(table.topics)
        self.routes = table.topics
        return self

    def at_target(self, source_id: UUID | None) -> UUID | None:
        """Return the target's id of the topic with this id at the source; None where members must not read it."""
        return None if source_id is None else self._made().get(source_id)

    def at_source(self, target_id: UUID | None) -> UUID | None:
        """Return the source's id of the topic with this id at the target; None where members must not read it."""
        self._made()
        return None if target_id is None else self._at_source.get(target_id)

    def named(self, topic: str) -> UUID | None:
        """Return a topic's id at the target."""
        route = self.routes.get(topic)
        return UUID(route.target_id) if route is not None and route.target_id else None

    def name_at_source(self, source_id: UUID) -> str:
        """Return the name of a mirrored topic, which members may not be allowed to read; '' for an unknown id."""
        self._made()
        return self._names.get(source_id, "")

    def name_at_target(self, target_id: bytes) -> str:
        """Return the name of a link's topic that has this id at the target; '' for any other id."""
        if self._target_names is None:
            known = ((name, route.target_id) for name, route in self.routes.items())
            self._target_names = {UUID(target_id).bytes: name for name, target_id in known if target_id}
        return self._target_names.get(target_id, "")

    def tells_any(self, source_ids: Iterable[UUID]) -> bool:
        """Return whether members may read any of these topics."""
        return any(each in self._made() for each in source_ids)

    def _made(self) -> dict[UUID, UUID]:
        if self._at_target is None:
            pairs = [
                (UUID(route.source_id), UUID(route.target_id))
                for route in self.routes.values()
                if route.source_id and route.target_id and not route.mapped and route.serve is not Serve.HIDDEN
            ]
            self._at_target = dict(pairs)
            self._at_source = {there: here for here, there in pairs}
            self._names = {UUID(route.source_id): name for name, route in self.routes.items() if route.source_id}
        return self._at_target


def _identity(route: TopicRoute | None) -> tuple[str, str, bool] | None:
    """Return all facts of a route that its ids depend on."""
    if route is None:
        return None
    return route.source_id, route.target_id, route.mapped or route.serve is Serve.HIDDEN
