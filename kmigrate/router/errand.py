"""One transaction request of a client on its way through the rules (`router.transactions`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.transactions import ADD_PARTITIONS, error_answer, partition_codes, read_answer
from kmigrate.router.core import Buffer

__all__ = ["Errand"]


@dataclass(slots=True, eq=False)
class Errand:
    """A request, whom it speaks for, and where its answer goes."""

    head: RequestHead
    frame: bytearray
    request: Any
    reply: Callable[[Buffer], None]
    name: str
    """The transactional id."""
    producer_id: int
    epoch: int
    deadline: float | None = None
    caught_up: bool = False
    """Whether what other routers have written was read for it."""
    disowned: bool = False
    """Whether the source took no word of its identity, and what has been written since was read."""

    @property
    def holder(self) -> tuple[str, int, int]:
        """Whom it speaks for."""
        return self.name, self.producer_id, self.epoch

    def fail(self, code: int) -> None:
        """Answer everything in it with one code; 0 is a success."""
        self.reply(error_answer(self.head, self.request, code))

    def read(self, frame: bytearray) -> Any:
        """A cluster's answer to it."""
        return read_answer(type(self.request), frame)

    def codes_in(self, answer: Buffer) -> set[int]:
        """Return the codes of an answer; 0 among them lets something into the transaction."""
        told = self.read(bytearray(answer))
        if self.head.api_key == ADD_PARTITIONS:
            return set(partition_codes(told).values())
        return {code_of(told.error_code)}

    def code_in(self, frame: bytearray) -> int:
        """The code of an answer that has one."""
        return code_of(self.read(frame).error_code)
