"""Commands that the pages show: in blocks, and in code within sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

__all__ = ["OTHER_SYSTEM", "PAGES", "ROOT", "Block", "blocks", "commands", "inline_commands"]

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

OTHER_SYSTEM = "<!-- commands of another system -->"
"""The line before a block whose commands belong to other programs."""

_MARKDOWN = MarkdownIt("commonmark").enable("table")
_ENDS = re.compile(r"[&|;]+")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Block:
    """A fenced or indented block of a page."""

    page: Path
    line: int
    language: str
    text: str
    of_another_system: bool

    @property
    def lines(self) -> list[str]:
        """Lines of the block; a line that ends with a backslash includes the next line."""
        return self.text.replace("\\\n", " ").splitlines()

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced and the indented blocks of a page."""
    before = ""
    for token in _MARKDOWN.parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block") and token.map is not None:
            language = token.info.split(" ")[0]
            yield Block(page, token.map[0] + 1, language, token.content, before == OTHER_SYSTEM)
        before = token.content.strip()


def commands(line: str) -> list[list[str]]:
    """Split a line of a shell into the words of each command, without comments, assignments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if _ENDS.fullmatch(word):
            found.append([])
        elif word[0] in "<>":
            if found[-1] and found[-1][-1] == "2":
                found[-1].pop()
            next(words, None)
        elif found[-1] or not _ASSIGNMENT.match(word):
            found[-1].append(word)
    return [command for command in found if command]


def inline_commands(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each code within a sentence that begins with `kmigrate`."""
    for token in _MARKDOWN.parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            if child.type == "code_inline" and child.content.startswith("kmigrate "):
                yield (token.map or [0])[0] + 1, child.content
