"""An id alone determines the whole record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.sandbox.payload import ValueId, content_of, id_in, parse_id, plain_headers

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)


@given(names, st.integers(0, 99), st.integers(0, 10**9))
def test_the_id_is_found_again_in_its_value(producer: str, run: int, seq: int) -> None:
    value_id = ValueId(producer, run, seq)
    content = content_of(value_id.text, seq)
    assert id_in(content.value) == value_id.text
    assert parse_id(value_id.text) == value_id
    assert content == content_of(value_id.text, seq)
    assert 160 <= len(content.value) < 240


def test_neighbouring_ids_have_different_content() -> None:
    values = {content_of(f"shop-1.1:{seq}", seq).value for seq in range(500)}
    assert len(values) == 500
    assert len({len(value) for value in values}) > 30


@pytest.mark.parametrize("value", [None, b"", b"no id here", b"a|b", b"a.1:|", b"\xff.1:1|", b"a.1:1", b"|" * 300])
def test_a_foreign_value_has_no_id(value: bytes | None) -> None:
    assert id_in(value) is None


def test_keys_and_headers_come_and_go_with_the_number() -> None:
    assert content_of("a.1:5", 5).key is None
    assert content_of("a.1:6", 6).key == b"k6"
    assert [name for name, _ in content_of("a.1:6", 6).headers] == ["id", "nothing", "id"]
    assert content_of("a.1:7", 7).headers == ()


def test_headers_of_any_library_compare_equal() -> None:
    assert plain_headers(None) == ()
    assert plain_headers([("a", b"1"), ("b", None)]) == plain_headers((("a", "1"), ("b", None)))
    assert plain_headers({"a": b"1"}) == (("a", b"1"),)
