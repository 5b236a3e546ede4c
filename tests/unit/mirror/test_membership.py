"""Who counts as gone: the others by the lease time, oneself sooner, and nobody by one who hears nothing."""

from __future__ import annotations

from typing import cast

import pytest

from kmigrate.mirror import membership
from kmigrate.mirror.membership import Membership
from kmigrate.model.presences import MirrorPresence, mirror_key
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

LEASE_S = 3.0


class Scene:
    """Two processes, `me` and `other`, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.slept = 0.0
        monkeypatch.setattr(membership, "monotonic", lambda: self.now)
        monkeypatch.setattr(membership, "boottime", lambda: self.now + self.slept)
        self.log = MemoryLog()
        self.membership = Membership(cast("StateLog", self.log), "l", "me", LEASE_S)

    def hear(self, instance: str, link: str = "l") -> None:
        self.log.presence[mirror_key(link, instance)] = (MirrorPresence(instance, link, 1, False, 500), self.now)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_process_is_silent_once_it_was_not_heard_for_the_lease_time(scene: Scene) -> None:
    scene.hear("other")
    scene.now += LEASE_S - 0.1
    scene.hear("me")
    assert not scene.membership.silent("other")
    assert [word.instance for word in scene.membership.words()] == ["other", "me"]
    scene.now += 0.1
    assert scene.membership.silent("other")
    assert [word.instance for word in scene.membership.words()] == ["me"]


def test_one_that_was_never_heard_is_given_the_lease_time_from_when_we_began_to_listen(scene: Scene) -> None:
    scene.now += LEASE_S - 0.1
    scene.hear("me")
    assert not scene.membership.silent("other")
    assert scene.membership.silent("other", since=scene.now - LEASE_S)
    scene.now += 0.1
    assert scene.membership.silent("other")


def test_who_does_not_hear_itself_calls_nobody_silent(scene: Scene) -> None:
    scene.hear("me")
    scene.now += 10 * LEASE_S
    assert not scene.membership.hears_itself()
    assert not scene.membership.silent("other")


def test_a_process_stops_being_sure_of_itself_before_others_call_it_silent(scene: Scene) -> None:
    assert not scene.membership.sure()
    scene.membership.said(scene.now)
    scene.now += LEASE_S * 0.5
    assert scene.membership.sure()
    scene.now += LEASE_S * 0.2
    assert not scene.membership.sure()


def test_a_process_whose_machine_has_slept_is_not_sure_of_itself(scene: Scene) -> None:
    """By the clock that stands still with it, its word was a moment old: it filled holes that another had filled."""
    scene.membership.said(scene.now)
    scene.now += 0.1
    scene.slept += 60
    assert not scene.membership.sure()
    scene.membership.said(scene.now + scene.slept)
    assert scene.membership.sure()


def test_words_of_other_links_are_not_heard(scene: Scene) -> None:
    scene.hear("other", link="another")
    assert scene.membership.words() == []
