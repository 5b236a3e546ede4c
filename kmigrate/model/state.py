"""Holds a snapshot of all decisions in the state log: one immutable value, folded record by record."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from operator import attrgetter
from typing import Any, TypeVar

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
    barrier_key,
    direct_key,
    group_key,
    late_key,
    link_key,
    misplaced_key,
    topic_key,
    transaction_key,
    verified_key,
)
from kmigrate.model.reports import ReportedKind, ReportRecord, report_prefix

__all__ = ["Records", "State"]

_BUCKETS = 256
"""Number of buckets of a kind; with 100,000 transactional ids a bucket has 400."""
_MOST_IN_PLACE = 64
"""Number of changes up to which the order of a kind is changed when it is asked for, and not made anew."""
_R = TypeVar("_R", bound=Record)
_Coupling = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A link, and its topics and groups that a transactional id couples."""


class _Bucket(dict[str, Record]):
    """Some records of a kind, by key; never changed once the bucket belongs to a kind."""

    def chosen(self, kind: type[_R], test: Callable[[_R], bool]) -> Mapping[str, _R]:
        """Return the records of this bucket that pass a test, by key; the answer is kept."""
        found = self._chosen.get(test)
        if found is None:
            of_kind = ((key, record) for key, record in self.items() if isinstance(record, kind))
            found = self._chosen[test] = {key: record for key, record in of_kind if test(record)}
        return found

    @cached_property
    def _chosen(self) -> dict[Callable[[Any], bool], Mapping[str, Any]]:
        return {}

    @cached_property
    def couplings(self) -> dict[_Coupling, TransactionRecord]:
        """First transaction of this bucket for each set of coupled topics and groups."""
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


class _Order:
    """Records in the order of their keys, an immutable value."""

    def __init__(self, keys: list[str], records: list[Record]) -> None:
        self._keys = keys
        self.records = records

    def below(self, prefix: str) -> Iterator[Record]:
        """Return the records whose keys begin with `prefix`."""
        for at in range(bisect_left(self._keys, prefix), len(self._keys)):
            if not self._keys[at].startswith(prefix):
                return
            yield self.records[at]

    def changed(self, changes: Mapping[str, Record | None]) -> _Order:
        """Return the order after a few changes: two copies, however many records there are."""
        keys, records = self._keys.copy(), self.records.copy()
        for key, record in changes.items():
            at = bisect_left(keys, key)
            known = at < len(keys) and keys[at] == key
            if record is None:
                if known:
                    del keys[at], records[at]
            elif known:
                records[at] = record
            else:
                keys.insert(at, key)
                records.insert(at, record)
        return _Order(keys, records)


class _Kind:
    """All live records whose keys begin with the same word, spread over buckets; an immutable value."""

    def __init__(self, buckets: tuple[_Bucket, ...] = (_Bucket(),) * _BUCKETS) -> None:
        self.buckets = buckets
        self.base: tuple[_Order, Mapping[str, Record | None]] | None = None
        """The order of an earlier value, and the few changes since then."""

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
        made = _Kind(tuple(buckets))
        made.base = self._base_with(records)
        if "by_name" in self.__dict__ and all(record and key in self.bucket(key) for key, record in records.items()):
            made.by_name = self.by_name
        return made

    def _base_with(self, records: Mapping[str, Record | None]) -> tuple[_Order, Mapping[str, Record | None]] | None:
        before, changes = (self.order, {}) if "order" in self.__dict__ else self.base or (None, {})
        if before is None or len(changes) + len(records) > _MOST_IN_PLACE:
            return None
        return before, {**changes, **records}

    def changed_since(self, before: _Kind) -> dict[str, Record | None]:
        """Return the records that differ from an earlier value; None for a key that is gone."""
        changed: dict[str, Record | None] = {}
        if self is before:
            return changed
        for now, then in zip(self.buckets, before.buckets, strict=True):
            if now is not then:
                changed |= {key: record for key, record in now.items() if then.get(key) is not record}
                changed |= dict.fromkeys(then.keys() - now.keys())
        return changed

    @cached_property
    def order(self) -> _Order:
        """The records in the order of their keys."""
        if self.base is not None:
            before, changes = self.base
            return before.changed(changes)
        keys = sorted(chain.from_iterable(self.buckets))
        return _Order(keys, [self.bucket(key)[key] for key in keys])

    @cached_property
    def by_name(self) -> dict[str, str]:
        """The first key of each topic or group, whatever its link."""
        found: dict[str, str] = {}
        for key in chain.from_iterable(self.buckets):
            name = key.split("/", 2)[2]
            found[name] = min(key, found.get(name, key))
        return found

    @cached_property
    def couplings(self) -> tuple[TransactionRecord, ...]:
        """First transaction for each set of coupled topics and groups: thousands of ids couple the same few."""
        found: dict[_Coupling, TransactionRecord] = {}
        for bucket in self.buckets:
            for record in bucket.couplings.values():
                _keep_first(found, record)
        return tuple(sorted(found.values(), key=attrgetter("key")))


