"""Reads from the code which error references the product uses: the registry is held against this list.

A reference stands where a callable takes a parameter or field named `ref`, or where a variable `ref` is assigned.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import kmigrate
from kmigrate import errors
from kmigrate.cli.reference.source import parse_source

__all__ = ["REFERENCE", "constants_of", "named_in", "used_references"]

REFERENCE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PATTERN = re.compile(r"[a-z0-9*]+(?:-[a-z0-9*]+)+")
"""A reference with parts that are known at run time only."""
_ROOT = Path(kmigrate.__file__).parent
_DRIVERS = _ROOT / "sandbox" / "drivers"  # programs for environments of their own
_ERRORS = [name for name in errors.__all__ if name != "KmigrateError"]


@cache
def used_references() -> Mapping[str, frozenset[str]]:
    """Return each used reference, or the expression of several references, with the modules that use it."""
    trees = {path: parse_source(path.read_text(encoding="utf-8")) for path in _sources()}
    places = _places(trees.values())
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        module = ".".join(path.relative_to(_ROOT.parent).with_suffix("").parts)
        for node in _reference_nodes(tree, places):
            for text in _values(node, module):
                found[text].add(module)
    return {text: frozenset(modules) for text, modules in found.items()}


def _sources() -> Iterator[Path]:
    for path in sorted(_ROOT.rglob("*.py")):
        if _DRIVERS not in path.parents:
            yield path


def _places(trees: Iterable[ast.Module]) -> Mapping[str, int]:
    """Return by name of a callable the place of its parameter `ref`."""
    found: dict[str, int] = dict.fromkeys(_ERRORS, 0)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [_text_name(each.arg, each.annotation) for each in node.args.args if each.arg != "self"]
            elif isinstance(node, ast.ClassDef):
                fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
                names = [_text_name(ast.unparse(each.target), each.annotation) for each in fields]
            else:
                continue
            if "ref" in names and node.name != "__init__":
                found[node.name] = names.index("ref")
    return found


def _text_name(name: str, annotation: ast.expr | None) -> str:
    """Return a parameter's name; only a text named `ref` is a reference of an error."""
    is_text = annotation is not None and ast.unparse(annotation) == "str"
    return name if name != "ref" or is_text else "other"


def _reference_nodes(tree: ast.Module, places: Mapping[str, int]) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            at = places.get(called)
            if at is not None and at < len(node.args):
                yield node.args[at]
            yield from (each.value for each in node.keywords if each.arg == "ref")
        elif isinstance(node, ast.Assign):
            yield from _assigned(node)


def _assigned(node: ast.Assign) -> Iterator[ast.expr]:
    for target in node.targets:
        if isinstance(target, ast.Name) and target.id == "ref":
            yield node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from (
                value
                for name, value in zip(target.elts, node.value.elts, strict=True)
                if isinstance(name, ast.Name) and name.id == "ref"
            )


def _values(node: ast.expr, module: str) -> Iterator[str]:
    """Yield the references that an expression can be; what another place decides yields nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if REFERENCE.fullmatch(node.value):
            yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _values(node.body, module)
        yield from _values(node.orelse, module)
    elif isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "*" for each in node.values)
        if _PATTERN.fullmatch(text := "".join(map(str, parts))):
            yield text
    elif isinstance(node, ast.Name):
        value = getattr(importlib.import_module(module), node.id, None) if node.id.isupper() else None
        if isinstance(value, str):
            yield value


@cache
def constants_of(folder: Path) -> frozenset[str]:
    """Return all texts of the code in a folder, but docstrings."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        tree = parse_source(path.read_text(encoding="utf-8"))
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone)
        found.update(node.value for node in texts if isinstance(node.value, str))
    return frozenset(found)


def named_in(folder: Path) -> frozenset[str]:
    """Return the words of all texts of the code in a folder that may be references."""
    return frozenset(word for text in constants_of(folder) for word in REFERENCE.findall(text))
