"""README's flow is a shorter tutorial, so that the test that runs the tutorial runs README's commands, too."""

from __future__ import annotations

from pathlib import Path

from tests.pages import ROOT, blocks, commands


def test_the_tutorial_has_the_commands_of_readme_in_their_order() -> None:
    tutorial = iter(_shown(ROOT / "docs" / "tutorial.md"))
    readme = _shown(ROOT / "README.md")
    assert len(readme) > 10
    assert [command for command in readme if command not in tutorial] == []


def _shown(page: Path) -> list[list[str]]:
    """Return the commands of a page's shell blocks."""
    shells = [block for block in blocks(page) if block.language == "sh"]
    return [command for block in shells for line in block.lines for command in commands(line)]