def _keep_first(found: dict[_Coupling, TransactionRecord], record: TransactionRecord) -> None:
    """Keep the first record by transactional id for each coupling; the record's key ends with the id."""
    known = found.setdefault((record.link, record.topics, record.groups), record)
    if record.name < known.name:
        found[record.link, record.topics, record.groups] = record


class Records(Mapping[str, Record]):
    """Live records by key, an immutable value: `put` makes the next value.

    The next value shares all unchanged buckets, so another record costs some microseconds, however many records there
    are, also among many at once. The records of a kind stay sorted.
    """

    __slots__ = ("_kinds",)

    def __init__(self, kinds: Mapping[str, _Kind] | None = None) -> None:
        self._kinds = kinds or {}

    def put(self, records: Mapping[str, Record | None]) -> Records:
        """Return these records with changes; None removes a key."""
        by_word: dict[str, dict[str, Record | None]] = {}
        for key, record in records.items():
            by_word.setdefault(key.partition("/")[0], {})[key] = record
        kinds = {word: self._kinds.get(word, _NONE).put(changed) for word, changed in by_word.items()}
        return Records({**self._kinds, **kinds})

    def of(self, word: str, kind: type[_R]) -> Iterator[_R]:
        """Return all records of a kind, whose keys begin with `word`, in the order of their keys."""
        return (record for record in self._kinds.get(word, _NONE).order.records if isinstance(record, kind))

    def below(self, prefix: str) -> Iterator[Record]:
        """Return the records whose keys begin with `prefix`, in the order of their keys."""
        return self._kinds.get(prefix.partition("/")[0], _NONE).order.below(prefix)

    def chosen(self, word: str, kind: type[_R], test: Callable[[_R], bool]) -> list[_R]:
        """Return the records of a kind that pass a test, in the order of their keys.

        Each unchanged bucket keeps its answer, so `test` is a function of a module that looks at the record alone.
        """
        found: dict[str, _R] = {}
        for bucket in self._kinds.get(word, _NONE).buckets:
            found |= bucket.chosen(kind, test)
        return [found[key] for key in sorted(found)]

    def has_chosen(self, word: str, kind: type[_R], test: Callable[[_R], bool]) -> bool:
        """Return whether a record of a kind passes a test, as `chosen`."""
        return any(bucket.chosen(kind, test) for bucket in self._kinds.get(word, _NONE).buckets)

    def changed_since(self, before: Records, word: str) -> dict[str, Record | None]:
        """Return the changed records of a kind, None for a key that is gone; the cost depends on the changes alone."""
        return self._kinds.get(word, _NONE).changed_since(before._kinds.get(word, _NONE))

    def first_named(self, word: str, name: str) -> Record | None:
        """Return the record of a topic or group by name; if several links have one, the first by key."""
        kind = self._kinds.get(word, _NONE)
        key = kind.by_name.get(name)
        return kind.bucket(key)[key] if key is not None else None

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
    """All live records by key; `epoch` is the offset of the newest record or later missing record; −1 for none."""

    epoch: int = -1
    records: Records = field(default_factory=Records)

    def with_record(self, key: str, record: Record | None, epoch: int) -> State:
        """Return the state after one more record; None drops the key."""
        return self.with_records({key: record}, epoch)

    def with_records(self, records: Mapping[str, Record | None], epoch: int) -> State:
        """Return the state after these records, the last of which stands at offset `epoch`."""
        return State(epoch, self.records.put(records))

    def _of_kind(self, kind: type[_R], key: str) -> _R | None:
        found = self.records.get(key)
        return found if isinstance(found, kind) else None

    def links(self) -> list[LinkRecord]:
        return list(self.records.of("link", LinkRecord))

    def link(self, name: str) -> LinkRecord | None:
        return self._of_kind(LinkRecord, link_key(name))

    def topics(self, link: str | None = None, *, forgotten: bool = False) -> list[TopicRecord]:
        """Return the topics of a link or of all links; topics that are being forgotten only with `forgotten`.

        Routers ask for forgotten topics, too: a topic without a record belongs to the target alone.
        """
        records = self.records.of("topic", TopicRecord)
        return [r for r in records if link in (None, r.link) and (forgotten or not r.forgotten_ms)]

    def topics_that(
        self, test: Callable[[TopicRecord], bool], link: str | None = None, *, forgotten: bool = False
    ) -> list[TopicRecord]:
        """Return the topics that pass a test, which is a function of a module; otherwise as `topics`.

        The cost depends on the topics that pass and on the changes since the last call, not on the number of topics.
        """
        records = self.records.chosen("topic", TopicRecord, test)
        return [r for r in records if link in (None, r.link) and (forgotten or not r.forgotten_ms)]

    def has_topic_that(self, test: Callable[[TopicRecord], bool]) -> bool:
        """Return whether a topic of any link, also a forgotten topic, passes a test of the kind of `topics_that`."""
        return self.records.has_chosen("topic", TopicRecord, test)

    def topic(self, link: str, topic: str, *, forgotten: bool = False) -> TopicRecord | None:
        """Return a topic of a link; `forgotten` as for `topics`."""
        found = self._of_kind(TopicRecord, topic_key(link, topic))
        return found if found is not None and (forgotten or not found.forgotten_ms) else None

    def topic_owner(self, topic: str) -> TopicRecord | None:
        """Return the record of a target topic, whichever link owns or forgets it; at most one link does."""
        found = self.records.first_named("topic", topic)
        return found if isinstance(found, TopicRecord) else None

    def groups(self, link: str | None = None, *, forgotten: bool = False) -> list[GroupRecord]:
        """Return the groups of a link or of all links; `forgotten` as for `topics`."""
        records = self.records.of("group", GroupRecord)
        return [r for r in records if link in (None, r.link) and (forgotten or not r.forgotten_ms)]

    def groups_that(
        self, test: Callable[[GroupRecord], bool], link: str | None = None, *, forgotten: bool = False
    ) -> list[GroupRecord]:
        """Return the groups that pass a test, as `topics_that` does."""
        records = self.records.chosen("group", GroupRecord, test)
        return [r for r in records if link in (None, r.link) and (forgotten or not r.forgotten_ms)]

    def has_group_that(self, test: Callable[[GroupRecord], bool]) -> bool:
        """Return whether a group of any link, also a forgotten group, passes a test of the kind of `topics_that`."""
        return self.records.has_chosen("group", GroupRecord, test)

    def group(self, link: str, group: str, *, forgotten: bool = False) -> GroupRecord | None:
        """Return a group of a link; `forgotten` as for `topics`."""
        found = self._of_kind(GroupRecord, group_key(link, group))
        return found if found is not None and (forgotten or not found.forgotten_ms) else None

    def group_owner(self, group: str) -> GroupRecord | None:
        """Return the group's record, whichever link owns or forgets it: the target has a single group of that name."""
        found = self.records.first_named("group", group)
        return found if isinstance(found, GroupRecord) else None

    def misplaced(self, link: str, group: str) -> MisplacedRecord:
        """Return the sightings of a group at the wrong cluster; an empty record if there are none."""
        return self._of_kind(MisplacedRecord, misplaced_key(link, group)) or MisplacedRecord(link, group)

    def verified(self, link: str, topic: str) -> VerifiedRecord | None:
        return self._of_kind(VerifiedRecord, verified_key(link, topic))

    def transactions(self, link: str | None = None) -> list[TransactionRecord]:
        return [r for r in self.records.of("transaction", TransactionRecord) if link in (None, r.link)]

    def couplings(self, link: str) -> list[TransactionRecord]:
        """Return transactions of a link that stand for all transactions which couple the same topics and groups."""
        return [r for r in self.records.couplings() if r.link == link]

    def transaction(self, link: str, name: str) -> TransactionRecord | None:
        return self._of_kind(TransactionRecord, transaction_key(link, name))

    def is_routed(self, link: str, source_id: int, epoch: int) -> bool:
        """Return whether a router's transactional client has this producer id with this epoch or a later epoch.

        Routers record an identity before its use, and the source raises the epoch for the next holder. So a later
        direct holder has a later epoch than the state log names.
        """
        known = self.records.source_epoch(link, source_id) if source_id >= 0 else -1
        return known >= max(0, epoch)

    def direct(self, link: str, topic: str) -> DirectRecord | None:
        """Return the direct writers of a topic that the mirror has seen."""
        return self._of_kind(DirectRecord, direct_key(link, topic))

    def late(self, link: str, topic: str) -> LateRecord | None:
        """Return the late writes of a promoted topic's source."""
        return self._of_kind(LateRecord, late_key(link, topic))

    def reports(self, link: str | None = None) -> list[ReportRecord]:
        """Return the reports of ended promotes and rollbacks, the newest first."""
        return _newest_first(r for r in self.records.of("report", ReportRecord) if link in (None, r.link))

    def reports_of(self, link: str, what: ReportedKind, name: str) -> list[ReportRecord]:
        """Return the reports of a topic or group, the newest first."""
        found = self.records.below(report_prefix(link, what, name))
        return _newest_first(r for r in found if isinstance(r, ReportRecord) and r.name == name)

    def routers(self) -> list[RouterRecord]:
        return list(self.records.of("router", RouterRecord))

    def strays(self) -> list[StrayRecord]:
        return list(self.records.of("stray", StrayRecord))

    def stray(self, name: str) -> StrayRecord | None:
        return self._of_kind(StrayRecord, f"stray/{name}")

    def with_stray(self, left: RouterRecord) -> StrayRecord:
        """Return the stray record to write before a router is replaced by another router, or forgotten."""
        known = self.stray(left.name)
        before = known.instances if known is not None else ()
        return StrayRecord(left.name, left.host, before, left.bootstrap).joined(left.instance)

    def lease(self, what: str) -> LeaseRecord | None:
        return self._of_kind(LeaseRecord, f"lease/{what}")

    def assignment(self, link: str) -> AssignmentRecord | None:
        return self._of_kind(AssignmentRecord, f"assignment/{link}")

    def barrier_chunks(self, link: str, topic: str, *, back: bool = False) -> Iterator[BarrierRecord]:
        """Return the barriers of a topic's promote, or rollback (`back`), by their keys: chunks count from 0."""
        for chunk in count():
            found = self._of_kind(BarrierRecord, barrier_key(link, topic, chunk, back=back))
            if found is None:
                return
            yield found

    def barriers(self, link: str, topic: str) -> Iterator[BarrierRecord]:
        """Return all barriers of a topic, also where lower chunks are deleted already."""
        return (r for r in self.records.of("barrier", BarrierRecord) if (r.link, r.topic) == (link, topic))


def _newest_first(reports: Iterable[ReportRecord]) -> list[ReportRecord]:
    return sorted(reports, key=lambda report: (-report.asked.at_ms, report.name))
