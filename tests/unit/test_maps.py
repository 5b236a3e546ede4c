"""Names in docstrings and docs lead somewhere: packages name their modules, and the docs name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kmigrate
from kmigrate.cli.reference.source import parse_source

_ROOT = Path(kmigrate.__file__).parent
_DRIVERS = _ROOT / "sandbox" / "drivers"  # programs for environments of their own
_PACKAGES = sorted(path.parent for path in _ROOT.rglob("__init__.py") if path.parent not in {_ROOT, _DRIVERS})
_ROW = re.compile(r"^ *([a-z_0-9]+(?:, [a-z_0-9]+)*)  +[^ ]", re.MULTILINE)


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_the_map_of_a_package_names_each_of_its_files(package: Path) -> None:
    text = (package / "__init__.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(parse_source(text), clean=False) or ""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in package.glob("*/*.py")}
    named = [name for row in _ROW.findall(docstring) for name in row.split(", ")]
    assert sorted(named) == sorted(modules | folders)


_REPOSITORY = _ROOT.parent
_PAGES = [*sorted(_REPOSITORY.glob("*.md")), *sorted((_REPOSITORY / "docs").rglob("*.md"))]
_TEST_FILE = re.compile(r"[\w/]*\btest_[a-z0-9_]+\.py")


@pytest.mark.parametrize("page", _PAGES, ids=lambda path: str(path.relative_to(_REPOSITORY)))
def test_a_page_names_test_files_that_exist(page: Path) -> None:
    paths = [str(path.relative_to(_REPOSITORY)) for path in (_REPOSITORY / "tests").rglob("test_*.py")]
    named = set(_TEST_FILE.findall(page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in paths)] == []
