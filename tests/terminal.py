"""A person at a pseudo-terminal, who reads what the command line says, and types."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pexpect

__all__ = ["CTRL_C", "DOWN", "ENTER", "Person"]

ROOT = Path(__file__).parents[1]
ENTER, DOWN, CTRL_C = "\r", "\x1b[B", "\x03"


class Person:
    """A person at a terminal: reads what the command line says, and types."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("KMIGRATE_")},
            "PYTHONPATH": str(ROOT),
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "TERM": "xterm-256color",
            "NO_COLOR": "1",
        }
        self.terminal: Any = None
        self.seen = ""

    def calls(self, *words: str) -> None:
        self.terminal = pexpect.spawn(
            sys.executable,
            ["-m", "kmigrate", *words],
            cwd=self.folder,
            env=self.environment,
            dimensions=(60, 160),
            encoding="utf-8",
            timeout=40,
            logfile=(self.folder / "terminal.log").open("a", encoding="utf-8"),
        )

    def reads(self, text: str) -> str:
        """Wait for a text, and return what came before the text."""
        self.terminal.expect_exact(text)
        before: str = self.terminal.before
        self.seen += before + text
        return before

    def answers(self, question: str, *keys: str) -> None:
        self.reads(question)
        for key in keys:
            self.terminal.send(key)

    def ends(self) -> tuple[int, str]:
        """Wait for the end of the command; return the exit code and the rest of the output."""
        self.terminal.expect(pexpect.EOF)
        rest: str = self.terminal.before
        self.terminal.close()
        return self.terminal.exitstatus, rest
