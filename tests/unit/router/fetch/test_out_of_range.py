"""Readers that the target answers OFFSET_OUT_OF_RANGE while the copy may still be behind the readers' positions."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.routes import Routes, Serve, TopicRoute
from kmigrate.protocol.api import blank, decode_body, element_type, encode_body, entity, frame_answer, is_flexible
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from kmigrate.router.shared.state import TARGET
from tests.unit.router.router_fakes import Stage, route

OUT_OF_RANGE, NOT_LEADER = 1, 6
FIRST_WITH_IDS, NEWEST = 13, 18
IDS = {"t": uuid.uuid4(), "u": uuid.uuid4()}


def _route(topic: str, serve: Serve = Serve.FORWARD, link: str = "l") -> TopicRoute:
    return replace(route(topic, serve, link=link), target_id=str(IDS[topic]))


class _Reader:
    """A client that fetches, together with the broker that answers."""

    def __init__(self, *routes: TopicRoute, version: int = NEWEST) -> None:
        self.stage, self._version = Stage(*routes), version

    def fetch(self) -> None:
        kind = entity(1, self._version, "request")
        told = {"session_id": 0, "session_epoch": -1, "min_bytes": 1, "max_bytes": 1000}
        raw = encode_request_head(1, self._version, 7, b"c", is_flexible(1, self._version))
        raw += encode_body(blank(kind, **told))
        self.stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))

    def frame(self, records: bytes = b"", **errors: int) -> bytearray:
        """Return a Fetch answer with an error per partition.

        `t0=1` means error 1 for t-0. Partitions without an error carry `records`.
        """
        kind = entity(1, self._version, "response")
        topic_type = element_type(kind, "responses")
        part_type = element_type(topic_type, "partitions")
        topics = []
        for topic in dict.fromkeys(key[0] for key in errors):
            parts = tuple(
                blank(
                    part_type,
                    partition_index=int(key[1:]),
                    error_code=error,
                    high_watermark=-1,
                    records=b"" if error else records,
                )
                for key, error in errors.items()
                if key[0] == topic
            )
            named = {"topic_id": IDS[topic]} if self._version >= FIRST_WITH_IDS else {"topic": topic}
            topics.append(blank(topic_type, **named, partitions=parts))
        return bytearray(frame_answer(blank(kind, responses=tuple(topics)), 7))

    def meets(self, **errors: int) -> None:
        """Fetch, and let the target answer with these errors."""
        self.fetch()
        self.stage.edge.sent.pop().answered_with(self.frame(b"", **errors))

    def told(self) -> list[int]:
        """Return the error codes of the newest answer, of all partitions in order."""
        reply = self.stage.edge.replies.pop()
        return self.codes(reply)

    def codes(self, reply: bytearray) -> list[int]:
        kind = entity(1, self._version, "response")
        answer: Any = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
        return [int(part.error_code) for topic in answer.responses for part in topic.partitions]

    def waits(self) -> bool:
        return not self.stage.edge.replies

    def ends(self, where: str, **ends: int) -> None:
        """Answer the only open request for log ends, which goes to `where`, with these ends."""
        [(asked, keys, told)] = self.stage.backend.asked_ends
        self.stage.backend.asked_ends.clear()
        known = {(name[0], int(name[1:])): end for name, end in ends.items()}
        assert asked == where and keys >= known.keys()
        told(known)

    def copied(self, yes: bool) -> dict[tuple[str, int], int]:
        """Tell whether the copy reached the awaited positions, and return the positions."""
        [(positions, told)] = self.stage.backend.awaited
        self.stage.backend.awaited.clear()
        told(yes)
        return positions


@pytest.mark.parametrize("version", range(4, NEWEST + 1))
@pytest.mark.parametrize("serve", [Serve.FORWARD, Serve.HOLD])
def test_a_reader_beyond_the_copy_comes_again_once_it_is_there_and_is_believed_then(version: int, serve: Serve) -> None:
    reader = _Reader(_route("t", serve), version=version)
    reader.meets(t0=0, t1=OUT_OF_RANGE)
    assert reader.waits()
    reader.ends("l", t1=20)
    assert reader.waits()
    assert reader.copied(True) == {("t", 1): 20}
    assert reader.told() == [0, NOT_LEADER]
    reader.meets(t1=OUT_OF_RANGE)
    assert reader.told() == [OUT_OF_RANGE], "the copy has all, so the position is none of the source's log either"
    reader.meets(t1=OUT_OF_RANGE)
    assert reader.waits(), "another position: it begins anew"


def test_records_of_one_partition_do_not_wait_for_what_is_found_out_about_another() -> None:
    reader = _Reader(_route("t"))
    reader.fetch()
    reader.stage.edge.sent.pop().answered_with(reader.frame(records=b"records", t0=0, t1=OUT_OF_RANGE))
    assert reader.told() == [0, NOT_LEADER]
    reader.ends("l", t1=20)
    reader.copied(True)
    reader.meets(t1=OUT_OF_RANGE)
    assert reader.told() == [OUT_OF_RANGE], "it was found out all the same"


def test_while_the_copy_is_behind_the_source_is_asked_for_its_end_once() -> None:
    """The source's log keeps growing:

    with a new end each time, a reader before the start of a busy log would never get OFFSET_OUT_OF_RANGE.
    """
    reader = _Reader(_route("t"))
    reader.meets(t0=OUT_OF_RANGE)
    reader.ends("l", t0=20)
    for end in (10, 15):
        assert reader.copied(False) == {("t", 0): 20}
        reader.ends(TARGET, t0=end)
        assert reader.told() == [NOT_LEADER]
        reader.meets(t0=OUT_OF_RANGE)
        assert reader.waits()
    assert reader.copied(True) == {("t", 0): 20}
    assert reader.told() == [NOT_LEADER]
    reader.meets(t0=OUT_OF_RANGE)
    assert reader.told() == [OUT_OF_RANGE]


def test_each_partition_is_judged_by_its_own_copy() -> None:
    reader = _Reader(_route("t"))
    reader.meets(t0=OUT_OF_RANGE, t1=OUT_OF_RANGE)
    reader.ends("l", t0=20, t1=30)
    assert reader.copied(False) == {("t", 0): 20, ("t", 1): 30}
    reader.ends(TARGET, t0=20, t1=29)
    assert reader.told() == [NOT_LEADER, NOT_LEADER]
    reader.meets(t0=OUT_OF_RANGE, t1=OUT_OF_RANGE)
    reader.copied(True)
    assert reader.told() == [OUT_OF_RANGE, NOT_LEADER]


def test_topics_of_two_links_are_asked_about_at_their_own_sources() -> None:
    reader = _Reader(_route("t"), _route("u", link="other"))
    reader.meets(t0=OUT_OF_RANGE, u0=OUT_OF_RANGE)
    assert [(link, set(keys)) for link, keys, _ in reader.stage.backend.asked_ends] == [
        ("l", {("t", 0)}),
        ("other", {("u", 0)}),
    ]
    for _, keys, told in reader.stage.backend.asked_ends:
        told(dict.fromkeys(keys, 9))
    for _, told_copied in reader.stage.backend.awaited:
        assert reader.waits()
        told_copied(True)
    assert reader.told() == [NOT_LEADER, NOT_LEADER]


def test_as_long_as_the_source_does_not_tell_its_end_the_reader_comes_again() -> None:
    reader = _Reader(_route("t"))
    for _ in range(3):
        reader.meets(t0=OUT_OF_RANGE)
        reader.ends("l")
        assert reader.told() == [NOT_LEADER]


def test_who_reads_what_is_promoted_mapped_or_not_mirrored_is_told_at_once() -> None:
    back = replace(_route("t", Serve.HOLD), rolling_back=True)
    for routes in ((), (_route("t", Serve.LOCAL),), (back,), (replace(_route("t"), mapped=True),)):
        reader = _Reader(*routes)
        reader.meets(t0=OUT_OF_RANGE)
        assert reader.told() == [OUT_OF_RANGE]


def test_what_was_said_long_ago_is_not_held_against_another_position() -> None:
    reader = _Reader(_route("t"))
    reader.meets(t0=OUT_OF_RANGE)
    reader.ends("l", t0=20)
    reader.copied(True)
    assert reader.told() == [NOT_LEADER]
    reader.stage.edge.clock = 60.0
    reader.meets(t0=OUT_OF_RANGE)
    assert reader.waits()
    reader.ends("l", t0=700)
    reader.copied(True)
    assert reader.told() == [NOT_LEADER]


def test_a_large_answer_passes_and_says_to_come_again_while_it_is_found_out() -> None:
    reader = _Reader(_route("t"))
    reader.fetch()
    [sent] = reader.stage.edge.sent
    assert sent.begins is not None
    take = sent.begins()
    assert take is not None
    frame = reader.frame(t0=0, t1=OUT_OF_RANGE)
    assert take(memoryview(frame), len(frame)) == len(frame)
    passed = bytearray(b"".join(reader.stage.edge.replies))
    assert reader.codes(passed) == [0, NOT_LEADER]
    reader.ends("l", t1=20)
    reader.copied(True)
    reader.meets(t1=OUT_OF_RANGE)
    assert reader.told() == [OUT_OF_RANGE]


class _Counted(Routes):
    """Routes that count the walks over all items."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_topics_are_looked_up_by_their_ids_and_never_searched_for_each_partition() -> None:
    reader = _Reader(_route("t"))
    shared, counted = reader.stage.shared, _Counted(reader.stage.shared.table.topics)
    shared.swap(replace(shared.table, topics=counted), 0.0)
    counted.walks = 0
    for _ in range(3):
        reader.meets(**{f"t{n}": OUT_OF_RANGE for n in range(50)})
        reader.ends("l")
        assert set(reader.told()) == {NOT_LEADER}
        shared.hidden(), shared.mirrored()
    assert counted.walks <= 1, "once for ids; hidden and mirrored topics are kept apart"
