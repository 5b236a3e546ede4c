"""Handles admin requests of one client connection: brokers have each side's names (D5), and mirrored topics stay.

For mirrored topics and for groups that follow, the router answers what their sources would say, or refuses a change
until the promote. Everything else goes to the target. No request is held.
"""

from __future__ import annotations

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    build_answer,
    decode_request,
    encode_request,
    frame_answer,
    read_answer,
)
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.admin.create_topics import create_topics
from kmigrate.router.groups.handler import GroupHandler
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import Buffer, ClientContext, ClientLink, SharedState
from kmigrate.router.wire.addresses import make_nodes_real, show_nodes
from kmigrate.router.wire.admin import answer_with, split_mirrored
from kmigrate.router.wire.apis import APIS, Treatment
from kmigrate.router.wire.config_resources import asked_brokers, make_names_real, show_names, show_own_configs
from kmigrate.router.wire.groups import leaves_group
from kmigrate.router.wire.listed import (
    dead,
    describe_new_request,
    describe_request,
    with_followed,
    without_followed,
)
from kmigrate.router.wire.share import ask_for_subscription, refuse_share, share_accepted, subscription_told

__all__ = ["AdminHandler"]


class AdminHandler:
    """Answers the administrative requests of a connection."""

    def __init__(self, shared: SharedState, client: ClientLink, groups: GroupHandler, context: ClientContext) -> None:
        self._shared = shared
        self._client = client
        self._groups = groups
        self._context = context

    def answer(self, head: RequestHead, frame: bytearray) -> Conversation[Buffer]:
        if self._context.home and APIS[head.api_key].treatment is Treatment.ONE_BROKER:
            return build_answer(head)
        request = decode_request(frame, head)
        if head.api_key == ApiKey.LIST_GROUPS and self._shared.table.followed:
            return (yield from self._list_groups(head, frame, request))
        if head.api_key == ApiKey.SHARE_GROUP_HEARTBEAT:
            return (yield from self._share(head, frame, request))
        return (yield from self._ask(head, frame, request))

    def _ask(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[Buffer]:
        """Ask the target, with the target's own broker names."""
        asked = asked_brokers(request, self._shared.book)
        book = self._shared.book
        real = make_names_real(request, book) if asked else make_nodes_real(head, request, book)
        if real != request:
            frame, request = encode_request(frame, head, real), real
        if APIS[head.api_key].treatment is Treatment.CHANGE:
            answer = yield from self._change(head, frame, request)
        else:
            answer = yield from self._client.ask_target([frame], head.correlation_id)
        return answer if self._context.knows_brokers else self._shown(head, answer, asked)

    def _shown(self, head: RequestHead, answer: bytearray, asked: frozenset[str]) -> Buffer:
        """Return the answer with the names and topics that the client knows."""
        if APIS[head.api_key].treatment is Treatment.NODE_IDS:
            return show_nodes(answer, head, self._shared.book, self._shared.hidden())
        if head.api_key == ApiKey.DESCRIBE_CONFIGS and self._shared.table.mirroring:
            answer = show_own_configs(answer, head, self._shared.table.topics)
        if asked or head.api_key == ApiKey.LIST_CONFIG_RESOURCES:
            return show_names(answer, head, self._shared.book, asked)
        return answer

    def _change(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[bytearray]:
        """Have the target change topics; changes of mirrored topics are answered here."""
        rest, own, refused = split_mirrored(head, request, self._shared.mirrored())
        if refused:
            self._say(head, f"a change of mirrored topic {', '.join(refused)} was refused until its promote")
        if rest is None:
            return answer_with(head, own)
        if own:
            frame = encode_request(frame, head, rest)
        if head.api_key == ApiKey.CREATE_TOPICS:
            answer = yield from create_topics(self._shared, self._client, head, frame, rest)
        else:
            answer = yield from self._client.ask_target([frame], head.correlation_id)
        return answer_with(head, own, answer) if own else answer

    def _share(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[Buffer]:
        """Refuse a member of a share group that has subscribed to a mirrored topic, at whatever time."""
        members, mirrored = self._shared.share_members, self._shared.mirrored()
        group, member, topics = str(request.group_id), str(request.member_id), request.subscribed_topic_names
        if leaves_group(request):
            members.forget(group, member)
            return (yield from self._client.ask_target([frame], head.correlation_id))
        if topics is None and mirrored and not members.is_cleared(group, member, mirrored):
            asked = ask_for_subscription(head, group)
            topics = subscription_told((yield from self._client.ask_target([asked], head.correlation_id)), member)
            mirrored = self._shared.mirrored()
        version = members.version(mirrored)
        if topics is not None and (refusal := refuse_share(head, request, map(str, topics), mirrored)) is not None:
            members.forget(group, member)
            refused, text = refusal
            self._say(head, text)
            return refused
        answer = yield from self._client.ask_target([frame], head.correlation_id)
        if topics is not None and mirrored and share_accepted(answer):  # otherwise another client may have named it
            members.clear(group, member, version)
        return answer

    def _say(self, head: RequestHead, text: str) -> None:
        self._shared.backend.say(f"{head.client_id or 'a client'}: {text}")

    def _list_groups(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[Buffer]:
        """List the target's groups without groups that follow; one broker adds these as their sources describe them."""
        followed = frozenset(self._shared.table.followed)
        first = min(self._shared.book.addresses, default=None)
        listed = read_answer(type(request), (yield from self._client.ask_target([frame], head.correlation_id)))
        answer = without_followed(listed, followed)
        if not code_of(answer.error_code) and self._context.broker in (None, first):
            described = [(yield from self._describe(head, describe_request(followed)))]
            if left := dead(described[0]):
                described.append((yield from self._describe(head, describe_new_request(left))))
            answer = with_followed(request, answer, *described)
        return frame_answer(answer, head.correlation_id)

    def _describe(self, head: RequestHead, request: Message) -> Conversation[Message]:
        asked = head._replace(api_key=request.__api_key__, version=request.__version__)
        return self._groups.answer(asked, request)
