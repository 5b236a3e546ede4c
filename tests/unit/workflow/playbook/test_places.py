"""Line and column of tables and keys, whatever stands between them."""

from __future__ import annotations

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.workflow.playbook.places import Path, Place, Places

_TEXT = (
    """# a comment with = and [brackets]
title = "one = \\" [[step]]"
"quoted key" = 1

[defaults]   # why
link = 'a#b'
list = [ # begins
  "x", "]",
  { y = 1 },
]

[[step]]
run = """
    """\"\"\"
wait = 'not a key'
[[step]]
\"\"\"
  indented = 5
[[step]]
a.b = 1
raw = '''
exec = 1'''
last = 1"""
)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("title",), (2, 1)),
        (("quoted key",), (3, 1)),
        (("defaults",), (5, 1)),
        (("defaults", "link"), (6, 1)),
        (("defaults", "list"), (7, 1)),
        (("step", 1), (12, 1)),
        (("step", 1, "run"), (13, 1)),
        (("step", 1, "indented"), (17, 3)),
        (("step", 2), (18, 1)),
        (("step", 2, "a", "b"), (19, 1)),
        (("step", 2, "raw"), (20, 1)),
        (("step", 2, "last"), (22, 1)),
        (("step", 2, "missing"), (18, 1)),
        (("step", 1, "wait"), (12, 1)),
        (("nowhere",), (1, 1)),
        ((), (1, 1)),
    ],
)
def test_a_key_is_found_where_it_stands(path: Path, place: tuple[int, int]) -> None:
    assert tomli.loads(_TEXT)["step"][1]["last"] == 1
    assert Places(_TEXT).of(path) == Place(*place)


def test_a_table_begins_with_its_first_inner_table_unless_it_has_a_header() -> None:
    places = Places("# a comment\n[a.b]\n[c.d]\n[c.e]\n[c]\n")
    assert [places.of((name,)).line for name in ("a", "c")] == [2, 5]


@given(st.text(max_size=200))
def test_any_text_is_scanned_to_its_end(text: str) -> None:
    assert Places(text).of(("step", 1)) >= Place(1, 1)
