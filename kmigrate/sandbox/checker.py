"""The judge, which compares a history of clients with the target's real content and names anomalies.

`check` is a pure function over two streams. docs/history.md says exactly what each anomaly means, what a group's start
is, and which checks are not made. `group_rereads` is normal at a rebalance, so reported and not failed. A send without
an answer is *indefinite*: the record may appear once or not at all. acks=0 has no answers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kmigrate.sandbox.final_read import FinalRecord
from kmigrate.sandbox.group_order import REBALANCE_ERRORS, GroupOrder
from kmigrate.sandbox.history import ABORTED, Event
from kmigrate.sandbox.ledger import ACKED, INDEFINITE, REFUSED, WAS_ABORTED, Reads, Sends, TransactionBooks, place_of
from kmigrate.sandbox.payload import content_of, id_in

__all__ = ["ANOMALIES", "FAILING", "Finding", "Verdict", "check"]

ANOMALIES: Final = (
    "lost",
    "duplicated",
    "reordered",
    "altered",
    "misplaced",
    "extra",
    "torn",
    "premature",
    "nonmonotonic",
    "rewinds",
    "commits_back",
    "unseen",
    "group_gaps",
    "group_rereads",
    "client_errors",
)
FAILING: Final = tuple(name for name in ANOMALIES if name != "group_rereads")


@dataclass(frozen=True)
class Finding:
    """The cases of an anomaly: their number, and the first few in words."""

    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The judge's verdict on a run."""

    findings: Mapping[str, Finding]
    acked: int  # live records, without the preload
    preloaded: int
    aborted: int
    indefinite: int
    final_records: int
    offsets_identical: bool

    def count(self, anomaly: str) -> int:
        return self.findings[anomaly].count

    @property
    def clean(self) -> bool:
        return self.offsets_identical and all(self.count(name) == 0 for name in FAILING)

    @property
    def named(self) -> dict[str, Finding]:
        """The anomalies that were found."""
        return {name: finding for name, finding in self.findings.items() if finding.count}

    def as_json(self) -> dict[str, object]:
        return {
            **{name: finding.count for name, finding in self.findings.items()},
            **{name: value for name, value in vars(self).items() if name != "findings"},
            "clean": self.clean,
            "examples": {name: list(finding.examples) for name, finding in self.named.items()},
        }


@dataclass
class _Tally:
    limit: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ANOMALIES, 0))
    examples: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in ANOMALIES})

    def add(self, anomaly: str, example: str) -> None:
        self.counts[anomaly] += 1
        if self.counts[anomaly] <= self.limit:
            self.examples[anomaly].append(example)

    def findings(self) -> dict[str, Finding]:
        return {name: Finding(self.counts[name], tuple(self.examples[name])) for name in ANOMALIES}


