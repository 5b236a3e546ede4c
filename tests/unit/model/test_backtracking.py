"""Regular expressions that may take for ever are distinguished from the expressions that people write."""

from __future__ import annotations

import re

import pytest

from kmigrate.model.backtracking import slow_part


@pytest.mark.parametrize(
    "expression",
    [
        "",
        ".*",
        "orders-.*",
        r"(orders|payments)\..+",
        r"[a-z0-9-]+\.v[0-9]+",
        "(?!internal).*",
        "(?!.*-internal$).*",
        "team-(a|b)-(.*)-events",
        r".*\.orders\..*",
        "(?i)Orders-.*",
        "[a-z]{1,249}",
        "(eu|us)-(prod|test)-[a-z]+(-dlq)?",
        "[a-z]+-[a-z]+-[a-z]+-[a-z]+-[a-z]+-[a-z]+-[a-z]+",
        r"([a-z]+\.)*[a-z]+",
        r"([a-z]+-)+v2",
        r"\w+(-\w+)*",
        r"([0-9]{3}-)+x",
        "(?:[a-z][a-z0-9]*-)*events",
        "(foo|bar)+",
        "é+(é|中)",
        "|".join(f"topic-{number}" for number in range(300)),
    ],
)
def test_what_people_write_is_taken(expression: str) -> None:
    assert slow_part(expression) == ""


@pytest.mark.parametrize(
    "expression",
    [
        r"([a-z]+-?)+\.v2",
        "(a+)+",
        "(a*)*",
        "(a|aa)+",
        "(?:(a|a))*",
        "(ab|a|b)*",
        r"(ab|\w)+x",
        "(?i:(aB|Ab)+)b",
        "(中a|中|a)+",
        "(.*a)*b",
        "(?:.*-)*x",
        "(x+x+)+y",
        "(ab?b?)*c",
        "((a?)*)*x",
        "([a-z](-*)?)*x",
        "(-(a?)+x?)*y",
        "(a?){60}a{60}",
        "(.+-){2,9}x",
        "(?!([a-z]+)+$).*",
    ],
)
def test_a_repeat_whose_turns_can_be_divided_in_several_ways_is_slow(expression: str) -> None:
    re.compile(expression)
    assert "several ways" in slow_part(expression)


def test_what_refers_back_is_slow() -> None:
    assert "refers back" in slow_part(r"(a+)-\1")
    assert "refers back" in slow_part(r"(a)?(?(1)b|c)")


def test_many_repeats_one_behind_the_other_are_slow_unless_each_character_says_where_it_belongs() -> None:
    assert slow_part(".*-.*-.*-.*") == ""
    assert "more than 4" in slow_part(".*-.*-.*-.*-.*")
    assert slow_part("[^-]*-[^-]*-[^-]*-[^-]*-[^-]*-[^-]*") == ""


def test_many_choices_one_behind_the_other_are_slow_likewise() -> None:
    assert slow_part("(a?){12}b") == ""
    assert "more than 12" in slow_part("(a?){16}(a?){16}b")
    assert "more than 12" in slow_part("(a|aa)" * 13)
    assert slow_part("-".join(["(eu|us)?"] * 13)) == ""
