"""A snapshot of everything the state log has decided: one immutable value, folded record by record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    AssignmentRecord,
    BarrierRecord,
    DirectRecord,
    GroupRecord,
    LateRecord,
    LeaseRecord,
    LinkRecord,
    MisplacedRecord,
    RouterRecord,
    StrayRecord,
    TopicRecord,
    TransactionRecord,
    VerifiedRecord,
    direct_key,
    group_key,
    late_key,
    link_key,
    misplaced_key,
    topic_key,
    transaction_key,
    verified_key,
)

__all__ = ["Records", "State"]

_BUCKETS = 256
"""With 100,000 transactional ids a bucket has 400."""
_R = TypeVar("_R", bound=Record)
_Coupling = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A link, and the topics and groups of it that a transactional id couples."""


class _Bucket(dict[str, Record]):
    """Some of a kind, by key; never changed once it is part of one."""

    @cached_property
    def couplings(self) -> dict[_Coupling, TransactionRecord]:
        """Of its transactional ids that couple anything the first for each set of it."""
        found: dict[_Coupling, TransactionRecord] = {}
        for record in self.values():
            if isinstance(record, TransactionRecord) and len(record.topics) + len(record.groups) > 1:
                _keep_first(found, record)
        return found

    @cached_property
    def source_epochs(self) -> dict[tuple[str, int], int]:
        """The newest epoch of each producer id that a source gave to a routed transactional producer."""
        found: dict[tuple[str, int], int] = {}
        for record in self.values():
            if isinstance(record, TransactionRecord):
                key = record.link, record.source_id
                found[key] = max(record.source_epoch, found.get(key, -1))
        return found


class _Kind:
    """All live records whose keys begin with one word, spread over buckets; a value."""

    def __init__(self, buckets: tuple[_Bucket, ...] = (_Bucket(),) * _BUCKETS) -> None:
        self.buckets = buckets

    def bucket(self, key: str) -> _Bucket:
        return self.buckets[hash(key) % _BUCKETS]

    def put(self, records: Mapping[str, Record | None]) -> _Kind:
        buckets = list(self.buckets)
        changed: dict[int, _Bucket] = {}
        for key, record in records.items():
            place = hash(key) % _BUCKETS
            bucket = changed.get(place)
            if bucket is None:
                bucket = changed[place] = buckets[place] = _Bucket(buckets[place])
            if record is None:
                bucket.pop(key, None)
            else:
                bucket[key] = record
        return _Kind(tuple(buckets))

    def changed_since(self, before: _Kind) -> dict[str, Record | None]:
        """Return the records that differ from an earlier value, None for a key that is gone."""
        changed: dict[str, Record | None] = {}
        for now, then in zip(self.buckets, before.buckets, strict=True):
            if now is not then:
                changed |= {key: record for key, record in now.items() if then.get(key) is not record}
                changed |= dict.fromkeys(then.keys() - now.keys())
        return changed

    @cached_property
    def in_order(self) -> tuple[Record, ...]:
        """In the order of their keys."""
        return tuple(self.bucket(key)[key] for key in sorted(chain.from_iterable(self.buckets)))

    @cached_property
    def couplings(self) -> tuple[TransactionRecord, ...]:
        """Of transactional ids that couple anything the first for each set of it: thousands name the same few."""
        found: dict[_Coupling, TransactionRecord] = {}
        for bucket in self.buckets:
            for record in bucket.couplings.values():
                _keep_first(found, record)
        return tuple(sorted(found.values(), key=attrgetter("key")))


def _keep_first(found: dict[_Coupling, TransactionRecord], record: TransactionRecord) -> None:
    """By name, which their keys end with."""
    known = found.setdefault((record.link, record.topics, record.groups), record)
    if record.name < known.name:
        found[record.link, record.topics, record.groups] = record


