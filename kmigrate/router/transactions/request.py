"""A transaction request of a client, as `router.transactions.handler` applies its rules to the request."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.protocol.api import ApiKey, Message, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.conversation import Future
from kmigrate.router.shared.deferred_partitions import ProducerIdentity
from kmigrate.router.shared.state import Buffer, ClientLink
from kmigrate.router.transactions.next_epoch import next_epoch_code
from kmigrate.router.wire.transactions import error_answer, partition_codes, source_request

__all__ = ["AnswerNow", "DecideAnew", "TxnRequest"]


class AnswerNow(Exception):
    """Ends the conversation about a request: every part of the request is answered with the same code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class DecideAnew(Exception):
    """Begins the decision about a request anew, because the routing table is newer or the router has learned more."""


@dataclass(slots=True, eq=False)
class TxnRequest:
    """A request, and the producer identity under which the client sent the request."""

    head: RequestHead
    frame: bytearray
    request: Message
    name: str
    """Transactional id."""
    producer_id: int
    epoch: int
    software: str
    """Name and version of the client's library (KIP-511); '' if the client has not said."""
    deadline: float | None = None
    caught_up: bool = False
    """True if the records of other routers were read for this request."""
    disowned: bool = False
    """True if the source refused the producer's identity, and the records written since were read."""

    @property
    def producer(self) -> ProducerIdentity:
        return self.name, self.producer_id, self.epoch

    @property
    def next_epoch_code(self) -> Code:
        """The code at which the client aborts and asks for the next epoch."""
        return next_epoch_code(self.software)

    def to_target(self, client: ClientLink) -> Future[bytearray]:
        """Send the request to the target unchanged."""
        return client.ask_target([self.frame], self.head.correlation_id)

    def for_source(self, producer_id: int, epoch: int) -> Message:
        """Return the request under a source's producer id and epoch."""
        return source_request(self.head, self.request, producer_id, epoch)

    def answer(self, code: int) -> bytes:
        """Return an answer with the same code for every part of the request; 0 is success."""
        return error_answer(self.head, self.request, code)

    def read(self, frame: Buffer) -> Message:
        """Decode an answer to the request in the client's version."""
        return read_answer(self.head, bytearray(frame))

    def codes_in(self, answer: Buffer) -> set[int]:
        """Return the codes of an answer; 0 among them lets something into the transaction."""
        message = self.read(answer)
        if self.head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return set(partition_codes(message).values())
        return {code_of(message.error_code)}

    def granted_in(self, answer: Buffer) -> tuple[frozenset[str], frozenset[str]]:
        """Return the topics and the groups that an answer lets into the transaction."""
        message = self.read(answer)
        if self.head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return frozenset(topic for (topic, _), code in partition_codes(message).items() if not code), frozenset()
        return frozenset(), frozenset() if code_of(message.error_code) else frozenset({str(self.request.group_id)})

    def code_in(self, answer: Buffer) -> int:
        """Return the code of an answer with a single code."""
        return code_of(self.read(answer).error_code)
