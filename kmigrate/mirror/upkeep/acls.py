"""ACLs of mirrored topics and groups on the target, kept in step with the ACLs of the source (`model.acls`).

An ACL is recorded from before its creation to after its deletion, so that a crash leaves kmigrate's ACLs known. Deny
entries that kmigrate itself puts on the source (decision 21) are never carried over.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from kmigrate.cluster.acls import read_acls
from kmigrate.errors import KmigrateError
from kmigrate.mirror.link import MirroredLink
from kmigrate.model.acls import Acl, group_rights, topic_rights
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.patterns import excluded
from kmigrate.model.records import GroupRecord, TopicRecord

__all__ = ["Access", "Difference", "Kept", "Write", "difference"]

Kept = TypeVar("Kept", TopicRecord, GroupRecord)


class Write(Protocol):
    """Replaces a record by its changed version; raises if the record has changed since the read."""

    async def __call__(self, record: Kept, changed: Kept) -> Kept: ...


@dataclass(frozen=True, slots=True)
class _Rules:
    """All ACLs of both clusters on topics and groups."""

    source: frozenset[Acl]
    target: frozenset[Acl]


class Access:
    """The ACLs of both clusters at the last read, and the changes that follow from them."""

    def __init__(self, link: MirroredLink) -> None:
        self._link = link
        self._rules: _Rules | None = None
        self.problem: KmigrateError | None = None
        """The reason why the ACLs cannot be read, None when all is well."""

    async def read(self) -> None:
        """Read the ACLs of both clusters; if a cluster has no authorizer, no ACLs are copied."""
        self._rules = self.problem = None
        if not self._link.link_settings.sync_acls:
            return
        try:
            source, target = await read_acls(self._link.source), await read_acls(self._link.target)
        except KmigrateError as error:
            self.problem = error
            return
        if source is not None and target is not None:
            left_out = self._link.link_settings.acl_exclude
            self._rules = _Rules(frozenset(acl for acl in source if not excluded(left_out, acl.principal)), target)

    async def follow_topic(self, record: TopicRecord, write: Write) -> None:
        """Apply the topic's current ACLs to the target, and note in its record the ACLs after its promote."""
        if self.problem is not None and record.phase is TopicPhase.PROMOTE_PENDING:
            raise self.problem  # copying continues without the ACLs, a promote does not
        if not self._link.link_settings.sync_acls:
            await write(record, replace(record, granted_acls=(), promote_acls=()))
        elif self._rules is not None:
            own = record.denied.entries if record.denied is not None else ()
            rights = topic_rights(self._rules.source.difference(own), record.topic)
            change = difference(record.granted_acls, rights.now, self._rules.target)
            changed = replace(record, granted_acls=change.meanwhile, promote_acls=rights.promoted)
            await self._apply(change, record, changed, write)

    async def follow_group(self, record: GroupRecord, write: Write) -> None:
        """Give the members of a mirrored group the ACLs on the target that they have on the source."""
        if self._rules is None:
            return
        change = difference(record.granted_acls, group_rights(self._rules.source, record.group), self._rules.target)
        await self._apply(change, record, replace(record, granted_acls=change.meanwhile), write)

    async def _apply(self, change: Difference, record: Kept, changed: Kept, write: Write) -> None:
        changed = await write(record, changed)
        await self._link.target_admin.create_acls(change.create)
        await self._link.target_admin.delete_acls(change.delete)
        await write(changed, replace(changed, granted_acls=change.afterwards))


@dataclass(frozen=True, slots=True)
class Difference:
    """ACLs to create and to delete, and the ACLs that are kmigrate's during the change and after the change."""

    create: tuple[Acl, ...]
    delete: tuple[Acl, ...]
    meanwhile: tuple[Acl, ...]
    afterwards: tuple[Acl, ...]


def difference(granted: Collection[Acl], wanted: Collection[Acl], present: Collection[Acl]) -> Difference:
    """Return the changes from the present to the wanted ACLs; a present ACL not in `granted` is somebody else's."""
    create = tuple(rule for rule in wanted if rule not in present)
    delete = tuple(rule for rule in granted if rule not in wanted)
    meanwhile = {*granted, *create}
    return Difference(create, delete, tuple(sorted(meanwhile)), tuple(sorted(meanwhile - set(delete))))
