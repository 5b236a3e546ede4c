"""A transaction request of a client, as `router.transactions.handler` applies its rules to the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kmigrate.protocol.api import ApiKey, read_answer
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.state import Buffer
from kmigrate.router.wire.transactions import error_answer, partition_codes

__all__ = ["TxnRequest"]


@dataclass(slots=True, eq=False)
class TxnRequest:
    """A request with its holder and the callback for its answer."""

    head: RequestHead
    frame: bytearray
    request: Any
    reply: Callable[[Buffer], None]
    name: str
    """Transactional id."""
    producer_id: int
    epoch: int
    deadline: float | None = None
    caught_up: bool = False
    """True if the records of other routers were read for this request."""
    disowned: bool = False
    """True if the source refused the holder's identity, and the records written since were read."""

    @property
    def holder(self) -> tuple[str, int, int]:
        """Transactional id, producer id and epoch of the request."""
        return self.name, self.producer_id, self.epoch

    def fail(self, code: int) -> None:
        """Answer every part of the request with the same code; 0 is success."""
        self.reply(error_answer(self.head, self.request, code))

    def read(self, frame: bytearray) -> Any:
        """Decode a cluster's answer to the request."""
        return read_answer(type(self.request), frame)

    def codes_in(self, answer: Buffer) -> set[int]:
        """Return the codes of an answer; 0 among them lets something into the transaction."""
        told = self.read(bytearray(answer))
        if self.head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return set(partition_codes(told).values())
        return {code_of(told.error_code)}

    def code_in(self, frame: bytearray) -> int:
        """Return the code of an answer with a single code."""
        return code_of(self.read(frame).error_code)
