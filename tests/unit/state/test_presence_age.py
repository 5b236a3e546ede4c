"""The time from which a presence counts, and how long the presence is kept.

Two machines' wall clocks are compared only for presences written before the log was opened.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from kmigrate.mirror.sharing import membership
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.model.presences import (
    PRESENCE_KEYS,
    ControllerPresence,
    FencedProgress,
    MirrorPresence,
    PartitionProgress,
    RehearsalPresence,
    RouterPresence,
    mirror_key,
)
from kmigrate.model.records import RouterRecord, StrayRecord
from kmigrate.records.batch import HEADER_SIZE, LOG_APPEND_TIME, assemble, walk
from kmigrate.records.build import one_record_batch
from kmigrate.state import log as state_log
from kmigrate.state.codec import PresenceWriter, Report
from kmigrate.state.log import StateLog

LEASE_S = 3.0
OLD = 10
"""Offset at which the presence log ended when this process opened the log."""


PROGRESS = {"t": {0: PartitionProgress(5), 1: PartitionProgress(5)}, "u": {0: PartitionProgress(5)}}


class Scene:
    """`me` reads the presence log; the broker's wall clock is `ahead_ms` ahead of ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ahead_ms: int = 0) -> None:
        self.now = 100.0
        self._ahead_ms = ahead_ms
        for module in (membership, state_log):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(membership, "boottime", lambda: self.now)
        monkeypatch.setattr(state_log, "steady_ms", self.wall_ms)
        self.log = StateLog(cast("Any", None))
        self.log._written_before = OLD
        self.log._announced["mirror/l/me"] = b"", MirrorPresence("me", "l", 1, False, 500)
        self.membership = Membership(self.log, "l", "me", LEASE_S)

    def wall_ms(self) -> int:
        return round(self.now * 1000)

    def hear(self, instance: str, *, said_s_ago: float = 0.0, offset: int = OLD) -> None:
        """Read a presence from the log, as a broker stores the presence."""
        self.read(MirrorPresence(instance, "l", 1, False, 500, PROGRESS, shares=True), said_s_ago, offset)

    def read(self, word: Report, said_s_ago: float = 0.0, offset: int = OLD) -> None:
        said_ms = self.wall_ms() - round(said_s_ago * 1000)
        value = PresenceWriter().write(word)
        sent = one_record_batch(word.key.encode(), value, timestamp=said_ms, producer_id=-1, epoch=-1, sequence=-1)
        stored = assemble(
            bytes(sent[HEADER_SIZE:]),
            count=1,
            attributes=LOG_APPEND_TIME,
            base_timestamp=said_ms,
            max_timestamp=said_ms + self._ahead_ms,
        )
        for batch in walk(memoryview(stored)):
            batch.base_offset = offset
            self.log._take_presence(batch)

    def read_before(self, instance: str, said_s_ago: float) -> None:
        """Read a presence that was written before the log was opened, at a moment of the broker's clock."""
        self.hear(instance, said_s_ago=said_s_ago, offset=OLD - 1)

    def alive(self) -> list[str]:
        return [word.instance for word in self.log.alive(MirrorPresence)]


@pytest.mark.parametrize("ahead_ms", [-60_000, -3_100, -1_600, 0, 1_600, 60_000])
def test_who_speaks_is_heard_however_far_the_clocks_are_apart(monkeypatch: pytest.MonkeyPatch, ahead_ms: int) -> None:
    scene = Scene(monkeypatch, ahead_ms)
    scene.hear("me")
    scene.hear("you")
    assert scene.membership.hears_itself()
    assert [word.instance for word in scene.membership.presences()] == ["me", "you"]
    assert scene.alive() == ["me", "you"]


def test_nobody_is_called_silent_while_he_may_be_sure_of_himself_though_the_clocks_are_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, ahead_ms=-1300)
    scene.membership._began = 0.0
    owner = Membership(cast("StateLog", None), "l", "owner", LEASE_S)
    owner.announced(scene.now)
    scene.hear("owner")
    scene.now += 1.72
    scene.hear("me")
    assert owner.sure()
    assert not scene.membership.silent("owner")


