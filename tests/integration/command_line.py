"""The command line in a process of its own, started in the shortest time.

Reading the code takes Python most of a second, more than most verbs need. So a verb, and an engine of a test, is forked
from a process that has already read the code. What a verb prints with --json is validated against the published schema.

A `program` is started by Python itself; benches and soaks start all engines so. No such process sees the packages that
only tests have.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import kmigrate.__main__
from kmigrate.cli.app import COMMANDS, main
from kmigrate.sandbox import clients
from tests.json_output import check_output

__all__ = ["Call", "Client", "Engine", "Script", "in_a_test", "program"]

_AS_INSTALLED = """
import runpy, sys
sys.modules["hypothesis"] = None
del sys.argv[0]
run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
run(sys.argv[0], run_name="__main__")
"""

_READY = multiprocessing.get_context("forkserver")
_READY.set_forkserver_preload(
    [
        "tests.integration.as_installed",
        "kmigrate.cli.app",
        *(each.source.partition(":")[0] for each in COMMANDS),
        "kmigrate.cli.process.engines",
        "tests.integration.router_process",
        *(f"kmigrate.sandbox.{family}_clients" for family in ("librdkafka", "aiokafka", "driven")),
        __name__,
    ]
)


def program(name: str, *words: str) -> list[str]:
    """Return the command that starts a module or a file as where only kmigrate is installed.

    With hypothesis installed, kio loads hypothesis, which takes a third of the start.
    """
    return [sys.executable, "-c", _AS_INSTALLED, name, *words]


class Call:
    """A call that runs from now on; its output is kept until a test asks, and validated if the output is JSON."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        with ExitStack() as unless_started:
            self._folder = unless_started.enter_context(tempfile.TemporaryDirectory(prefix="kmigrate-call-"))
            self._out, self._err = Path(self._folder, "out"), Path(self._folder, "err")
            self._process = _READY.Process(
                target=_run,
                args=(arguments, dict(os.environ), os.getcwd(), self._out, self._err),  # noqa: PTH109
            )
            self._process.start()
            self._kept = unless_started.pop_all()

    def end(self, timeout: float) -> tuple[int, str, str] | None:
        """Return exit code and both outputs; kill a call that takes too long, and return None."""
        with self._kept:
            self._process.join(timeout)
            code = self._process.exitcode
            if code is None:
                self._process.kill()
                self._process.join()
                return None
            out = self._out.read_text(encoding="utf-8")
            if "--json" in self._arguments:
                check_output(self._arguments, out)
            return code, out, self._err.read_text(encoding="utf-8")


def in_a_test() -> bool:
    """Return whether pytest runs a test or its fixtures, and no bench or soak."""
    return "PYTEST_CURRENT_TEST" in os.environ


class _Forked:
    """A process that is handled like a `subprocess.Popen`, and ends with pytest at the latest."""

    def __init__(self, words: list[str], run: Callable[..., None], *arguments: Any) -> None:
        self._words = words
        self._process = _READY.Process(target=run, args=(words, *arguments), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code of a process that has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._words, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Engine(_Forked):
    """An engine of the command line; its output is appended to a file."""

    def __init__(self, words: list[str], log: Path) -> None:
        log.touch()
        super().__init__(words, _run_engine, dict(os.environ), os.getcwd(), log)  # noqa: PTH109


class Client(_Forked):
    """A live client of the sandbox in a process group of its own; its output is appended to a file."""

    def __init__(self, launch: Path, log: Path) -> None:
        super().__init__([str(launch)], _run_client, dict(os.environ), os.getcwd(), log)  # noqa: PTH109
        with contextlib.suppress(ProcessLookupError):
            while self.poll() is None and os.getpgid(self.pid) != self.pid:
                time.sleep(0.001)


class Script(_Forked):
    """A Python file as a program with this environment; the test reads the standard output."""

    def __init__(self, words: list[str], environment: Mapping[str, str], folder: Path) -> None:
        reader, writer = _READY.Pipe(duplex=False)
        with reader, writer, Connection(os.dup(2)) as errors:
            super().__init__(words, _run_script, environment, folder, writer, errors)
            self.stdout = open(os.dup(reader.fileno()), encoding="utf-8")  # noqa: PTH123, SIM115


def _run(arguments: list[str], environment: dict[str, str], folder: str, out: Path, err: Path) -> None:
    _enter(environment, folder)
    _write_to(out, err, "wb")
    sys.exit(main(arguments))


def _run_engine(words: list[str], environment: dict[str, str], folder: str, log: Path) -> None:
    _enter(environment, folder)
    _write_to(log, log, "ab")
    sys.argv[:] = ["kmigrate", *words]
    kmigrate.__main__.main()


def _run_client(words: list[str], environment: dict[str, str], folder: str, log: Path) -> None:
    os.setsid()
    _enter(environment, folder)
    _write_to(log, log, "ab")
    sys.exit(clients.main(words))


def _run_script(
    words: list[str], environment: dict[str, str], folder: Path, out: Connection, errors: Connection
) -> None:
    _enter(environment, folder)
    for connection, stream in ((out, sys.stdout), (errors, sys.stderr)):
        os.dup2(connection.fileno(), stream.fileno())
        connection.close()
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")


def _enter(environment: dict[str, str], folder: str | Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def _write_to(out: Path, err: Path, mode: str) -> None:
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        with path.open(mode) as sink:
            os.dup2(sink.fileno(), stream.fileno())
