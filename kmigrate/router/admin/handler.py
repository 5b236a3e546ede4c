"""Handles admin requests of one client connection: brokers have each side's names (D5), and mirrored topics stay.

For mirrored topics and for groups that follow, the router answers what their sources would say, or refuses a change
until the promote. Everything else goes to the target. No request is held.

A topic is created for a client if no source has a topic of that name that is not mirrored yet (D11). After any other
creation mirroring could not begin any more: the target's topic would have data that is nowhere else.

A Metadata request may ask the broker to create unknown topics. The router first asks without creation, and asks the
sources for the topics that the answer lacks. For a CreateTopics request the router asks the sources at once. If a
source has the topic, the creation is only tried (validate only). The target then reports its own objections, first of
all an existing topic. Without any, the router refuses with the reason. Topics that no source has are requested
separately, as the client asked, and the two answers are merged.
"""

from __future__ import annotations

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    blank,
    build_answer,
    decode_request,
    encode_request,
    frame_answer,
    read_answer,
    replace,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.groups.handler import GroupHandler
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import Buffer, ClientContext, ClientLink, SharedState
from kmigrate.router.wire.addresses import make_nodes_real, show_nodes
from kmigrate.router.wire.admin import answer_with, split_mirrored
from kmigrate.router.wire.apis import APIS, Treatment
from kmigrate.router.wire.config_resources import asked_brokers, make_names_real, show_names, show_own_configs
from kmigrate.router.wire.groups import leaves_group
from kmigrate.router.wire.listed import dead, describe_new_request, describe_request, with_followed, without_followed
from kmigrate.router.wire.share import ask_for_subscription, refuse_share, share_accepted, subscription_in

__all__ = ["AdminHandler"]

_UNKNOWN = Code.UNKNOWN_TOPIC_OR_PARTITION.to_bytes(2, "big")


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
        if head.api_key == ApiKey.LIST_GROUPS and (followed := self._followed()):
            return (yield from self._list_groups(head, frame, request, followed))
        if head.api_key == ApiKey.SHARE_GROUP_HEARTBEAT:
            return (yield from self._share(head, frame, request))
        return (yield from self._ask(head, frame, request))

    def _ask(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[Buffer]:
        """Ask the target, with the target's own broker names."""
        book = self._shared.book
        asked = asked_brokers(request, book)
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
            answer = yield from self._create_topics(head, frame, rest)
        else:
            answer = yield from self._client.ask_target([frame], head.correlation_id)
        return answer_with(head, own, answer) if own else answer

    def ask_metadata(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[bytearray]:
        """Ask the target for metadata on behalf of a client; return the target's answer."""
        if not request.allow_auto_topic_creation or not request.topics:  # a request for all topics creates none
            return (yield from self._client.ask_target([frame], head.correlation_id))
        quiet = encode_request(frame, head, replace(request, allow_auto_topic_creation=False))
        answer = yield from self._client.ask_target([quiet], head.correlation_id)
        free = _missing(answer, head)
        if free:
            free -= yield from self._shared.backend.at_sources(free)
        if not free:
            return answer
        named = tuple(topic for topic in request.topics if topic.name is not None and str(topic.name) in free)
        creating = encode_request(frame, head, replace(request, topics=named))
        created = yield from self._client.ask_target([creating], head.correlation_id)
        return _merged(answer, created, head)

    def _create_topics(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[bytearray]:
        """Ask the target to create topics for a client, none of them mirrored; return the answer."""
        # A promoted topic belongs to the target: clients may delete the topic and create it again.
        asked = frozenset(str(topic.name) for topic in request.topics) - self._shared.table.topics.keys()
        at_sources = yield from self._shared.backend.at_sources(asked)
        if not at_sources:
            return (yield from self._client.ask_target([frame], head.correlation_id))
        tried = tuple(topic for topic in request.topics if str(topic.name) in at_sources)
        free = tuple(topic for topic in request.topics if str(topic.name) not in at_sources)
        trial = encode_request(frame, head, replace(request, topics=tried, validate_only=True))
        refused = self._refused(head, (yield from self._client.ask_target([trial], head.correlation_id)))
        if not free:
            return answer_with(head, refused)
        creating = encode_request(frame, head, replace(request, topics=free))
        return answer_with(head, refused, (yield from self._client.ask_target([creating], head.correlation_id)))

    def _refused(self, head: RequestHead, answer: bytearray) -> tuple[Message, ...]:
        """Return the target's answer for tried topics, with a refusal for each topic that could be created."""
        results = []
        for topic in read_answer(head, answer).topics:
            if not code_of(topic.error_code):
                why = f"topic {topic.name} is not mirrored yet, and a source has it or cannot be asked: mirror it first"
                self._say(head, f"{why}; it was not created")
                refused = {"error_code": Code.POLICY_VIOLATION, "error_message": f"kmigrate: {why}"}
                topic = blank(type(topic), name=topic.name, **refused)
            results.append(topic)
        return tuple(results)

    def _share(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[Buffer]:
        """Refuse a member of a share group that has subscribed to a mirrored topic, at whatever time."""
        members, mirrored = self._shared.share_members, self._shared.mirrored()
        group, member, topics = str(request.group_id), str(request.member_id), request.subscribed_topic_names
        if leaves_group(request):
            members.forget(group, member)
            return (yield from self._client.ask_target([frame], head.correlation_id))
        if topics is None and mirrored and not members.is_cleared(group, member, mirrored):
            asked = ask_for_subscription(head, group)
            topics = subscription_in((yield from self._client.ask_target([asked], head.correlation_id)), member)
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

    def _followed(self) -> frozenset[str]:
        """Return the groups that the sources coordinate."""
        return frozenset(group for group, route in self._shared.table.followed.items() if not route.at_target)

    def _list_groups(
        self, head: RequestHead, frame: bytearray, request: Message, followed: frozenset[str]
    ) -> Conversation[Buffer]:
        """List the target's groups without groups that follow; one broker adds these as their sources describe them."""
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


def _missing(answer: bytearray, head: RequestHead) -> frozenset[str]:
    """Return the topics of an answer that the target does not have."""
    if _UNKNOWN not in answer:  # nearly always; then the answer need not be decoded here
        return frozenset()
    return frozenset(
        str(topic.name)
        for topic in read_answer(head, answer).topics
        if topic.name is not None and code_of(topic.error_code) == Code.UNKNOWN_TOPIC_OR_PARTITION
    )


def _merged(first: bytearray, second: bytearray, head: RequestHead) -> bytearray:
    """Return the first answer with the topics of the second in place of its own."""
    answer, newer = (read_answer(head, frame) for frame in (first, second))
    by_name = {topic.name: topic for topic in newer.topics}
    topics = tuple(by_name.get(topic.name, topic) for topic in answer.topics)
    return bytearray(frame_answer(replace(answer, topics=topics), head.correlation_id))
