"""The reads and commits of a group member, written down in runs: a line for each stretch of consecutive offsets.

The content of each record is judged at once, because a record that a reader was given is gone afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kmigrate.sandbox.history import HistoryWriter, Position, Slot
from kmigrate.sandbox.payload import AnyHeaders, content_of, id_in, plain_headers

__all__ = ["ReadLog"]

_COMMIT_SECONDS = 0.5


class ReadLog:
    """The reads of a member, on their way to the member's history."""

    def __init__(self, group: str, history: HistoryWriter) -> None:
        self._group = group
        self._history = history
        self._runs: dict[Slot, tuple[int, list[str]]] = {}
        self._owned: set[Slot] = set()
        """The partitions that the member was assigned. The member commits no other partitions."""
        self._next: dict[Slot, int] = {}
        self._asked: dict[Slot, int] = {}
        self.waiting = 0
        self._commit_at = time.monotonic() + _COMMIT_SECONDS

    def read(
        self, topic: str, partition: int, offset: int, value: bytes | None, key: bytes | None, headers: AnyHeaders
    ) -> None:
        slot = (topic, partition)
        if slot in self._owned:
            self._next[slot] = offset + 1
        text = id_in(value)
        if text is None:
            text = f"foreign:{offset}"
        else:
            content = content_of(text, int(text.rpartition(":")[2]))
            if (value, key, plain_headers(headers)) != (content.value, content.key, content.headers):
                where = {"topic": topic, "partition": partition, "offset": offset}
                self._record("fail", "poll", **where, value=text, error="altered")
        run = self._runs.get(slot)
        if run is not None and run[0] + len(run[1]) != offset:
            self._write_run(slot, *run)
            run = None
        if run is None:
            run = self._runs[slot] = (offset, [])
        run[1].append(text)
        self.waiting += 1

    def write(self) -> None:
        for slot, (first, values) in self._runs.items():
            self._write_run(slot, first, values)
        self._runs.clear()
        self.waiting = 0
        self._history.flush()

    def _write_run(self, slot: Slot, first: int, values: list[str]) -> None:
        self._record("ok", "poll", topic=slot[0], partition=slot[1], offset=first, values=values)

    def commit_due(self) -> bool:
        """Return whether the member is to commit now, which is every half second."""
        now = time.monotonic()
        due = now >= self._commit_at
        if due:
            self._commit_at = now + _COMMIT_SECONDS
        return due

    def uncommitted(self) -> list[Position]:
        """Write down and return the positions to commit now: the next positions that were not asked for before."""
        self.write()
        news = [(*slot, after) for slot, after in self._next.items() if self._asked.get(slot) != after]
        if news:
            self._asked.update({(topic, partition): after for topic, partition, after in news})
            self._record("invoke", "commit", positions=news)
        return news

    def committed(self, positions: Sequence[Position], error: str) -> None:
        if error:
            for topic, partition, _ in positions:
                self._asked.pop((topic, partition), None)
            self._record("fail", "commit", positions=positions, error=error)
        else:
            self._record("ok", "commit", positions=positions)

    def assigned(self, positions: Sequence[Position]) -> None:
        self.write()
        self._owned.update((topic, partition) for topic, partition, _ in positions)
        self._record("ok", "assign", positions=positions)

    def revoked(self, positions: Sequence[Position], *, lost: bool = False) -> None:
        self.write()
        for topic, partition, _ in positions:
            self._owned.discard((topic, partition))
            self._next.pop((topic, partition), None)
            self._asked.pop((topic, partition), None)
        self._record("ok", "revoke", positions=positions, detail={"lost": lost})

    def _record(self, kind: str, f: str, **fields: object) -> None:
        self._history.record(kind, f, group=self._group, **fields)
        if f != "poll":
            self._history.flush()
