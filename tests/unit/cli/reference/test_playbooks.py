"""The tables of docs/playbooks.md are current."""

from __future__ import annotations

from pathlib import Path

from kmigrate.cli.reference.playbooks import with_tables

_PAGE = Path(__file__).parents[4] / "docs" / "playbooks.md"


def test_the_tables_of_all_keys_are_current() -> None:
    page = _PAGE.read_text(encoding="utf-8")
    assert "| `lag-threshold` | a number from 0 |" in page
    assert page == with_tables(page), "make it anew: python -m kmigrate.cli.reference.playbooks docs/playbooks.md"
