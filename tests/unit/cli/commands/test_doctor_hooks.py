"""`kmigrate doctor` names hooks whose commands cannot be started, before a promote is given up for one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kmigrate.cli.commands import doctor
from kmigrate.config.settings import HooksSection, Settings
from kmigrate.model.settings import ClusterSettings

CLUSTERS = {"west": ClusterSettings("west", (("h", 9092),))}


def found(hooks: HooksSection) -> list[tuple[str, str, str]]:
    settings = Settings(clusters=CLUSTERS, hooks=hooks)
    findings = doctor._configuration(settings)
    return [(each.level, each.ref, each.what) for each in findings if each.ref.startswith("hook")]


def test_a_command_is_found_by_its_path_or_by_path_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "tell"
    tool.write_text("#!/bin/sh\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found(HooksSection(before_fence=("tell", "us"), rolled_back=(sys.executable,))) == [
        ("ok", "hook", f"hook before-fence: {tool}"),
        ("ok", "hook", f"hook rolled-back: {sys.executable}"),
    ]
    assert found(HooksSection()) == []


@pytest.mark.parametrize("exists", [True, False], ids=["not executable", "no file"])
def test_a_command_that_cannot_be_started_is_named_with_its_effect(exists: bool, tmp_path: Path) -> None:
    tool = tmp_path / "tell"
    if exists:
        tool.write_text("#!/bin/sh\n", encoding="utf-8")
        tool.chmod(0o644)
    before, after = found(HooksSection(before_fence=(str(tool),), after_flip=(str(tool),)))
    assert before[:2] == after[:2] == ("warn", "hook-not-executable")
    assert "the hook before-fence" in before[2] and "every promote and rollback is given up" in before[2]
    assert "the hook after-flip" in after[2] and "left out" in after[2]
