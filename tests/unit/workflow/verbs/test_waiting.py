"""A wait that times out names the obstacle, and says what has become of the other topics or groups."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import Failed, KmigrateError, WaitTimedOut
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import ClusterRef, GroupRecord, LeaseRecord, LinkRecord, TopicRecord
from kmigrate.workflow import verbs
from kmigrate.workflow.verbs import waiting
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
NEW = TopicRecord("l", "t", TopicPhase.INITIALISING, 1)
GIVEN_UP = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, reason="direct-writers: somebody")
GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, reason="members-on-source: somebody")
MIRROR = MirrorPresence("m", "l", 1, active=True, interval_ms=500)
LEASE = LeaseRecord("mirror/l", "m", 1)


def waited(work: Any, *records: Record, mirror: MirrorPresence | None = MIRROR, says: str = "") -> KmigrateError:
    log = MemoryLog(LINK, LEASE, *records)
    if mirror is not None:
        log.say(mirror)
    it = SimpleNamespace(log=log, waits_for=lambda _: says)
    ended: Coroutine[Any, Any, Any] = work(it)
    with pytest.raises(KmigrateError) as caught:
        asyncio.run(ended)
    return caught.value


def mirrored(it: Any) -> Any:
    return verbs.wait_topics(it, "l", ["t"], {TopicPhase.MIRRORING, TopicPhase.PROMOTED}, 0.01)


def promoted(*topics: str) -> Any:
    return lambda it: verbs.wait_topics(it, "l", topics, {TopicPhase.PROMOTED}, 0.01)


def handed_over(*groups: str) -> Any:
    return lambda it: verbs.wait_groups(it, "l", groups, 0.01)


@pytest.mark.parametrize(
    ("record", "mirror"),
    [
        (replace(NEW, reason="target-denied: no CREATE"), MIRROR),
        (NEW, replace(MIRROR, problems={"t": "target-denied: no CREATE"})),
    ],
)
def test_a_topic_that_does_not_come_to_be_mirrored_in_time_says_why(
    record: TopicRecord, mirror: MirrorPresence
) -> None:
    """The error names the reason, because without a terminal nothing else shows the reason."""
    error = waited(mirrored, record, mirror=mirror)
    assert isinstance(error, WaitTimedOut)
    assert error.what.endswith("; t: target-denied: no CREATE")
    assert error.next_step == "kmigrate status --watch"


def test_what_a_promote_waits_for_is_told_also_while_no_mirror_runs() -> None:
    """A running mirror may be unnecessary, because all topics may be promoted by then."""
    pending = replace(GROUP, phase=GroupPhase.PROMOTING, reason="")
    error = waited(handed_over("g"), pending, mirror=None, says="c at /1.2.3.4 to join anew")
    assert (error.ref, error.what.endswith("g: c at /1.2.3.4 to join anew")) == ("wait-timed-out", True)
    assert waited(handed_over("g"), pending, mirror=None).ref == "no-mirror-running"


def test_who_waits_for_several_promotes_is_told_what_became_of_the_others() -> None:
    done, pending = (replace(GIVEN_UP, topic=t, phase=TopicPhase(p)) for t, p in (("a", "promoted"), ("b", "fencing")))
    error = waited(promoted("a", "t", "b"), done, GIVEN_UP, pending)
    assert isinstance(error, Failed)
    assert error.still_true.endswith("nobody waits for the others any more: a is promoted, b is fencing")
    assert "others" not in waited(promoted("t"), GIVEN_UP).still_true


@pytest.mark.parametrize(("mode", "members"), [(GroupMode.HOLD, "wait"), (GroupMode.FOLLOW, "stay in it")])
def test_of_groups_it_is_said_too_and_what_their_members_do(mode: GroupMode, members: str) -> None:
    other = replace(GROUP, group="h", phase=GroupPhase.PROMOTING)
    error = waited(handed_over("g", "h"), replace(GROUP, mode=mode), other)
    assert error.still_true == (
        f"the group is mirrored as before; its members at the router {members}; nobody waits for the others any more: "
        "h is promoting"
    )


def test_what_helps_against_a_promote_that_was_given_up_is_told_in_place_of_a_general_advice() -> None:
    record = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, reason="denied: no right", way_on="grant the right")
    assert waiting._then(record, "kmigrate promote t") == "grant the right; then: kmigrate promote t"
    assert waiting._then(replace(record, way_on=""), "kmigrate promote t").startswith("mend the cause, then: ")
