"""A snapshot of everything the state log has decided: one immutable value, folded record by record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kmigrate.model.records import (
    AssignmentRecord,
    BarrierRecord,
    GroupRecord,
    LeaseRecord,
    LinkRecord,
    Record,
    RouterRecord,
    StrayRecord,
    TopicRecord,
    TransactionRecord,
    VerifiedRecord,
    group_key,
    link_key,
    topic_key,
    transaction_key,
    verified_key,
)

__all__ = ["State"]


@dataclass(frozen=True, slots=True)
class State:
    """All live records by key; `epoch` is the offset of the newest record folded in, −1 for none."""

    epoch: int = -1
    records: Mapping[str, Record] = field(default_factory=lambda: MappingProxyType({}))

    def with_record(self, key: str, record: Record | None, epoch: int) -> State:
        """The state after one more record; None is a tombstone."""
        records = dict(self.records)
        if record is None:
            records.pop(key, None)
        else:
            records[key] = record
        return State(epoch, MappingProxyType(records))

    def links(self) -> list[LinkRecord]:
        return sorted((r for r in self.records.values() if isinstance(r, LinkRecord)), key=lambda r: r.name)

    def link(self, name: str) -> LinkRecord | None:
        found = self.records.get(link_key(name))
        return found if isinstance(found, LinkRecord) else None

    def topics(self, link: str | None = None) -> list[TopicRecord]:
        return sorted(
            (r for r in self.records.values() if isinstance(r, TopicRecord) and link in (None, r.link)),
            key=lambda r: (r.link, r.topic),
        )

    def topic(self, link: str, topic: str) -> TopicRecord | None:
        found = self.records.get(topic_key(link, topic))
        return found if isinstance(found, TopicRecord) else None

    def topic_owner(self, topic: str) -> TopicRecord | None:
        """The record of a target topic, whichever link owns it (one at most: AL-12, MM-20)."""
        return next((r for r in self.records.values() if isinstance(r, TopicRecord) and r.topic == topic), None)

    def groups(self, link: str | None = None) -> list[GroupRecord]:
        return sorted(
            (r for r in self.records.values() if isinstance(r, GroupRecord) and link in (None, r.link)),
            key=lambda r: (r.link, r.group),
        )

    def group(self, link: str, group: str) -> GroupRecord | None:
        found = self.records.get(group_key(link, group))
        return found if isinstance(found, GroupRecord) else None

    def group_owner(self, group: str) -> GroupRecord | None:
        """The record of a group, whichever link owns it: one at most, since it is one group at the target."""
        return next((r for r in self.records.values() if isinstance(r, GroupRecord) and r.group == group), None)

    def verified(self, link: str, topic: str) -> VerifiedRecord | None:
        found = self.records.get(verified_key(link, topic))
        return found if isinstance(found, VerifiedRecord) else None

    def transactions(self, link: str | None = None) -> list[TransactionRecord]:
        return sorted(
            (r for r in self.records.values() if isinstance(r, TransactionRecord) and link in (None, r.link)),
            key=lambda r: (r.link, r.name),
        )

    def transaction(self, link: str, name: str) -> TransactionRecord | None:
        found = self.records.get(transaction_key(link, name))
        return found if isinstance(found, TransactionRecord) else None

    def routers(self) -> list[RouterRecord]:
        return sorted((r for r in self.records.values() if isinstance(r, RouterRecord)), key=lambda r: r.name)

    def strays(self) -> list[StrayRecord]:
        return sorted((r for r in self.records.values() if isinstance(r, StrayRecord)), key=lambda r: r.name)

    def stray(self, name: str) -> StrayRecord | None:
        found = self.records.get(f"stray/{name}")
        return found if isinstance(found, StrayRecord) else None

    def with_stray(self, left: RouterRecord) -> StrayRecord:
        """What is written of a router before another takes its place or it is forgotten."""
        known = self.stray(left.name)
        before = known.instances if known is not None else ()
        return StrayRecord(left.name, left.host, tuple(dict.fromkeys((*before, left.instance))))

    def lease(self, what: str) -> LeaseRecord | None:
        found = self.records.get(f"lease/{what}")
        return found if isinstance(found, LeaseRecord) else None

    def assignment(self, link: str) -> AssignmentRecord | None:
        found = self.records.get(f"assignment/{link}")
        return found if isinstance(found, AssignmentRecord) else None

    def barriers(self, link: str, topic: str) -> Iterator[BarrierRecord]:
        for record in self.records.values():
            if isinstance(record, BarrierRecord) and (record.link, record.topic) == (link, topic):
                yield record