def test_what_was_said_before_the_log_was_opened_counts_from_then(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.hear("gone", said_s_ago=30, offset=OLD - 2)
    scene.hear("you", said_s_ago=0.4, offset=OLD - 1)
    assert scene.alive() == ["you"]


@pytest.mark.parametrize("ahead_ms", [-3_600_000, -5_000, 0, 3_600_000])
def test_how_far_the_clocks_are_apart_is_known_from_our_own_words(
    monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    scene = Scene(monkeypatch, ahead_ms)
    scene.hear("you")
    assert scene.log.now_ms() == scene.wall_ms(), "another's clock says nothing of ours"
    scene.hear("me")
    assert scene.log.now_ms() == scene.wall_ms() + ahead_ms
    for instance, said_s_ago in (("gone", 30.0), ("dead", 3.1), ("old", 2.9)):
        scene.read_before(instance, said_s_ago)
    assert scene.alive() == ["you", "me", "old"]


def test_a_word_of_ours_that_was_long_on_its_way_tells_the_difference_of_the_clocks_until_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    for late_ms, told_ms in ((3, 0), (400, 0), (9_000, 9_000), (5, 5), (2, 2)):
        scene._ahead_ms = late_ms
        scene.hear("me")
        assert scene.log.now_ms() - scene.wall_ms() == told_ms


def test_after_a_standstill_an_old_word_of_our_own_is_no_sign_that_we_hear_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.hear("you")
    scene.now += 10
    scene.hear("me", said_s_ago=10)
    assert not scene.membership.hears_itself()
    assert not scene.membership.silent("you")


def test_after_a_long_standstill_our_own_old_word_counts_from_then_though_a_new_process_spoke_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own old presence used to be dropped as expired, and the next presence was then not recognised as ours."""
    scene = Scene(monkeypatch)
    mine = [MirrorPresence("me", "l", number, False, 500, PROGRESS) for number in (1, 2)]
    for word in mine:
        scene.log._announced[word.key] = PresenceWriter().write(word), word
        if word is mine[0]:
            scene.read(word)
    scene.hear("you")
    scene.now += 700
    scene.hear("new")
    scene.read(mine[1], said_s_ago=699)
    assert not scene.membership.hears_itself()
    assert not scene.membership.silent("you")


def test_words_of_mirrors_that_are_long_gone_are_dropped_when_a_new_one_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    for start in range(60):
        scene.hear(f"start-{start}")
        scene.now += 60
    assert list(scene.log.presence) == [f"mirror/l/start-{start}" for start in range(49, 60)]
    assert [mirror_key(*mirror) for mirror in scene.log._reader._kept] == list(scene.log.presence)


def test_a_mirror_that_is_silent_for_the_longest_lease_time_is_known_still(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.hear("silent")
    scene.now += 300
    scene.hear("me")
    assert list(scene.log.presence) == ["mirror/l/silent", "mirror/l/me"]


def test_what_a_router_has_said_of_a_fence_is_kept_however_long_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence waits for these routers, registered or replaced; presences of other ended processes are dropped."""
    scene = Scene(monkeypatch)
    for record in (RouterRecord("edge", "r", "host", "h:1", 1), StrayRecord("edge", "host", ("s",))):
        scene.log._fold._state = scene.log.state.with_record(record.key, record, 1)
    for instance in ("r", "s", "left"):
        word = RouterPresence(instance, "edge", 1, 500)
        scene.log._presence[word.key] = (word, scene.now)
    left = ControllerPresence("left", 1, True, 500)
    scene.log._presence[left.key] = (left, scene.now)
    scene.now += 86_400
    scene.hear("me")
    assert list(scene.log.presence) == ["router/r", "router/s", "mirror/l/me"]


def test_nothing_is_kept_of_what_was_said_of_links_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for number in range(30):
        word = MirrorPresence("me", f"link-{number}", 1, False, 500, PROGRESS)
        scene.log._announced[word.key] = scene.log._writer.write(word), word
        scene.read(word)
        scene.now += 60
    kept = [f"mirror/link-{number}/me" for number in range(19, 30)]
    assert [key for key in scene.log._announced if "link-" in key] == kept
    assert [f"mirror/{link}/me" for link in scene.log._writer._kept] == kept


def test_what_is_said_of_fenced_topics_goes_on_with_the_word_before_and_makes_nobody_live_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.hear("you")
    scene.now += 2
    now = {0: PartitionProgress(9), 1: PartitionProgress(8)}
    scene.read(FencedProgress("you", "l", 7, {"t": now}))
    (word,) = scene.log.alive(MirrorPresence)
    assert (word.applied, word.topics, word.shares) == (7, {"t": now, "u": PROGRESS["u"]}, True)
    scene.now += 2
    assert not scene.alive()


def test_a_process_that_mirrors_several_links_is_heard_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each presence used to replace the presence before, even for another link."""
    scene = Scene(monkeypatch)
    scene.hear("you")
    scene.read(MirrorPresence("you", "m", 3, False, 500, {"of m": {0: PartitionProgress(1)}}))
    scene.read(FencedProgress("you", "m", 7, {"of m": {0: PartitionProgress(2)}}))
    told = {word.link: (word.applied, set(word.topics)) for word in scene.log.alive(MirrorPresence)}
    assert told == {"l": (1, {"t", "u"}), "m": (7, {"of m"})}
    assert [word.link for word in scene.membership.presences()] == ["l"]
    scene.now += 2
    scene.read(MirrorPresence("you", "m", 3, False, 500))
    scene.hear("me")
    scene.now += 1.2
    scene.hear("me")
    assert scene.membership.silent("you"), "of this link it says nothing"


def test_what_is_said_of_fenced_topics_by_who_has_said_nothing_else_is_nobodys_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.read(FencedProgress("you", "l", 7, {"t": {0: PartitionProgress(9)}}))
    assert not scene.log.presence


def test_a_process_reads_the_presences_of_the_kinds_that_it_needs_and_is_woken_by_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    router = RouterPresence("r1", "r", 1, 500, {})
    others = (
        MirrorPresence("you", "l", 1, False, 500),
        FencedProgress("you", "l", 1, {}),
        ControllerPresence("c", 1, True, 500),
        RehearsalPresence("p", "l", 1, 500),
    )
    assert all(each.key.startswith(PRESENCE_KEYS[type(each)]) for each in (router, others[0], *others[2:]))
    scene.read(others[0])
    scene.log.read_only(RouterPresence)
    scene.log._opened = True
    scene.log._presence_read()
    asleep = scene.log._changed
    for each in others:
        scene.read(each)
        scene.log._presence_read()
    assert not asleep.is_set()
    assert not scene.log.presence
    scene.read(router)
    scene.log._presence_read()
    assert asleep.is_set()
    assert [presence for presence, _ in scene.log.presence.values()] == [router]
    assert scene.log.strays()[scene.log._presence_topic].count == 0
