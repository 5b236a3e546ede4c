"""The output of `plan` in terminals of usual widths: no name, figure or verdict is cut in the middle."""

from __future__ import annotations

import pytest
from rich.console import Console

from kmigrate.cli.commands.plan import TopicForecast, _view


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_each_cell_is_whole_and_each_note_is_told(width: int) -> None:
    def outlook(topic: str, state: str) -> TopicForecast:
        return TopicForecast(
            topic, 6, 3, 3, 2_000_061, 249_678, 5_903, False, 1 << 20, 12.0, "identical", state, ("a note on it",)
        )

    console = Console(width=width)
    with console.capture() as said:
        console.print(_view([outlook("payments", "promoted"), outlook("orders", "new")]))
    lines = said.get().splitlines()
    words = next(line for line in lines if line.strip().startswith("payments ")).split()
    assert [w for w in ("payments", "6", "2,000,061", "249,678", "5,903", "identical") if w not in words] == []
    assert "! payments: a note on it" in said.get()
    assert "promoted" in said.get()
    assert max(map(len, lines)) <= width
