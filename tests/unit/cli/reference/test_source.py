"""A parse of source code is not disturbed by finalizers."""

from __future__ import annotations

import ast
import gc

import pytest

from kmigrate.cli.reference.source import parse_source


class _Cycle:
    """Garbage that only the collector finds, with a finalizer that parses, as a printed traceback does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("y = 1")


def test_a_source_is_parsed_while_garbage_waits_whose_finalizer_parses() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(1)
        for _ in range(3):
            _Cycle()
            assert len(parse_source("x = [1, 2, 3]\n" * 1_000).body) == 1_000
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_pauses_for_the_parse_and_is_then_as_before(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def parse(text: str) -> ast.Module:
        seen.append(gc.isenabled())
        raise SyntaxError(text)

    monkeypatch.setattr(ast, "parse", parse)
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(SyntaxError):
            parse_source("x = 1")
        assert (seen, gc.isenabled()) == ([False], enabled)
    finally:
        gc.enable()
