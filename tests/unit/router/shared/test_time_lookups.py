"""Look-ups by time: which answer of the target a source corrects, and which answer stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.ids import LARGEST
from kmigrate.model.routes import Serve, TopicRoute
from kmigrate.protocol.api import blank, decode_body, element_type, encode_body, entity, frame_answer, is_flexible
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from kmigrate.router.shared.state import TARGET
from kmigrate.router.shared.time_lookups import Found
from tests.unit.router.router_fakes import Stage, route

NEWEST, T = 11, 1_700_000_000_000
COPY = replace(route("t", Serve.FORWARD), starts={0: 10})
MOVED = replace(route("t", Serve.LOCAL), starts={0: 10}, barrier={0: 500})


class Reader:
    """A client that looks partition 0 of a topic up by a time, and the target that answers."""

    def __init__(self, *routes: TopicRoute, version: int = NEWEST) -> None:
        self.stage, self.version = Stage(*routes), version

    def asks(self, timestamp: int, *, committed: bool = False, topic: str = "t") -> None:
        kind = entity(2, self.version, "request")
        topic_type = element_type(kind, "topics")
        part = blank(element_type(topic_type, "partitions"), timestamp=timestamp)
        told = {"topics": (blank(topic_type, name=topic, partitions=(part,)),), "isolation_level": int(committed)}
        raw = encode_request_head(2, self.version, 7, b"c", is_flexible(2, self.version)) + encode_body(
            blank(kind, **told)
        )
        self.stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))
        if self.stage.backend.asked_ends:
            self.stage.backend.asked_ends.pop()[2]({("t", 0): 500})
            self.stage.backend.awaited.pop()[1](True)

    def target_says(self, offset: int, error: int = 0, topic: str = "t") -> None:
        kind = entity(2, self.version, "response")
        topic_type = element_type(kind, "topics")
        told = blank(
            element_type(topic_type, "partitions"), offset=offset, timestamp=9, leader_epoch=4, error_code=error
        )
        answer = blank(kind, topics=(blank(topic_type, name=topic, partitions=(told,)),))
        self.stage.edge.sent.pop().answered_with(bytearray(frame_answer(answer, 7)))

    def source_says(self, *found: Found) -> tuple[int, bool]:
        """Give the source's answer to the only request; return the time and the isolation of that request."""
        [(link, times, committed, told)] = self.stage.backend.looked_up
        self.stage.backend.looked_up.clear()
        assert link == "l" and times.keys() == {("t", 0)}
        told(dict(zip([("t", 0)], found, strict=False)))
        return times["t", 0], committed

    def target_ends_at(self, end: int) -> None:
        [(where, keys, told)] = self.stage.backend.asked_ends
        self.stage.backend.asked_ends.clear()
        assert where == TARGET and keys == {("t", 0)}
        told({("t", 0): end})

    @property
    def told(self) -> tuple[int, int]:
        [reply] = self.stage.edge.replies
        kind = entity(2, self.version, "response")
        answer: Any = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
        part = answer.topics[0].partitions[0]
        return int(part.offset), int(getattr(part, "leader_epoch", -1))


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
@pytest.mark.parametrize("asked", [T, LARGEST])
def test_of_a_mirrored_topic_the_sources_answer_is_told_without_the_sources_leader_epoch(
    version: int, asked: int
) -> None:
    reader = Reader(COPY, version=version)
    reader.asks(asked, committed=True)
    reader.target_says(20)
    assert reader.source_says(Found(0, 70, T)) == (asked, version >= 2)
    assert reader.told == (70, -1)


def test_what_the_source_does_not_have_from_a_time_on_nobody_has() -> None:
    reader = Reader(COPY)
    reader.asks(T)
    reader.target_says(20)
    reader.source_says(Found(0, -1, -1))
    assert reader.told[0] == -1