class _Judge:
    def __init__(self, tally: _Tally, topics: Collection[str] | None) -> None:
        self.tally = tally
        self.topics = topics
        self.sends = Sends()
        self.transactions = TransactionBooks()
        self.order = GroupOrder(tally.add)
        self.early: dict[int, tuple[int, str]] = {}  # records that were read before they were sent: when and where
        self.reads: dict[tuple[str, int], Reads] = {}
        self.subscribed: dict[str, set[str]] = {}
        self.preloaders: set[str] = set()
        self.final_records = 0
        self.visible: dict[int, tuple[array[int], array[int]]] = {}  # slot → offsets, numbers
        self.offsets_identical = True
        self._newest: dict[tuple[str, int], tuple[int, str]] = {}
        self._visible_at: dict[int, dict[int, int]] = {}
        self._handlers: Mapping[str, Callable[[Event], None]] = {
            "open": self._take_open,
            "send": self._take_send,
            "begin": self._take_transaction,
            "txn": self._take_transaction,
            "poll": self._take_poll,
            "commit": self._take_commit,
            "reset": self._take_reset,
            "assign": self._take_move,
            "revoke": self._take_move,
            "error": self._client_error,
        }

    def concerns(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    # -- the history ---------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        handle = self._handlers.get(event.f)
        if handle is not None:
            handle(event)

    def _take_send(self, event: Event) -> None:
        if self.concerns(event.topic):
            for number in self.sends.take(event, live=event.process not in self.preloaders):
                early = self.early.pop(number, None)
                if event.type != "invoke":
                    continue
                self._judge_early(early, event, "it was sent")
                if event.txn >= 0:
                    self.transactions.send(event, number)
        if event.type != "invoke" and event.error and event.error != ABORTED:
            self._client_error(event)

    def _take_transaction(self, event: Event) -> None:
        transaction = self.transactions.take(event)
        if event.f == "txn" and event.type == "invoke" and transaction.commit_asked:
            self._judge_early(transaction.early, event, "the commit of its transaction was asked for")
            transaction.early = None
        if event.error and event.error != ABORTED:
            self._client_error(event)

    def _judge_early(self, read: tuple[int, str] | None, event: Event, what: str) -> None:
        if read is not None and read[0] < event.m:
            self.tally.add("premature", f"{read[1]}, {(event.m - read[0]) / 1e6:.1f} ms before {what}")

    def _take_open(self, event: Event) -> None:
        if event.type != "info":
            return
        if event.detail.get("role") == "preload":
            self.preloaders.add(event.process)
        elif event.detail.get("role") == "consumer":
            self.subscribed.setdefault(event.detail["group"], set()).update(event.detail["topics"])

    def _client_error(self, event: Event) -> None:
        where = f" {event.value} {event.topic}-{event.partition}" if event.value else ""
        text = event.detail.get("text", "")
        self.tally.add("client_errors", f"{event.process}: {event.f}{where} {event.error} {text}".rstrip())

    def _reads_of(self, group: str, topic: str, partition: int) -> Reads:
        return self.reads.setdefault((group, self.sends.slot_of(topic, partition)), Reads())

    def _take_poll(self, event: Event) -> None:
        if not self.concerns(event.topic):
            return
        if event.type != "ok":  # the reader itself saw content that does not belong to the id
            self.tally.add("altered", f"{event.value} read at {event.topic}-{event.partition}:{event.offset}")
            return
        self.order.poll(event, (event.topic, event.partition))
        reads = self._reads_of(event.group, event.topic, event.partition)
        for step, value in enumerate(event.values):
            number = self.sends.intern(value)
            reads.poll(event.offset + step, number)
            self._note_early(event, event.offset + step, number)

    def _note_early(self, event: Event, offset: int, number: int) -> None:
        unsent = self.sends.slot[number] < 0
        transaction = None if unsent else self.transactions.uncommitted(number)
        if not unsent and transaction is None:
            return
        where = f"{self.sends.ids[number]} was read by {event.process} at {event.topic}-{event.partition} at {offset}"
        if transaction is None:
            self.early.setdefault(number, (event.m, where))
        elif transaction.early is None:
            transaction.early = (event.m, where)

    def _take_move(self, event: Event) -> None:
        move = self.order.assign if event.f == "assign" else self.order.revoke
        for topic, partition, _ in event.positions:
            if self.concerns(topic):
                move(event, (topic, partition))

    def _take_commit(self, event: Event) -> None:
        for topic, partition, position in event.positions:
            if self.concerns(topic):
                self.order.commit(event, (topic, partition), position)
                if event.type == "ok":
                    self._reads_of(event.group, topic, partition).commit(position)
        if event.type == "fail" and event.error not in REBALANCE_ERRORS:
            self._client_error(event)

    def _take_reset(self, event: Event) -> None:
        for topic, partition, position in event.positions:
            if self.concerns(topic):
                self.order.reset(event, (topic, partition), position)
                self._reads_of(event.group, topic, partition).reset(position)

    def settle(self) -> None:
        """Close the history, before the first record of the target is seen."""
        for _, transaction in self.transactions:
            if transaction.impossible:
                for number in transaction.records:
                    self.sends.status[number] = WAS_ABORTED

    # -- the target ----------------------------------------------------------------------------

    def see(self, record: FinalRecord) -> None:
        sends = self.sends
        self.final_records += 1
        slot = sends.slot_of(record.topic, record.partition)
        place = place_of((record.topic, record.partition), record.offset)
        text = id_in(record.value)
        number = sends.number.get(text) if text is not None else None
        if number is None or text is None or sends.slot[number] < 0:
            self._see_foreign(text, slot, record.offset, place)
            return
        if sends.status[number] >= REFUSED:
            why = "aborted" if sends.status[number] == WAS_ABORTED else "refused"
            self.tally.add("extra", f"{text} ({why}) at {place}")
            return
        offsets, numbers = self.visible.setdefault(slot, (array("q"), array("i")))
        offsets.append(record.offset)
        numbers.append(number)
        if sends.found[number] >= 0:
            self.tally.add("duplicated", f"{text} at {sends.place_found(number)} and {place}")
            return
        sends.found[number] = record.offset
        sends.found_slot[number] = slot
        self._judge_place(number, slot, record.offset, place)
        self._judge_content(text, number, record, place)
        self._judge_order(text, slot, place)

    def _see_foreign(self, text: str | None, slot: int, offset: int, place: str) -> None:
        expected = self.sends.acked_at(slot, offset)
        if expected is not None and self.sends.found[expected] < 0:
            self.sends.found[expected] = offset
            self.sends.found_slot[expected] = slot
            self.tally.add("altered", f"{self.sends.ids[expected]} at {place}: its id cannot be read there")
        else:
            self.tally.add("extra", f"{text or 'a record without an id'} (never sent) at {place}")

    def _judge_place(self, number: int, slot: int, offset: int, place: str) -> None:
        sends = self.sends
        if slot != sends.slot[number] or sends.offset[number] not in (-1, offset):
            self.offsets_identical = False
            self.tally.add("misplaced", f"{sends.place(number)} stands at {place}")

    def _judge_content(self, text: str, number: int, record: FinalRecord, place: str) -> None:
        content = content_of(text, int(text.rpartition(":")[2]))
        sent = {**content._asdict(), "timestamp": self.sends.timestamps.get(number, record.timestamp)}
        wrong = [name for name in ("value", "key", "headers", "timestamp") if getattr(record, name) != sent[name]]
        if wrong:
            self.tally.add("altered", f"{text} at {place}: {', '.join(wrong)}")

    def _judge_order(self, text: str, slot: int, place: str) -> None:
        run, _, seq = text.rpartition(":")
        key = (run.rpartition(".")[0], slot)
        newest, before = self._newest.get(key, (-1, ""))
        if int(seq) <= newest:
            self.tally.add("reordered", f"{text} at {place} stands behind {before}")
        else:
            self._newest[key] = (int(seq), text)

    # -- the comparison ------------------------------------------------------------------------

    def conclude(self) -> None:
        sends = self.sends
        for number, status in enumerate(sends.status):
            if status == ACKED and sends.found[number] < 0:
                self.tally.add("lost", f"{sends.place(number)} was acknowledged")
        self._judge_transactions()
        judged: set[int] = set()
        for (group, slot), reads in self.reads.items():
            self._judge_reads(group, slot, reads, judged)
        for group, topics in self.subscribed.items():
            for slot, (topic, partition) in enumerate(sends.slot_names):
                if topic in topics and slot in self.visible:
                    self._judge_progress(group, slot, self._reads_of(group, topic, partition))

    def _judge_transactions(self) -> None:
        for name, transaction in self.transactions:
            if not transaction.unknown:
                continue
            missing = [number for number in transaction.records if self.sends.found[number] < 0]
            if 0 < len(missing) < len(transaction.records):
                what = f"{name}, whose outcome nobody was told, has {len(transaction.records)} records"
                self.tally.add("torn", f"{what}, and {len(missing)} are missing: {self.sends.place(missing[0])}")

    def _judge_reads(self, group: str, slot: int, reads: Reads, judged: set[int]) -> None:
        sends = self.sends
        name = sends.slot_names[slot]
        known: set[int] = set()
        for offset, number in zip(reads.offsets, reads.numbers, strict=True):
            if offset in known:
                self.tally.add("group_rereads", f"{group} read {place_of(name, offset)} again")
            known.add(offset)
            if (sends.found[number] == offset and sends.found_slot[number] == slot) or number in judged:
                continue
            judged.add(number)
            read = f"{sends.ids[number]}, read by {group} at {place_of(name, offset)}"
            if sends.status[number] >= REFUSED:
                self.tally.add("extra", f"{read}, was never sent, refused or aborted")
            elif sends.found[number] >= 0:
                if not self._is_second_copy(number, slot, offset):
                    self.tally.add("misplaced", f"{read}, stands at {sends.place_found(number)}")
            elif sends.status[number] != ACKED:  # an acknowledged record is already named
                self.tally.add("lost", f"{read}, is not on the target")

    def _is_second_copy(self, number: int, slot: int, offset: int) -> bool:
        """Return whether the group read the second of two copies, which is already named as duplicated."""
        if slot not in self._visible_at:
            offsets, numbers = self.visible.get(slot, (array("q"), array("i")))
            self._visible_at[slot] = dict(zip(offsets, numbers, strict=True))
        return self._visible_at[slot].get(offset) == number

    def _judge_progress(self, group: str, slot: int, reads: Reads) -> None:
        sends = self.sends
        known = set(reads.offsets)
        bound = max(reads.committed, max(known) + 1 if known else 0)
        for offset, number in zip(*self.visible[slot], strict=True):
            if offset < reads.start or offset in known or reads.skipped(offset):
                continue
            what = f"{group} never read {sends.ids[number]}, {sends.place_at(slot, offset)}"
            if offset < bound:
                self.tally.add("group_gaps", f"{what}, and went on to {bound}")
            elif sends.status[number] == ACKED:
                self.tally.add("unseen", what)


def check(
    history: Iterable[Event],
    final_read: Iterable[FinalRecord],
    *,
    topics: Collection[str] | None = None,
    examples: int = 10,
) -> Verdict:
    """Judge a run by the topics in `topics`, or by every topic of the history."""
    tally = _Tally(examples)
    judge = _Judge(tally, topics)
    for event in history:
        judge.take(event)
    judge.settle()
    for record in final_read:
        if judge.concerns(record.topic):
            judge.see(record)
    judge.conclude()
    sends = judge.sends
    acked_live = sum(1 for status, live in zip(sends.status, sends.live, strict=True) if status == ACKED and live)
    return Verdict(
        findings=tally.findings(),
        acked=acked_live,
        preloaded=sends.status.count(ACKED) - acked_live,
        aborted=sends.status.count(WAS_ABORTED),
        indefinite=sends.status.count(INDEFINITE),
        final_records=judge.final_records,
        offsets_identical=judge.offsets_identical and tally.counts["misplaced"] == 0,
    )
