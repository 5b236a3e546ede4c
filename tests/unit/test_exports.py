"""`__all__` of each module is true: the names exist, and no public function or class is missing."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import kmigrate
from kmigrate.cli.reference.source import parse_source

_ROOT = Path(kmigrate.__file__).parent
_DRIVERS = _ROOT / "sandbox" / "drivers"  # programs for environments of their own
_MODULES = sorted(path for path in _ROOT.rglob("*.py") if path.name != "__main__.py" and path.parent != _DRIVERS)


def _name(path: Path) -> str:
    parts = ("kmigrate", *path.relative_to(_ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", _MODULES, ids=_name)
def test_exported_names_are_the_public_functions_and_classes(path: Path) -> None:
    tree = parse_source(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}
    module = importlib.import_module(_name(path))
    exported = getattr(module, "__all__", None)
    if exported is None:
        assert not public, f"{_name(path)} has no __all__"
        return
    assert public <= set(exported), sorted(public - set(exported))
    assert [name for name in exported if not hasattr(module, name)] == []
    assert len(exported) == len(set(exported))
