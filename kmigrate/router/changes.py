"""What clients ask to be changed of topics: of mirrored ones it is answered here, all else is for the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.addresses import encode_request
from kmigrate.router.apis.admin import CREATE_TOPICS, answer_with, split_mirrored
from kmigrate.router.core import Core, Edge
from kmigrate.router.creation import create_topics

__all__ = ["ask_change"]


def ask_change(
    core: Core, edge: Edge, head: RequestHead, frame: bytearray, request: Any, then: Callable[[bytearray], None]
) -> None:
    """Ask the target on behalf of a client, as far as it is the target's to say; `then` gets one answer to all."""
    rest, told, refused = split_mirrored(head, request, core.mirrored())
    if refused:
        who = head.client_id or "a client"
        core.outside.say(f"{who}: a change of mirrored topic {', '.join(refused)} was refused until its promote")
    if rest is None:
        then(answer_with(head, told))
        return

    def answered(answer: bytearray) -> None:
        then(answer_with(head, told, answer) if told else answer)

    if told:
        frame = encode_request(frame, head, rest)
    if head.api_key == CREATE_TOPICS:
        create_topics(core, edge, head, frame, rest, answered)
    else:
        edge.to_target([frame], head.correlation_id, answered)
