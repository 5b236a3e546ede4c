"""A note about a copy back fits into a committed offset's metadata, and nothing else is taken for a note."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.way_back_notes import (
    NoteState,
    WayBackNote,
    decode_note,
    encode_note,
    first_names,
    link_of_notes,
    notes_group,
)

NOTE = WayBackNote(
    NoteState.OPEN,
    120,
    "target",
    500,
    125,
    1_700_000_000_000,
    1_699_999_999_000,
    "",
    {"edge": "10.0.0.7:9092"},
    {"billing": 1_690_000_000_000},
    0,
    ("shop", "till"),
    3,
    ("bookings", "sales"),
    ("copiers",),
)
BROKERS_LIMIT = 4096


def test_a_note_is_read_as_it_was_written() -> None:
    assert decode_note(120, encode_note(NOTE)) == NOTE
    assert NOTE.lacked == 5
    assert WayBackNote(NoteState.OPEN, 7).lacked == -1


def test_groups_that_do_not_fit_are_counted() -> None:
    groups = {f"group-{number:04}": 1_690_000_000_000 for number in range(1_000)}
    many = WayBackNote(NoteState.OPEN, 1, groups=groups, more_groups=3)
    text = encode_note(many)
    assert len(text) < BROKERS_LIMIT
    found = decode_note(1, text)
    assert found is not None
    assert len(found.groups) > 40
    assert len(found.groups) + found.more_groups == 1_003


def test_a_note_with_long_names_still_fits() -> None:
    routers = {f"router-{number}": "x" * 200 for number in range(30)}
    note = WayBackNote(NoteState.ENDED, 1, reason="é" * 5_000, routers=routers, groups={"g" * 249: 1})
    text = encode_note(note)
    assert len(text) < BROKERS_LIMIT
    found = decode_note(1, text)
    assert found is not None
    assert found.reason
    assert set(found.reason) == {"é"}


def test_a_note_names_as_many_names_as_fit() -> None:
    assert first_names(f"id-{number:02}" for number in range(30)) == first_names(
        f"id-{number:02}" for number in range(10)
    )
    assert first_names(["b" * 900, "a"]) == ("a",)
    long = first_names(f"{number}{'é' * 90}" for number in range(9))
    note = replace(NOTE, transactional_ids=long, coupled_topics=long, coupled_groups=long, reason="é" * 300)
    assert len(encode_note(note)) < BROKERS_LIMIT


def test_the_group_names_its_link() -> None:
    assert notes_group("blue") == "kmigrate-way-back-blue"
    assert link_of_notes("kmigrate-way-back-blue") == "blue"
    assert link_of_notes("billing") == ""


@pytest.mark.parametrize(
    "metadata",
    ["", "{", "[]", "7", "null", '{"v":2,"state":"open"}', '{"v":1}', '{"v":1,"state":["open"]}', "[" * 10_000],
)
def test_metadata_of_another_form_is_no_note(metadata: str) -> None:
    assert decode_note(5, metadata) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=5,
)
FIELDS = ("target", "producer_id", "target_end", "seen_ms", "fresh_ms", "reason", "routers", "groups", "more_groups")


@given(
    st.fixed_dictionaries(
        {"v": st.just(1), "state": st.sampled_from(["open", "ended"])}, optional=dict.fromkeys(FIELDS, JSON)
    )
)
def test_any_field_of_another_type_is_unknown(fields: dict[str, object]) -> None:
    found = decode_note(9, json.dumps(fields))
    assert found is not None
    assert (found.position, found.state.value) == (9, fields["state"])
    assert all(isinstance(each, int) and each >= -1 for each in (found.target_end, found.producer_id, found.seen_ms))
    assert all(isinstance(each, str) for each in (found.target, found.reason, *found.routers.values()))
    assert all(isinstance(each, int) for each in found.groups.values())
