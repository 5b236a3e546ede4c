"""`kmigrate explain`: the meaning of a reference as a person finds the reference at the end of an error."""

from __future__ import annotations

import json

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.references import references


def test_a_reference_is_explained_in_three_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "target-behind-group", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert told["reference"] == "target-behind-group"
    assert "lacks records that the group has read" in told["what"]
    assert told["still_true"]
    assert told["next"].startswith("kmigrate group promote")


def test_the_last_line_of_an_error_is_the_command_that_explains_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "unknown-clster"]) == Exit.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert "did you mean 'unknown-cluster'?" in lines[0]
    words = lines[-1].removeprefix("  more: ").split()
    assert main([*words[1:], "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["reference"] == "unknown-reference"


def test_the_colon_of_a_copied_reference_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "no-link:"]) == Exit.OK
    assert "There is no link yet." in capsys.readouterr().out


def test_all_references_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--list", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)["references"]
    assert [each["reference"] for each in told] == list(references())
