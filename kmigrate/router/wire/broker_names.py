"""Translates node ids in configuration resources, which name brokers and their loggers by an id in text.

An admin client takes the id from Metadata, so the client names a broker as the router shows the broker. The asked
broker knows only its own id. A client that names the target's own id gets an answer with the target's own id.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kmigrate.model.digits import whole_number
from kmigrate.protocol.api import ApiKey, answer_type, decode_answer, frame_answer
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.apis import APIS
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["asked_brokers", "make_names_real", "show_names"]


Buffer = bytes | bytearray | memoryview
_OF_BROKERS = frozenset({4, 8})
"""Resource types BROKER and BROKER_LOGGER."""


def asked_brokers(request: Any, book: AddressBook) -> frozenset[str]:
    """Return the brokers that a request names as the router shows them."""
    named = (resource for resource in getattr(request, "resources", None) or () if _of_broker(resource))
    return frozenset(name for name in (str(each.resource_name) for each in named) if _real(name, book) != name)


def make_names_real(request: Any, book: AddressBook) -> Any:
    """Return the request with the target's own ids."""
    resources = tuple(_named(each, _real(str(each.resource_name), book)) for each in request.resources)
    return dataclasses.replace(request, resources=resources)


def show_names(answer: bytearray, head: RequestHead, book: AddressBook, asked: frozenset[str]) -> Buffer:
    """Return the answer with the ids that the client asked for.

    LIST_CONFIG_RESOURCES names brokers without being asked for names, so there every id is shown as the router's.
    """
    kind = answer_type(head)
    message = decode_answer(kind, answer)
    where = APIS[head.api_key].results
    shown = []
    for each in getattr(message, where):
        name = str(each.resource_name)
        node = whole_number(name)
        other = name if node is None else str(book.shown(node))
        told = other in asked or head.api_key == ApiKey.LIST_CONFIG_RESOURCES
        shown.append(_named(each, other) if told else each)
    return frame_answer(dataclasses.replace(message, **{where: tuple(shown)}), head.correlation_id)


def _of_broker(resource: Any) -> bool:
    return int(getattr(resource, "resource_type", 0)) in _OF_BROKERS


def _named(resource: Any, name: str) -> Any:
    return dataclasses.replace(resource, resource_name=name) if _of_broker(resource) else resource


def _real(name: str, book: AddressBook) -> str:
    node = whole_number(name)
    return name if node is None else str(book.real(node))
