"""Brokers in containers, against a simulated engine."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.sandbox.containers import ContainerProcess, engine_answers


class NotFound(Exception):
    """An error with the same name as Docker's own."""


@dataclass
class _Container:
    status: str = "running"
    calls: list[str] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=lambda: {"State": {"Pid": 77}})

    def pause(self) -> None:
        self.calls.append("pause")
        self.status = "paused"

    def unpause(self) -> None:
        self.calls.append("unpause")
        self.status = "running"

    def kill(self, signal: int) -> None:
        assert self.status == "running", "a paused container takes no signal"
        self.calls.append(f"kill {signal}")
        self.status = "exited"


@dataclass
class _Engine:
    base_url: str = "http+docker://localhost"
    system: str = "Debian GNU/Linux 12"
    broken: Exception | None = None
    known: dict[str, _Container] = field(default_factory=dict)

    @property
    def api(self) -> Any:
        return SimpleNamespace(base_url=self.base_url)

    @property
    def containers(self) -> Any:
        return SimpleNamespace(get=self._get)

    def _get(self, name: str) -> _Container:
        if name not in self.known:
            raise NotFound(name)
        return self.known[name]

    def ping(self) -> bool:
        if self.broken is not None:
            raise self.broken
        return True

    def info(self) -> dict[str, Any]:
        return {"OperatingSystem": self.system}


def test_an_engine_of_this_machine_that_answers_is_used() -> None:
    assert engine_answers(_Engine(), "linux")


@pytest.mark.parametrize(
    ("engine", "platform"),
    [
        (_Engine(broken=ConnectionRefusedError()), "linux"),
        (_Engine(base_url="https://far.example:2376"), "linux"),
        (_Engine(system="Docker Desktop"), "linux"),
        (_Engine(), "darwin"),
    ],
    ids=["silent", "remote", "in a virtual machine", "macOS"],
)
def test_any_other_engine_is_not(engine: _Engine, platform: str) -> None:
    assert not engine_answers(engine, platform)


def test_a_container_is_paused_continued_and_killed_as_a_process_is() -> None:
    container = _Container()
    process = ContainerProcess("abc", _Engine(known={"abc": container}))
    assert process.pid == 77
    assert process.signal(signal.SIGSTOP)
    assert process.alive()
    assert process.signal(signal.SIGCONT)
    assert process.signal(signal.SIGSTOP)
    assert process.signal(signal.SIGKILL)
    assert container.calls == ["pause", "unpause", "pause", "unpause", "kill 9"]
    assert not process.alive()
    assert not process.signal(signal.SIGKILL)


def test_a_removed_container_is_simply_not_alive() -> None:
    process = ContainerProcess("gone", _Engine())
    assert not process.alive()
    assert not process.signal(signal.SIGKILL)