@pytest.mark.parametrize("found", [(), (Found(0, 5, T),)], ids=["source-silent", "copy-begins-later"])
def test_else_the_targets_own_answer_stays(found: tuple[Found, ...]) -> None:
    reader = Reader(COPY)
    reader.asks(T)
    reader.target_says(20)
    reader.source_says(*found)
    assert reader.told[0] == 20


@pytest.mark.parametrize(
    ("target", "found", "end", "told"),
    [
        (20, Found(0, 70, T), None, 70),
        (20, Found(20, 70, T), None, 70),
        (20, Found(21, 70, T), None, 20),
        (20, Found(0, 15, T), None, 20),
        (20, Found(0, -1, -1), 600, 500),
        (20, Found(0, 510, T), 600, 500),
        (20, Found(0, -1, -1), 500, -1),
    ],
    ids=["believed", "reaches-down", "has-deleted", "before", "beyond", "late-write", "nothing-there"],
)
def test_of_a_promoted_topic_the_source_is_believed_below_the_barrier_as_far_as_it_reaches(
    target: int, found: Found, end: int | None, told: int
) -> None:
    reader = Reader(MOVED)
    reader.asks(T)
    reader.target_says(target)
    reader.source_says(found)
    if end is not None:
        reader.target_ends_at(end)
    assert reader.told[0] == told


@pytest.mark.parametrize(
    ("found", "end", "told"),
    [(Found(0, 70, T), None, 70), (Found(0, 510, T), 600, 510), (Found(0, -1, -1), 500, -1)],
    ids=["below", "copied-back", "nothing-there"],
)
@pytest.mark.parametrize("serve", [Serve.LOCAL, Serve.HOLD])
def test_the_source_of_a_topic_with_a_way_back_is_believed_beyond_the_barrier_too(
    serve: Serve, found: Found, end: int | None, told: int
) -> None:
    reader = Reader(replace(MOVED, serve=serve, rolling_back=serve is Serve.HOLD, copied_back=True))
    reader.asks(T)
    reader.target_says(20)
    reader.source_says(found)
    if end is not None:
        reader.target_ends_at(end)
    assert reader.told[0] == told


@pytest.mark.parametrize(
    ("found", "end", "told"),
    [(Found(0, 70, T), 500, 70), (Found(0, 70, T), 501, 20), (Found(0, 600, T), None, 20)],
    ids=["nothing-since", "written-since", "late-write"],
)
def test_the_largest_time_of_a_promoted_topic_is_the_sources_until_the_topic_is_written_to(
    found: Found, end: int | None, told: int
) -> None:
    reader = Reader(MOVED)
    reader.asks(LARGEST)
    reader.target_says(20)
    reader.source_says(found)
    if end is not None:
        reader.target_ends_at(end)
    assert reader.told[0] == told


@pytest.mark.parametrize(("offset", "error"), [(500, 0), (700, 0), (-1, 0), (20, 6)])
def test_what_lies_beyond_the_barrier_or_is_an_error_is_asked_of_nobody(offset: int, error: int) -> None:
    reader = Reader(MOVED)
    reader.asks(T)
    reader.target_says(offset, error)
    assert reader.told[0] == offset and not reader.stage.backend.looked_up


@pytest.mark.parametrize("others", [(), (replace(COPY, mapped=True),), (replace(MOVED, mapped=True),)])
def test_of_other_topics_and_of_mapped_ones_which_have_no_markers_the_target_alone_tells(
    others: tuple[TopicRoute, ...],
) -> None:
    reader = Reader(*others, route("other", Serve.LOCAL))
    reader.asks(T)
    reader.target_says(20)
    assert reader.told == (20, 4) and not reader.stage.backend.looked_up


def test_an_offset_that_is_not_asked_for_by_a_time_is_the_targets() -> None:
    for special in (-2, -4, -5):
        reader = Reader(COPY)
        reader.asks(special)
        reader.target_says(20)
        assert reader.told == (20, 4)
