"""No client reaches kmigrate's own topics through a router: by name, by topic id, in any API and version."""

from __future__ import annotations

import dataclasses
import struct
import typing
import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import API_NAMES, blank, decode_answer, element_type, encode_body, entity, frame_answer
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import peek_request
from kmigrate.router.wire.apis import APIS, OFFERED
from kmigrate.router.wire.own_topics import HIDING, REFUSING
from tests.hostile.requests import request
from tests.unit.router.router_fakes import Stage, batch, route

OWN, OTHER = "__kmigrate_state", "orders"
OWN_ID, OTHER_ID = uuid.UUID(int=77 << 64 | 5), uuid.UUID(int=99 << 64 | 6)
_UNASKED = {9, 90}
"""APIs whose requests read committed offsets of a group, and no topic."""
_NAMES = {"name", "topic", "topic_name", "resource_name", "resource_name_filter", "topic_names"}


def _value(hint: Any, name: str, own: bool) -> Any:
    """Return a value for a field of a request; names and ids stand for some of the topics."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return (_made(inner, own) if dataclasses.is_dataclass(inner) else _value(inner, name, own),)
    optional = type(None) in typing.get_args(hint)
    for plain in [each for each in typing.get_args(hint) if each is not type(None)] if optional else [hint]:
        if typing.get_origin(plain) is tuple:
            return _value(plain, name, own)
        if plain is uuid.UUID:
            return OWN_ID if own else OTHER_ID
        if not isinstance(plain, type) or not issubclass(plain, int | str):
            return None if optional else blank(cast("Any", plain)) if dataclasses.is_dataclass(plain) else plain()
        if issubclass(plain, str):
            return OWN if own else OTHER
        if issubclass(plain, int):
            return {"resource_type": 2, "resource_type_filter": 2}.get(name, plain(3) if plain is not bool else False)
    raise AssertionError((name, hint))


def _made(kind: Any, own: bool) -> Any:
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        names_it = field.name in _NAMES | {"topic_id", "topics"} or "partition" in field.name
        if names_it or field.name.startswith("resource_type") or field.default is dataclasses.MISSING:
            values[field.name] = _value(hint, field.name, own)
    if "topic_id" in values and "name" in values:  # Either field names the topic.
        values["name"] = None if own else OTHER
    return blank(kind, **values)


def _request(api: int, version: int, *kinds: bool) -> Any:
    kind = entity(api, version, "request")
    message = blank(kind)
    for field in APIS[api].topics:
        if hasattr(message, field):
            hint = typing.get_type_hints(kind)[field]
            tuples = [each for each in (hint, *typing.get_args(hint)) if typing.get_origin(each) is tuple]
            inner = typing.get_args(tuples[0])[0]
            made = tuple(
                _made(inner, own) if dataclasses.is_dataclass(inner) else (OWN if own else OTHER) for own in kinds
            )
            message = dataclasses.replace(message, **{field: made})
    return message


def _offered() -> Iterator[tuple[int, int]]:
    for api in REFUSING:
        for version in range(OFFERED[api].versions[0], OFFERED[api].versions[1] + 1):
            yield api, version


def _stage() -> Stage:
    stage = Stage(route("mirrored", Serve.FORWARD))
    stage.shared.own_ids = frozenset({OWN_ID.bytes})
    return stage


def _names_own(data: bytes | bytearray) -> bool:
    return OWN.encode() in data or OWN_ID.bytes in data


def _errors(message: Any) -> list[int]:
    """Return all error codes in the elements of an answer, at any depth."""
    found: list[int] = []
    if isinstance(message, tuple):
        return [code for each in message for code in _errors(each)]
    if dataclasses.is_dataclass(message):
        for field in dataclasses.fields(message):
            value = getattr(message, field.name)
            if field.name in ("error_code", "partition_error_code"):
                found.append(code_of(value))
            elif isinstance(value, tuple):
                found += _errors(value)
    return found


@pytest.mark.parametrize(("api", "version"), list(_offered()), ids=str)
def test_a_request_that_names_an_own_topic_alone_is_refused_and_names_it_to_no_broker(api: int, version: int) -> None:
    stage = _stage()
    stage.session.frame(bytearray(request(api, version, encode_body(_request(api, version, True)))))
    assert not any(_names_own(sent.frame) for sent in stage.edge.sent)
    if not stage.edge.sent:
        (reply,) = stage.edge.replies
        where = APIS[api].results
        if where:
            told = getattr(decode_answer(entity(api, version, "response"), reply), where)
            assert set(_errors(told)) - {0} and set(_errors(told)) <= {29, 100}
    assert stage.shared.own_refused[api] == 1
    assert stage.backend.said and not stage.edge.closed


@pytest.mark.parametrize(("api", "version"), list(_offered()), ids=str)
def test_the_other_topics_of_a_request_reach_the_target_and_the_refusal_joins_its_answer(
    api: int, version: int
) -> None:
    if api == 24:
        pytest.skip("a transaction is refused whole: see below")
    stage = _stage()
    stage.session.frame(bytearray(request(api, version, encode_body(_request(api, version, False, True)))))
    (sent,) = stage.edge.sent
    assert not _names_own(sent.frame)
    assert OTHER.encode() in sent.frame or OTHER_ID.bytes in sent.frame
    kind, where = entity(api, version, "response"), APIS[api].results
    if api in (2, 3, 19):
        return  # These APIs take several steps, which an integration test shows.
    answer = blank(kind, **({where: (blank(element_type(kind, where)),)} if where else {}))
    sent.answered_with(bytearray(frame_answer(answer, 1)))
    assert not stage.edge.closed
    (reply,) = stage.edge.replies
    if where:
        told = getattr(decode_answer(kind, reply), where)
        assert len(told) > 1
        assert not set(_errors(told[0])) - {0} and set(_errors(told[1])) & {29, 100}


def test_a_transaction_with_an_own_topic_gets_no_partition_at_all() -> None:
    stage = _stage()
    stage.session.frame(bytearray(request(24, 3, encode_body(_request(24, 3, False, True)))))
    assert not stage.edge.sent
    told = decode_answer(entity(24, 3, "response"), stage.edge.replies[0]).results_by_topic_v3_and_below
    assert {str(each.name): _errors(each) for each in told} == {OWN: [29], OTHER: [55]}


def test_writes_to_an_own_topic_are_refused_and_those_beside_it_go_on() -> None:
    stage = _stage()
    stage.produce((OWN, 0, batch()), (OTHER, 0, batch()))
    (sent,) = stage.edge.sent
    assert not _names_own(sent.frame)
    sent.answer(0)
    assert stage.told() == [(1, [(OWN, 0, 29), (OTHER, 0, 0)])]


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_a_write_to_an_own_topic_alone_reaches_no_broker(acks: int) -> None:
    stage = _stage()
    stage.produce((OWN, 0, batch()), acks=acks)
    assert not stage.edge.sent
    assert stage.told() == ([] if acks == 0 else [(1, [(OWN, 0, 29)])])


def _listing(api: int, version: int) -> Any:
    """Return an answer with an own topic beside another topic, at every place for topics."""

    def fill(kind: Any, own: bool) -> Any:
        hints = typing.get_type_hints(kind)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            hint = hints[field.name]
            inner = next(
                (typing.get_args(h)[0] for h in (hint, *typing.get_args(hint)) if typing.get_origin(h) is tuple), None
            )
            nested = next((h for h in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(h)), None)
            if dataclasses.is_dataclass(inner):
                names = {f.name for f in dataclasses.fields(inner)} & {*_NAMES, "topic_id"}
                values[field.name] = tuple(fill(inner, each) for each in ((False, True) if names else (own,)))
            elif nested is not None:
                values[field.name] = fill(nested, own)
            elif field.name == "subscribed_topic_names":
                values[field.name] = (OTHER, OWN)
            elif field.name in {*_NAMES, "topic_id", "resource_type"}:
                values[field.name] = _value(hint, field.name, own)
        return blank(kind, **values)

    return fill(entity(api, version, "response"), False)


@pytest.mark.parametrize(
    ("api", "version"),
    [
        (api, v)
        for api in sorted(HIDING)
        for v in range(OFFERED[api].versions[0], OFFERED[api].versions[1] + 1)
        if (api, v) != (74, 0)
    ],
)
def test_an_answer_that_lists_topics_leaves_own_topics_out(api: int, version: int) -> None:
    stage = Stage()
    stage.shared.own_ids = frozenset({OWN_ID.bytes})
    stage.session.frame(bytearray(request(api, version, encode_body(blank(entity(api, version, "request"))))))
    sent = stage.edge.sent[-1]
    answer = bytearray(frame_answer(_listing(api, peek_request(sent.frame).version), 1))
    assert _names_own(answer)
    sent.answered_with(answer)
    for home, then in stage.asked:
        then(not home)
    (reply,) = stage.edge.replies
    assert not _names_own(reply)
    assert OTHER.encode() in reply or OTHER_ID.bytes in reply
    decode_answer(entity(api, version, "response"), bytearray(reply))


def test_every_offered_api_that_names_a_topic_is_guarded() -> None:
    """A new API, or a new field of an API, needs an entry in either table, or a reason here."""
    reads_positions = _UNASKED
    told_of_acls = {29, 30, 31}  # ACLs belong to the administrator, and clients may see them.
    internal_alone = {55}  # Only __cluster_metadata has a quorum.
    # The answer lists transactions of direct clients; a routed client gets no partition of an own topic.
    the_targets_word = {65}
    for api in OFFERED:
        names = _topic_fields(entity(api, OFFERED[api].versions[1], "request"))
        told = _topic_fields(entity(api, OFFERED[api].versions[1], "response"))
        if api and names and api not in told_of_acls | internal_alone:
            assert api in REFUSING or api in reads_positions, API_NAMES[api]
        if api and told and api not in REFUSING and api not in told_of_acls | internal_alone | the_targets_word:
            assert api in HIDING, API_NAMES[api]


def _topic_fields(kind: Any) -> set[str]:
    found: set[str] = set()
    for name, hint in typing.get_type_hints(kind).items():
        if name in ("topic_id", "topic_name", "topic_names", "topics", "topic", "subscribed_topic_names"):
            found.add(name)
        for each in (hint, *typing.get_args(hint)):
            if typing.get_origin(each) is tuple:
                each = typing.get_args(each)[0]
            if dataclasses.is_dataclass(each):
                found |= _topic_fields(each)
    return found


def test_a_fetch_that_names_an_own_topic_keeps_its_answer_whole() -> None:
    """The refusal goes into the whole answer, so the answer must not leave in pieces."""
    stage = _stage()
    stage.session.frame(bytearray(request(1, 12, encode_body(_request(1, 12, False, True)))))
    begins = stage.edge.sent[0].begins
    assert begins is None or begins() is None


def test_rubbish_that_mentions_an_own_topic_ends_the_connection_alone() -> None:
    stage = _stage()
    body = struct.pack(">h", 1) + OWN.encode() * 3
    stage.session.frame(bytearray(request(19, 2, body)))
    assert stage.edge.closed and not stage.edge.sent
