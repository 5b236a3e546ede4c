"""The command line in a process of its own, started in the shortest time.

Reading the code takes Python most of a second, more than most verbs need. So a verb is forked from a process that has
already read the code. What a verb prints with --json is validated against the published schema.

Engines are programs of their own, without packages that only tests have.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from kmigrate.cli.app import COMMANDS, main
from tests.json_output import check_output

__all__ = ["Call", "program"]

_AS_INSTALLED = """
import runpy, sys
sys.modules["hypothesis"] = None
del sys.argv[0]
run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
run(sys.argv[0], run_name="__main__")
"""

_READY = multiprocessing.get_context("forkserver")
_READY.set_forkserver_preload(["kmigrate.cli.app", *(each.source.partition(":")[0] for each in COMMANDS)])


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


def _run(arguments: list[str], environment: dict[str, str], folder: str, out: Path, err: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        with path.open("wb") as sink:
            os.dup2(sink.fileno(), stream.fileno())
    sys.exit(main(arguments))
