"""Counts the errors in Produce answers, by partition; an answer that says that all is stored is not read."""

from __future__ import annotations

from collections.abc import Iterable

from kmigrate.protocol.api import ApiKey
from kmigrate.router.shared.served import ServedRequests
from kmigrate.router.shared.state import Buffer
from kmigrate.router.wire.produce import PartitionAnswer, ProduceRequest, all_stored, parse_answer, without_hints

__all__ = ["count_errors", "show_answer"]


def show_answer(frame: bytearray, request: ProduceRequest, served: ServedRequests) -> Buffer:
    """Return the target's answer to a whole request as the client may see the answer, and count its errors."""
    if all_stored(frame, request):
        return frame
    answers, _, _ = parse_answer(frame, request.version)
    count_errors(answers, served)
    return without_hints(frame, request)


def count_errors(answers: Iterable[PartitionAnswer], served: ServedRequests) -> None:
    if codes := [answer.error for answer in answers if answer.error]:
        served.failed(ApiKey.PRODUCE, codes)
