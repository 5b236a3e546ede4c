"""A mirror process decides which processes are gone.

Other processes count as silent after the lease time. A process stops being sure of itself earlier. A process that does
not hear its own presence calls no process silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from kmigrate.errors import Unreachable
from kmigrate.mirror.sharing import membership
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.model.presences import MirrorPresence, mirror_key
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

LEASE_S = 3.0


class Scene:
    """Two processes, `me` and `other`, and a clock that only the test moves."""

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
    assert [word.instance for word in scene.membership.presences()] == ["other", "me"]
    scene.now += 0.1
    assert scene.membership.silent("other")
    assert [word.instance for word in scene.membership.presences()] == ["me"]


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
    scene.membership.announced(scene.now)
    scene.now += LEASE_S * 0.5
    assert scene.membership.sure()
    scene.now += LEASE_S * 0.2
    assert not scene.membership.sure()


def test_a_process_whose_machine_has_slept_is_not_sure_of_itself(scene: Scene) -> None:
    """A process that has slept with its machine is not sure of itself.

    The monotonic clock stands still during sleep, so the last announcement looks recent. Without this rule the process
    could fill holes that its successor has filled.
    """
    scene.membership.announced(scene.now)
    scene.now += 0.1
    scene.slept += 60
    assert not scene.membership.sure()
    scene.membership.announced(scene.now + scene.slept)
    assert not scene.membership.sure(), "others may have taken its place while the machine slept"


class Returning:
    """The process `me`, which has just spoken after a silence; the clock moves with every sleep."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch, silent_s: float) -> None:
        self.scene = scene
        self.read: list[float] = []
        self.failing = 0
        self.speaks_at: list[float] = []
        monkeypatch.setattr(membership, "sleep", self.sleep)
        monkeypatch.setattr(scene.log, "read_to_end", self.read_to_end, raising=False)
        monkeypatch.setattr(scene.log, "changed", self.changed)
        scene.membership.announced(scene.now)
        scene.now += silent_s
        self.at = scene.now
        scene.membership.announced(scene.now)

    async def sleep(self, seconds: float) -> None:
        until = self.scene.now + seconds
        while self.scene.now < until:  # the process keeps announcing itself
            self.scene.now = min(until, self.scene.now + 0.5)
            self.scene.membership.announced(self.scene.now)

    async def changed(self, timeout: float) -> None:
        raise asyncio.CancelledError  # end the test: no more records arrive

    async def read_to_end(self) -> None:
        self.read.append(round(self.scene.now - self.at, 3))
        assert not self.scene.membership.sure()
        if self.speaks_at and self.scene.now >= self.at + self.speaks_at[0]:
            self.speaks_at.pop()
            self.scene.now += LEASE_S
            self.scene.membership.announced(self.scene.now)
        if self.failing:
            self.failing -= 1
            raise Unreachable("no-answer", "the broker is away")

    def come_back(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self.scene.membership.come_back())
        self.scene.membership.announced(self.scene.now)


def test_who_was_silent_for_long_is_sure_again_once_it_has_read_what_others_decided_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = Returning(scene, monkeypatch, LEASE_S)
    assert not scene.membership.sure(), "its word alone does not tell it who owns by now"
    back.come_back()
    assert back.read == [LEASE_S / 2], "who may still decide that it is gone has heard it by then"
    assert scene.membership.sure()


def test_a_return_waits_until_the_state_can_be_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    back = Returning(scene, monkeypatch, LEASE_S)
    back.failing = 2
    back.come_back()
    assert len(back.read) == 3
    assert scene.membership.sure()


def test_who_falls_silent_again_while_it_reads_begins_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    back = Returning(scene, monkeypatch, LEASE_S)
    back.speaks_at = [0.0]
    back.come_back()
    assert back.read == [LEASE_S / 2, 2 * LEASE_S]
    assert scene.membership.sure()


def test_who_was_silent_for_less_goes_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    back = Returning(scene, monkeypatch, LEASE_S * 0.5)
    assert scene.membership.sure()
    back.come_back()
    assert back.read == []


def test_a_word_that_was_on_its_way_for_long_is_no_proof_that_the_others_had_it_in_time(scene: Scene) -> None:
    scene.membership.announced(scene.now)
    sent = scene.now + 1.3
    scene.now += LEASE_S + 0.05
    scene.membership.announced(sent)
    scene.membership.announced(scene.now)
    assert not scene.membership.sure()


def test_words_of_other_links_are_not_heard(scene: Scene) -> None:
    scene.hear("other", link="another")
    assert scene.membership.presences() == []


def test_a_process_writes_until_others_may_have_called_it_silent(scene: Scene) -> None:
    it = scene.membership
    assert not it.may_write(), "nobody has heard of it"
    it.announced(scene.now)
    scene.now += LEASE_S - 0.1
    assert (it.sure(), it.may_write()) == (False, True), "a late presence alone stops no plain copy"
    scene.slept += 0.1
    assert not it.may_write(), "the machine's sleep counts"


@pytest.mark.parametrize("silence_s", [2.0, 3.0])
def test_after_a_long_silence_a_process_writes_again_once_it_knows_the_decisions_of_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, silence_s: float
) -> None:
    it = scene.membership
    it.announced(scene.now)
    scene.now += silence_s
    it.announced(scene.now)
    assert it.may_write() == (silence_s < LEASE_S)

    async def sleep(seconds: float) -> None:
        scene.now += max(0.0, seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(membership, "sleep", sleep)

    async def back() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(it.come_back(), 0.05)

    asyncio.run(back())
    it.announced(scene.now)
    assert it.may_write()