class Records(Mapping[str, Record]):
    """Live records by key, a value: `put` makes the next one, which shares with it all but the buckets of what changed.

    So one more record costs some microseconds, however many there are, and many at once cost one each; and what is read
    of a kind is put in order once, until a record of that kind changes.
    """

    __slots__ = ("_kinds",)

    def __init__(self, kinds: Mapping[str, _Kind] | None = None) -> None:
        self._kinds = kinds or {}

    def put(self, records: Mapping[str, Record | None]) -> Records:
        """These with some more; None takes one out."""
        by_word: dict[str, dict[str, Record | None]] = {}
        for key, record in records.items():
            by_word.setdefault(key.partition("/")[0], {})[key] = record
        kinds = {word: self._kinds.get(word, _NONE).put(changed) for word, changed in by_word.items()}
        return Records({**self._kinds, **kinds})

    def of(self, word: str, kind: type[_R]) -> Iterator[_R]:
        """All of a kind, whose keys begin with a word, in the order of their keys."""
        return (record for record in self._kinds.get(word, _NONE).in_order if isinstance(record, kind))

    def changed_since(self, before: Records, word: str) -> dict[str, Record | None]:
        """Return the records of a kind that differ from an earlier value, None for a key that is gone.

        Costs as much as has changed, however many records there are.
        """
        return self._kinds.get(word, _NONE).changed_since(before._kinds.get(word, _NONE))

    def couplings(self) -> tuple[TransactionRecord, ...]:
        return self._kinds.get("transaction", _NONE).couplings

    def source_epoch(self, link: str, source_id: int) -> int:
        buckets = self._kinds.get("transaction", _NONE).buckets
        return max(bucket.source_epochs.get((link, source_id), -1) for bucket in buckets)

    def __getitem__(self, key: str) -> Record:
        return self._kinds.get(key.partition("/")[0], _NONE).bucket(key)[key]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(bucket for kind in self._kinds.values() for bucket in kind.buckets)

    def __len__(self) -> int:
        return sum(len(bucket) for kind in self._kinds.values() for bucket in kind.buckets)


_NONE = _Kind()


