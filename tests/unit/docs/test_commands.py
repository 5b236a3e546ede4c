"""Each command that a page shows exists: verb, flags, arguments and make targets."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kmigrate.cli.app import app
from kmigrate.cli.base.lazy import LazyCommand
from tests.pages import PAGES, ROOT, blocks, commands, inline_commands

_TREE: Any = app
_LINE = re.compile(r"^(?:\$ |- run: |run: )?((?:[A-Z_]+=\S* )*(?:kmigrate|make) .*)")
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
_KMIGRATE = {"kmigrate", "make", "pip", "pipx", "uv"}
_SHELL = {"%", ".", "cat", "cd", "cp", "export", "install", "jq", "kill", "python", "python3"}
_DEPLOYMENT = {"curl", "docker", "journalctl", "kubectl", "openssl", "promtool", "systemctl", "systemd-sysusers"}
_PROGRAMS = _KMIGRATE | _SHELL | _DEPLOYMENT
"""Programs of a block that is not marked as another system's."""
_WITHOUT_VERB = {"--help", "--install-completion", "--show-completion", "--version"}

_pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


@_pages
def test_the_commands_of_blocks_exist(page: Path) -> None:
    wrong = [
        f"{block}: {' '.join(words)}: {fault}"
        for block in blocks(page)
        if page.name != "cli.md"  # made from the commands themselves
        for line in block.lines
        for shown in _LINE.findall(line)
        for words in commands(shown)
        if (fault := _fault(words))
    ]
    assert wrong == []


@_pages
def test_the_commands_in_sentences_exist(page: Path) -> None:
    wrong = [f"{line}: {text}: {fault}" for line, text in inline_commands(page) if (fault := _unknown_word(text))]
    assert wrong == []


@_pages
def test_a_block_of_another_system_is_marked(page: Path) -> None:
    foreign = [
        f"{block}: {words[0]}"
        for block in blocks(page)
        if block.language == "sh" and not block.of_another_system
        for line in block.lines
        for words in commands(line)
        if Path(words[0]).name not in _PROGRAMS
    ]
    assert foreign == []


@pytest.mark.parametrize(
    "line",
    [
        "kmigrate promte orders",
        "kmigrate promote orders --frobnicate",
        "kmigrate plan --rate fast",
        "kmigrate topic show orders payments",
        "kmigrate status && kmigrate topic",
        "make nothing",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    assert any(_fault(words) for words in commands(line))


def test_a_line_is_split_as_a_shell_splits_it() -> None:
    line = "KMIGRATE_CONFIG=a.toml kmigrate run --port 1 > run.log 2>&1 & kmigrate status | cat  # comment"
    assert commands(line) == [["kmigrate", "run", "--port", "1"], ["kmigrate", "status"], ["cat"]]


def _fault(words: list[str]) -> str:
    """Return what the parser of the command line, or the Makefile, says against a command."""
    program, *rest = words
    if program == "make":
        unknown = {word for word in rest if "=" not in word} - _TARGETS
        return f"no such target: {', '.join(sorted(unknown))}" if unknown else ""
    return _parsed(_TREE, None, rest) if program == "kmigrate" else ""


def _sub(command: Any, context: Any, name: str) -> Any:
    """Return a verb or group of verbs, with its module imported; None where there is none of the name."""
    found = command.get_command(context, name)
    return found.load() if isinstance(found, LazyCommand) else found


def _parsed(command: Any, parent: Any, words: list[str]) -> str:
    if {"--help", "--version"} & set(words):
        words = [word for word in words if word not in ("--help", "--version")]
        return "" if not words else _parsed(command, parent, words)
    if parent is not None and not hasattr(command, "list_commands"):
        return _misused(command, parent, words)
    if not words:
        return "a verb is missing"
    context = parent or command.make_context("kmigrate", [*words], resilient_parsing=True)
    sub = _sub(command, context, words[0])
    return f"no such verb: {words[0]}" if sub is None else _parsed(sub, context, words[1:])


def _misused(command: Any, parent: Any, words: list[str]) -> str:
    try:
        command.make_context(command.name, [*words], parent=parent)
    except Exception as error:  # typer keeps click's errors under a private name
        say: Callable[[], str] = getattr(error, "format_message", error.__str__)
        return say()
    return ""


def _unknown_word(text: str) -> str:
    """Return the first verb or flag that does not exist; words in upper case stand for values."""
    command: Any = _TREE
    context = command.make_context("kmigrate", ["status"], resilient_parsing=True)
    flags: set[str] = {"--help", "--version"}
    for word in text.split()[1:]:
        name = word.strip("[]").split("=")[0].rstrip("…,")
        if command is _TREE and name in _WITHOUT_VERB:
            return ""
        if hasattr(command, "list_commands"):
            if not re.fullmatch(r"[a-z-]+", name):
                return "" if not name.startswith("--") or name in flags else f"no such flag: {name}"
            command = _sub(command, context, name)
            if command is None:
                return f"no such verb: {name}"
            flags |= {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        elif name.startswith("--") and name not in flags:
            return f"no such flag: {name}"
    return ""
