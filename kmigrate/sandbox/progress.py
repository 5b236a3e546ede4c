"""Progress of the groups against the acknowledged records, followed in the clients' own histories.

Readers may be stopped once no group is behind. If readers stopped earlier, records would count as unseen although
nothing is wrong with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from kmigrate.sandbox.history import Slot

__all__ = ["Progress"]

_ACKED = b'"type":"ok","f":"send"'
_READ = b'"type":"ok","f":"poll"'
_COMMITTED = b'"type":"ok","f":"commit"'
_RESET = b'"type":"ok","f":"reset"'


class Progress:
    """The last acknowledged and the last read offset of every partition, kept up to date from files."""

    def __init__(self, subscribed: Mapping[str, Iterable[str]]) -> None:
        self._subscribed = {group: frozenset(topics) for group, topics in subscribed.items()}
        self._read_to: dict[Path, int] = {}
        self._acked: dict[Slot, int] = {}
        self._read: dict[tuple[str, Slot], int] = {}

    def update(self, histories: Iterable[Path]) -> None:
        """Take in the lines that were written since the last call."""
        for path in histories:
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read_to[path] = self._read_to.get(path, 0) + len(line)
                    if _ACKED in line or _READ in line or _COMMITTED in line or _RESET in line:
                        self._take(line)

    def _take(self, line: bytes) -> None:
        event = json.loads(line)
        if event["f"] == "send":
            slot = (event["topic"], event["partition"])
            self._acked[slot] = max(event["offset"] + event.get("records", 1) - 1, self._acked.get(slot, -1))
        elif event["f"] == "poll":
            slot = (event["topic"], event["partition"])
            self._reached(event["group"], slot, event["offset"] + len(event["values"]) - 1)
        else:  # below a committed position, also if somebody set the position, a group need not read
            for topic, partition, position in event["positions"]:
                self._reached(event["group"], (topic, partition), position - 1)

    def _reached(self, group: str, slot: Slot, offset: int) -> None:
        self._read[group, slot] = max(offset, self._read.get((group, slot), -1))

    def behind(self) -> list[tuple[str, str, int, int]]:
        """Return group, topic, partition and the number of offsets that the group has still to read."""
        return [
            (group, slot[0], slot[1], acked - self._read.get((group, slot), -1))
            for slot, acked in sorted(self._acked.items())
            for group, topics in sorted(self._subscribed.items())
            if slot[0] in topics and self._read.get((group, slot), -1) < acked
        ]
