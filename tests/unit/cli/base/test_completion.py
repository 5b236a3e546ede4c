"""Completion of names by shells: names of the state log and of the source, none of them harmful, and none too late."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base import completion
from kmigrate.cli.base.call import Call
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, TopicRecord
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("blue", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
HOSTILE = ("$(touch harm)", "`id`", "a b", "a\\", 'a"b', "-rf", "a\nb")


@pytest.fixture
def estate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clusters of every call: a link with a topic and groups, and a source with more of both."""
    log = MemoryLog(
        LINK,
        TopicRecord("blue", "orders", TopicPhase.MIRRORING, 1),
        *(GroupRecord("blue", name, GroupPhase.MIRRORED, 1) for name in ("billing", *HOSTILE)),
    )

    class Source:
        async def refresh(self) -> Any:
            return SimpleNamespace(topics=("orders", "payments", "__consumer_offsets"))

        async def groups(self) -> dict[str, str]:
            return dict.fromkeys(("billing", "analytics", "console-consumer-7", *HOSTILE), "stable")

    async def source(link: LinkRecord) -> tuple[Source, Source]:
        assert link.name == "blue"
        return Source(), Source()

    @asynccontextmanager
    async def connections(self: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log, source=source)

    monkeypatch.setattr(Call, "connections", connections)


def offered(complete: Any, incomplete: str = "", **params: object) -> list[str]:
    found: list[str] = complete(SimpleNamespace(params=params), incomplete)
    return found


@pytest.mark.usefixtures("estate")
def test_names_come_from_the_state_log_and_new_names_from_the_source() -> None:
    assert offered(completion.links) == ["blue"]
    assert offered(completion.mirrored_topics) == ["orders"]
    assert offered(completion.source_topics) == ["payments"]
    assert offered(completion.source_topics, "x") == []
    assert offered(completion.source_groups, "a") == ["analytics"]


@pytest.mark.usefixtures("estate")
def test_a_name_that_a_shell_would_read_as_more_than_a_name_is_not_offered() -> None:
    assert offered(completion.mirrored_groups) == ["billing"]


def test_a_silent_cluster_gives_no_names_after_a_short_wait(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "silent.toml"
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config.write_text(f'[clusters.c]\n"bootstrap.servers" = "{address}"\n', encoding="utf-8")
        began = time.monotonic()
        assert offered(completion.mirrored_topics, config=str(config)) == []
        assert time.monotonic() - began < 8
        assert offered(completion.clusters, config=str(config)) == ["c"]


def test_a_broken_configuration_gives_no_names_and_no_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "gone.toml")
    for complete in (completion.links, completion.clusters, completion.source_topics):
        assert offered(complete, config=missing) == []


@pytest.mark.parametrize(("word", "code"), [("pro", 0), ("frob", 1)])
def test_fish_hears_by_the_exit_code_whether_there_are_names(
    word: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_KMIGRATE_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "is-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"kmigrate {word}")
    assert main([]) == code


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pro", "promote"),
        ("--config clusters.toml pro", "promote"),
        ("playbook run qu", "quickstart"),
        ("--config clusters.toml link create --source o", "old"),
    ],
)
def test_bash_completes_verbs_and_names_by_the_installed_script(words: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text('[clusters.old]\n"bootstrap.servers" = "h:1"\n', encoding="utf-8")
    program = tmp_path / "kmigrate"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kmigrate "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    shown = subprocess.run(
        [program, "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},  # this test may run from another shell
        capture_output=True,
        text=True,
        check=True,
    )
    script = tmp_path / "completion.sh"
    script.write_text(
        f"COMP_WORDS=(kmigrate {words})\nCOMP_CWORD={len(words.split())}\n"
        f'source /dev/stdin\n_kmigrate_completion {shlex.quote(str(program))}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n',
        encoding="utf-8",
    )
    done = subprocess.run(
        ["bash", script], cwd=tmp_path, input=shown.stdout, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [found]
