"""Shows configuration resources as clients know them: the router's node ids, and the source's values of topics.

An admin client names a broker by the id that Metadata shows, but the asked broker knows only its own id. A client that
names the target's own id gets an answer with the target's own id.

Until the promote, the topic at the target keeps all records, in whatever size they come (`mirror.upkeep.configs`).
Clients shall see the configuration that they know: Kafka Connect and Schema Registry end at their start where their
topics are not compacted.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmigrate.model.digits import whole_number
from kmigrate.model.routes import TopicRoute
from kmigrate.protocol.api import ApiKey, Message, change_each, frame_answer, read_answer, replace
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.apis import APIS
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["TOPIC_RESOURCE", "asked_brokers", "make_names_real", "show_names", "show_own_configs"]

TOPIC_RESOURCE = 2
_BROKER_RESOURCES = frozenset({4, 8})
"""Resource types BROKER and BROKER_LOGGER."""
_SET_ON_TOPIC = 1
"""Source type of a value that is set on the topic itself."""


def asked_brokers(request: Message, book: AddressBook) -> frozenset[str]:
    """Return the brokers that a request names as the router shows them."""
    names = (str(each.resource_name) for each in getattr(request, "resources", None) or () if _is_broker(each))
    return frozenset(name for name in names if _real(name, book) != name)


def make_names_real(request: Message, book: AddressBook) -> Message:
    """Return the request with the target's own ids."""
    return change_each(request, ("resources",), lambda each: _named(each, _real(str(each.resource_name), book)))


def show_names(answer: bytearray, head: RequestHead, book: AddressBook, asked: frozenset[str]) -> bytes:
    """Return the answer with the ids that the client named, or the router's (LIST_CONFIG_RESOURCES names no ids)."""

    def shown(resource: Message) -> Message:
        node = whole_number(str(resource.resource_name))
        name = str(resource.resource_name) if node is None else str(book.shown(node))
        return _named(resource, name) if name in asked or head.api_key == ApiKey.LIST_CONFIG_RESOURCES else resource

    message = change_each(read_answer(head, answer), (APIS[head.api_key].results,), shown)
    return frame_answer(message, head.correlation_id)


def show_own_configs(answer: bytearray, head: RequestHead, topics: Mapping[str, TopicRoute]) -> bytearray:
    """Return the answer with the topics' own values in place of those that stand only while the topics are mirrored."""

    def shown(result: Message) -> Message:
        route = topics.get(str(result.resource_name)) if int(result.resource_type) == TOPIC_RESOURCE else None
        own = route.own_configs if route is not None else {}
        return change_each(
            result, ("configs",), lambda config: _own(config, own[config.name]) if config.name in own else config
        )

    message = change_each(read_answer(head, answer), ("results",), shown)
    return bytearray(frame_answer(message, head.correlation_id))


def _own(config: Message, value: str) -> Message:
    synonyms = change_each(
        config, ("synonyms",), lambda each: replace(each, value=value) if int(each.source) == _SET_ON_TOPIC else each
    )
    return replace(synonyms, value=value)


def _is_broker(resource: Message) -> bool:
    return int(getattr(resource, "resource_type", 0)) in _BROKER_RESOURCES


def _named(resource: Message, name: str) -> Message:
    return replace(resource, resource_name=name) if _is_broker(resource) else resource


def _real(name: str, book: AddressBook) -> str:
    node = whole_number(name)
    return name if node is None else str(book.real(node))
