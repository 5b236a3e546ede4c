"""Builds trial joins: a member's own JoinGroup or ConsumerGroupHeartbeat, under a member id unknown to the target.

A coordinator checks rights, session timeout, protocols and assignor before it looks for the member. So the answer is
the refusal that the member would get, or "unknown member". The group stays as it is (fact C19).
"""

from __future__ import annotations

from kmigrate.protocol.api import ApiKey, Message, replace
from kmigrate.protocol.codes import Code, row
from kmigrate.router.wire.heartbeats import needs_regex

__all__ = ["JOINING", "lets_in", "refusal_in", "says_subscription", "trial_of"]

JOINING = frozenset({ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT})
_STRANGER = "kmigrate-trial"
_LATER_EPOCH = 1
"""Member epoch of a trial heartbeat; epoch 0 would make the unknown member a member."""
_OVERCOME = frozenset(
    {
        Code.NONE,
        Code.UNKNOWN_SERVER_ERROR,
        Code.REQUEST_TIMED_OUT,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
        Code.REBALANCE_IN_PROGRESS,
        Code.MEMBER_ID_REQUIRED,
        Code.FENCED_INSTANCE_ID,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.FENCED_MEMBER_EPOCH,
        Code.UNRELEASED_INSTANCE_ID,
        Code.STALE_MEMBER_EPOCH,
    }
)
"""Errors that a member gets over without help, or that say nothing against the member."""


def says_subscription(request: Message) -> bool:
    """Return whether a trial can be made of a request: a JoinGroup, or a heartbeat that names the subscription."""
    names = getattr(request, "subscribed_topic_names", ())
    return names is not None or needs_regex(request)


def trial_of(request: Message) -> Message:
    """Return the trial of a member's request."""
    said: dict[str, object] = {"member_id": type(request.member_id)(_STRANGER)}
    if hasattr(request, "member_epoch"):
        epoch = type(request.member_epoch)(_LATER_EPOCH)
        said |= {"member_epoch": epoch, "instance_id": None, "topic_partitions": ()}
    elif hasattr(request, "group_instance_id"):
        said["group_instance_id"] = None
    return replace(request, **said)


def lets_in(code: int) -> bool:
    """Return whether a trial's answer says that the target would let the member in."""
    return code in (Code.UNKNOWN_MEMBER_ID, Code.GROUP_ID_NOT_FOUND)


def refusal_in(code: int, *, trial: bool) -> str:
    """Return the name of an error that a member cannot get over without help; '' otherwise.

    A trial heartbeat finds no group of the new protocol (69), which says nothing against the member.
    """
    expected = code in _OVERCOME or (trial and code == Code.GROUP_ID_NOT_FOUND)
    return "" if expected else row(code).name