@dataclass(frozen=True, slots=True)
class State:
    """All live records by key; `epoch` is the offset of the newest record folded in, or missing; −1 for none."""

    epoch: int = -1
    records: Records = field(default_factory=Records)

    def with_record(self, key: str, record: Record | None, epoch: int) -> State:
        """The state after one more record; None drops the key."""
        return self.with_records({key: record}, epoch)

    def with_records(self, records: Mapping[str, Record | None], epoch: int) -> State:
        """The state after these records of which the last stands at `epoch`."""
        return State(epoch, self.records.put(records))

    def links(self) -> list[LinkRecord]:
        return list(self.records.of("link", LinkRecord))

    def link(self, name: str) -> LinkRecord | None:
        found = self.records.get(link_key(name))
        return found if isinstance(found, LinkRecord) else None

    def topics(self, link: str | None = None, *, forgotten: bool = False) -> list[TopicRecord]:
        """Topics of a link, or of all; those that are being forgotten are there for nobody who does not ask for them.

        Routers do, and serve them as before: what no record names is the target's alone.
        """
        records = self.records.of("topic", TopicRecord)
        return [r for r in records if link in (None, r.link) and (forgotten or not r.forgotten_ms)]

    def topic(self, link: str, topic: str, *, forgotten: bool = False) -> TopicRecord | None:
        """One topic of a link; `forgotten` as for `topics`."""
        found = self.records.get(topic_key(link, topic))
        return found if isinstance(found, TopicRecord) and (forgotten or not found.forgotten_ms) else None

    def topic_owner(self, topic: str) -> TopicRecord | None:
        """The record of a target topic, whichever link owns it or is forgetting it (one at most: AL-12, MM-20)."""
        return next((r for r in self.records.of("topic", TopicRecord) if r.topic == topic), None)

    def groups(self, link: str | None = None, *, forgotten: bool = False) -> list[GroupRecord]:
        """Groups of a link, or of all; `forgotten` as for `topics`."""
        records = self.records.of("group", GroupRecord)
        return [r for r in records if link in (None, r.link) and (forgotten or not r.forgotten_ms)]

    def group(self, link: str, group: str, *, forgotten: bool = False) -> GroupRecord | None:
        """One group of a link; `forgotten` as for `topics`."""
        found = self.records.get(group_key(link, group))
        return found if isinstance(found, GroupRecord) and (forgotten or not found.forgotten_ms) else None

    def group_owner(self, group: str) -> GroupRecord | None:
        """The record of a group, whichever link owns it or is forgetting it: one at most, since it is one group at the
        target."""
        return next((r for r in self.records.of("group", GroupRecord) if r.group == group), None)

    def misplaced(self, link: str, group: str) -> MisplacedRecord:
        """Return what was seen of a group at the wrong cluster; an empty record where nothing was."""
        found = self.records.get(misplaced_key(link, group))
        return found if isinstance(found, MisplacedRecord) else MisplacedRecord(link, group)

    def verified(self, link: str, topic: str) -> VerifiedRecord | None:
        found = self.records.get(verified_key(link, topic))
        return found if isinstance(found, VerifiedRecord) else None

    def transactions(self, link: str | None = None) -> list[TransactionRecord]:
        return [r for r in self.records.of("transaction", TransactionRecord) if link in (None, r.link)]

    def couplings(self, link: str) -> list[TransactionRecord]:
        """Transactions of a link that stand for all of those which couple the same topics and groups."""
        return [r for r in self.records.couplings() if r.link == link]

    def transaction(self, link: str, name: str) -> TransactionRecord | None:
        found = self.records.get(transaction_key(link, name))
        return found if isinstance(found, TransactionRecord) else None

    def is_routed(self, link: str, source_id: int, epoch: int) -> bool:
        """Return whether a router's transactional client has this producer id with this epoch or a later epoch.

        A router writes an identity down before the client uses the identity. The source raises the epoch for the next
        holder of the transactional id. So a direct holder after that client has a later epoch than the state log names.
        """
        known = self.records.source_epoch(link, source_id) if source_id >= 0 else -1
        return known >= max(0, epoch)

    def direct(self, link: str, topic: str) -> DirectRecord | None:
        """The direct writers of a topic that the mirror has seen."""
        found = self.records.get(direct_key(link, topic))
        return found if isinstance(found, DirectRecord) else None

    def late(self, link: str, topic: str) -> LateRecord | None:
        """Return the late writes of a promoted topic's source."""
        found = self.records.get(late_key(link, topic))
        return found if isinstance(found, LateRecord) else None

    def routers(self) -> list[RouterRecord]:
        return list(self.records.of("router", RouterRecord))

    def strays(self) -> list[StrayRecord]:
        return list(self.records.of("stray", StrayRecord))

    def stray(self, name: str) -> StrayRecord | None:
        found = self.records.get(f"stray/{name}")
        return found if isinstance(found, StrayRecord) else None

    def with_stray(self, left: RouterRecord) -> StrayRecord:
        """What is written of a router before another takes its place or it is forgotten."""
        known = self.stray(left.name)
        before = known.instances if known is not None else ()
        return StrayRecord(left.name, left.host, before, left.bootstrap).joined(left.instance)

    def lease(self, what: str) -> LeaseRecord | None:
        found = self.records.get(f"lease/{what}")
        return found if isinstance(found, LeaseRecord) else None

    def assignment(self, link: str) -> AssignmentRecord | None:
        found = self.records.get(f"assignment/{link}")
        return found if isinstance(found, AssignmentRecord) else None

    def all_barriers(self) -> Iterator[BarrierRecord]:
        """Return the barriers of all topics."""
        return self.records.of("barrier", BarrierRecord)

    def barriers(self, link: str, topic: str) -> Iterator[BarrierRecord]:
        return (r for r in self.records.of("barrier", BarrierRecord) if (r.link, r.topic) == (link, topic))
