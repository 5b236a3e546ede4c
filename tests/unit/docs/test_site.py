"""The docs build as a site without a warning, and no page of the site loads anything from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

_LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]*)|<link[^>]*\srel="(?:stylesheet|preload|preconnect)[^>]*href="(https?:[^"]*)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site: links, anchors and the navigation have been checked."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "docs", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_each_page_of_docs_is_a_page_of_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if not (site / page).exists()] == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = {found.group(0) for page in site.rglob("*.html") for found in _LOADED.finditer(page.read_text("utf-8"))}
    assert loaded == set()
