"""Handles admin requests of one client connection: brokers have each side's names (D5), and mirrored topics stay.

For mirrored topics and for groups that follow, the router answers what their sources would say, or refuses a change
until the promote. Everything else goes to the target. No request is held, and answers may come later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kmigrate.protocol.api import ApiKey, decode_request, encode_request, frame_answer, read_answer
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.admin.create_topics import create_topics
from kmigrate.router.groups.handler import GroupHandler
from kmigrate.router.shared.state import Buffer, ClientLink, SharedState
from kmigrate.router.wire.addresses import none_here
from kmigrate.router.wire.admin import answer_with, make_nodes_real, split_mirrored
from kmigrate.router.wire.apis import APIS, Treatment
from kmigrate.router.wire.broker_names import asked_brokers, show_names
from kmigrate.router.wire.configs import show_own_configs
from kmigrate.router.wire.groups import leaves_group
from kmigrate.router.wire.listed import (
    DESCRIBE,
    DESCRIBE_NEW,
    DESCRIBE_VERSION,
    dead,
    describe_new_request,
    describe_request,
    with_followed,
    without_followed,
)
from kmigrate.router.wire.quorum import show_nodes
from kmigrate.router.wire.share import ask_for_subscription, refuse_share, share_accepted, subscription_told

__all__ = ["AdminHandler"]

Reply = Callable[[Buffer], None]


class AdminHandler:
    """Handles the administrative requests of a connection."""

    def __init__(self, shared: SharedState, client: ClientLink, follow: GroupHandler, told: Callable[[], bool]) -> None:
        self._shared = shared
        self._client = client
        self._follow = follow
        self._told = told
        """Returns whether the client knows the brokers' own addresses."""

    def take(self, head: RequestHead, frame: bytearray, reply: Reply, *, home: str, broker: int | None) -> None:
        """Take a request; `home` and `broker` name the listener of the client's connection, as the session knows it."""
        if home and APIS[head.api_key].treatment is Treatment.ONE_BROKER:
            reply(none_here(head))
            return
        request = decode_request(frame, head)
        if head.api_key == ApiKey.LIST_GROUPS and self._shared.table.followed:
            self._list_groups(head, frame, request, reply, broker)
        elif head.api_key == ApiKey.SHARE_GROUP_HEARTBEAT:
            self._share(head, frame, request, reply)
        else:
            self._ask(head, frame, request, reply)

    def _ask(self, head: RequestHead, frame: bytearray, request: Any, reply: Reply) -> None:
        """Ask the target, with the target's own broker names."""
        asked = asked_brokers(request, self._shared.book)
        real = make_nodes_real(head, request, self._shared.book, asked)
        if real is not None:
            frame, request = encode_request(frame, head, real), real

        def answered(answer: bytearray) -> None:
            reply(answer if self._told() else self._shown(head, answer, asked))

        if APIS[head.api_key].treatment is Treatment.CHANGE:
            self._change(head, frame, request, answered)
        else:
            self._client.to_target([frame], head.correlation_id, answered)

    def _shown(self, head: RequestHead, answer: bytearray, asked: frozenset[str]) -> Buffer:
        """Return the answer with the names and topics that the client knows."""
        if APIS[head.api_key].treatment is Treatment.NODE_IDS:
            return show_nodes(answer, head, self._shared.book, self._shared.hidden())
        if head.api_key == ApiKey.DESCRIBE_CONFIGS and self._shared.table.mirroring:
            answer = show_own_configs(answer, head, self._shared.table.topics)
        if asked or head.api_key == ApiKey.LIST_CONFIG_RESOURCES:
            return show_names(answer, head, self._shared.book, asked)
        return answer

    def _change(self, head: RequestHead, frame: bytearray, request: Any, then: Callable[[bytearray], None]) -> None:
        """Have the target change topics; changes of mirrored topics are answered here."""
        rest, told, refused = split_mirrored(head, request, self._shared.mirrored())
        if refused:
            self._say(head, f"a change of mirrored topic {', '.join(refused)} was refused until its promote")
        if rest is None:
            then(answer_with(head, told))
            return

        def answered(answer: bytearray) -> None:
            then(answer_with(head, told, answer) if told else answer)

        if told:
            frame = encode_request(frame, head, rest)
        if head.api_key == ApiKey.CREATE_TOPICS:
            create_topics(self._shared, self._client, head, frame, rest, answered)
        else:
            self._client.to_target([frame], head.correlation_id, answered)

    def _share(self, head: RequestHead, frame: bytearray, request: Any, reply: Reply) -> None:
        """Refuse a member of a share group that has subscribed to a mirrored topic, at whatever time."""
        members, mirrored = self._shared.share_members, self._shared.mirrored()
        group, member, topics = str(request.group_id), str(request.member_id), request.subscribed_topic_names
        if leaves_group(request):
            members.forget(group, member)
            self._client.to_target([frame], head.correlation_id, reply)
        elif topics is not None or not mirrored or members.is_cleared(group, member, mirrored):
            self._judge_share(head, frame, request, reply, topics)
        else:

            def told(answer: bytearray) -> None:
                self._judge_share(head, frame, request, reply, subscription_told(answer, member))

            self._client.to_target([ask_for_subscription(head, group)], head.correlation_id, told)

    def _judge_share(
        self, head: RequestHead, frame: bytearray, request: Any, reply: Reply, topics: Iterable[str] | None
    ) -> None:
        """Refuse or forward a share group heartbeat; `topics` None: nothing is known against the member."""
        members, mirrored = self._shared.share_members, self._shared.mirrored()
        group, member, version = str(request.group_id), str(request.member_id), members.version(mirrored)

        def accepted(answer: bytearray) -> None:
            if share_accepted(answer):  # otherwise another client may have named the member
                members.clear(group, member, version)
            reply(answer)

        if topics is not None:
            refusal = refuse_share(head, request, map(str, topics), mirrored)
            if refusal is not None:
                members.forget(group, member)
                answer, text = refusal
                self._say(head, text)
                reply(answer)
                return
            if mirrored:
                self._client.to_target([frame], head.correlation_id, accepted)
                return
        self._client.to_target([frame], head.correlation_id, reply)

    def _say(self, head: RequestHead, text: str) -> None:
        self._shared.backend.say(f"{head.client_id or 'a client'}: {text}")

    def _list_groups(self, head: RequestHead, frame: bytearray, request: Any, reply: Reply, broker: int | None) -> None:
        """List the target's groups without groups that follow; one broker adds these as their sources describe them."""
        followed = frozenset(self._shared.table.followed)
        first = min(self._shared.book.addresses, default=None)

        def listed(answer: Any) -> None:
            reply(frame_answer(answer, head.correlation_id))

        def told(frame: bytearray) -> None:
            answer = without_followed(read_answer(type(request), frame), followed)
            if code_of(answer.error_code) or broker not in (None, first):
                listed(answer)
                return
            self._follow.take(
                head._replace(api_key=ApiKey.DESCRIBE_GROUPS, version=DESCRIBE_VERSION),
                describe_request(followed),
                lambda described: classic(answer, read_answer(DESCRIBE, bytearray(described))),
            )

        def classic(answer: Any, described: Any) -> None:
            left = dead(described)
            if not left:
                listed(with_followed(request, answer, described))
                return

            def new(frame: Buffer) -> None:
                listed(with_followed(request, answer, described, read_answer(DESCRIBE_NEW, bytearray(frame))))

            asked = head._replace(api_key=ApiKey.CONSUMER_GROUP_DESCRIBE, version=0)
            self._follow.take(asked, describe_new_request(left), new)

        self._client.to_target([frame], head.correlation_id, told)
