"""Conversations: generators that ask a cluster and go on with the response, in the event in which the response arrives.

    answer = yield from self._client.ask_target([frame], head.correlation_id)
    marks = yield from self._shared.backend.producer_mark(topic, partition, producer_id)

A conversation does no I/O and never awaits: between two `yield from` no other event is handled. The model is psycopg's
generators and mitmproxy's layers. Only the two measured hot paths, Produce and Fetch requests, use callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, Generic, TypeVar

from kmigrate.errors import ProtocolViolation

__all__ = ["Conversation", "Conversations", "Future", "together"]

T = TypeVar("T")
_NOT_SET: Any = object()


class Future(Generic[T]):
    """A value that arrives once, in a later event. Unlike asyncio's, without a loop: waiters go on within `set`."""

    __slots__ = ("_value", "_waiting")

    def __init__(self, value: T = _NOT_SET) -> None:
        self._value: T = value
        self._waiting: list[Callable[[T], None]] = []

    def set(self, value: T) -> None:
        """Deliver the value; a second value is an error."""
        if self._value is not _NOT_SET:
            raise RuntimeError("a future takes one value")
        self._value = value
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(value)

    def then(self, call: Callable[[T], None]) -> None:
        """Call with the value, at once if the value is there."""
        if self._value is _NOT_SET:
            self._waiting.append(call)
        else:
            call(self._value)

    def __iter__(self) -> Generator[Future[Any], None, T]:
        if self._value is _NOT_SET:
            yield self
        return self._value


Conversation = Generator[Future[Any], None, T]


class Conversations:
    """The conversations of one owner, such as a client connection; all of them end with the owner."""

    def __init__(self, on_violation: Callable[[ProtocolViolation], None] | None = None) -> None:
        """Take what handles a violation of the protocol; otherwise the event in which the conversation runs gets it."""
        self._on_violation = on_violation
        self._open: dict[Generator[Future[Any], None, Any], None] = {}
        self._closed = False

    def start(self, conversation: Conversation[T]) -> Future[T]:
        """Begin a conversation, unless closed; return the future of its result, which never arrives after `close`."""
        result = Future[T]()

        def go_on(_: object) -> None:
            if conversation not in self._open:
                conversation.close()
                return
            try:
                awaited = next(conversation)
            except StopIteration as end:
                self._open.pop(conversation, None)
                result.set(end.value)
            except BaseException as error:
                self._open.pop(conversation, None)
                if self._on_violation is None or not isinstance(error, ProtocolViolation):
                    raise
                self._on_violation(error)
            else:
                if conversation in self._open:
                    awaited.then(go_on)
                else:
                    conversation.close()

        if not self._closed:
            self._open[conversation] = None
        go_on(None)
        return result

    def close(self) -> None:
        """End conversations where they wait (`finally` runs); the running conversation ends at its next wait."""
        self._closed = True
        waiting = [each for each in self._open if getgeneratorstate(each) != GEN_RUNNING]
        self._open.clear()
        for conversation in waiting:
            conversation.close()


def together(conversations: Iterable[Conversation[T]]) -> Conversation[list[T]]:
    """Run conversations at the same time; return their results in the order of the conversations."""
    owner = Conversations()
    try:
        waiting = [owner.start(each) for each in conversations]
        results = []
        for each in waiting:
            result = yield from each
            results.append(result)
        return results
    finally:
        owner.close()
