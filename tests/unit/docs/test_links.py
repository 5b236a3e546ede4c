"""Links of the pages lead somewhere, and a reader finds each page of the docs from another page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s#]+)")
_ENTRIES = {ROOT / "README.md", ROOT / "docs" / "index.md"}


def _linked(page: Path) -> dict[str, Path]:
    """Return the files and folders that a page links to, by the text of the link."""
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    return {link: (page.parent / link).resolve() for link in links if "://" not in link}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert [link for link, target in _linked(page).items() if not target.exists()] == []


def test_each_page_has_a_link_from_another_page() -> None:
    linked = {target for page in PAGES for target in _linked(page).values() if target != page}
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in linked | _ENTRIES] == []
