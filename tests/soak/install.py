"""The wheel in a person's hands: fresh environments, far from the repository, with three installers.

    python -m tests.soak.install [--without-demo]

pip, `uv tool` and pipx, which pip fetches from PyPI, install the wheel without extras. In each environment the version,
the help and the plan of a shipped playbook must work, and `verify` must name the extra that is missing. In the end pip
installs the wheel with all extras, and `kmigrate sandbox demo` runs there.

The soak writes build/soak/install.json: the wheel's size, and the size and the failed calls of each environment. Exit
code 1 where a call fails, or where the core's files take 120 MB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from kmigrate import __version__
from tests.figures import save

_REPOSITORY = Path(__file__).parents[2]
_BUILD = "import sys; from flit_core.buildapi import build_wheel; print(build_wheel(sys.argv[1]))"
_MOST_MB = 120.0
_OF_THE_CALLER = ("KMIGRATE_CONFIG", "KMIGRATE_SANDBOX", "PYTHONPATH", "VIRTUAL_ENV")
_OF_THE_INSTALLER = frozenset({"pip", "setuptools", "pkg_resources", "_distutils_hack"})

say = Console(stderr=True, highlight=False).print


@dataclass
class Environment:
    """An environment with kmigrate: the size of all packages but the installer's own, and the failed calls."""

    files_mb: float
    bytecode_mb: float
    seconds: float
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Soak:
    """A wheel, and a folder for the environments."""

    wheel: Path
    folder: Path

    def pip(self, name: str, *packages: str) -> Path:
        """Return the bin folder of a fresh virtual environment with these packages."""
        place = self.folder / name
        self.run([sys.executable, "-m", "venv", str(place)])
        self.run([str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])
        return place / "bin"

    def core_by_pip(self) -> Path:
        return self.pip("pip", str(self.wheel)) / "kmigrate"

    def core_by_uv(self) -> Path:
        tools = self.pip("uv", "uv")
        bins = self.folder / "uv-bin"
        places = {
            "UV_TOOL_DIR": self.folder / "uv-tools",
            "UV_TOOL_BIN_DIR": bins,
            "UV_CACHE_DIR": self.folder / "uv-c",
        }
        command = [str(tools / "uv"), "tool", "install", "--quiet", "--python", sys.executable, str(self.wheel)]
        self.run(command, places)
        return bins / "kmigrate"

    def core_by_pipx(self) -> Path:
        tools = self.pip("pipx", "pipx")
        bins = self.folder / "pipx-bin"
        places = {"PIPX_HOME": self.folder / "pipx-home", "PIPX_BIN_DIR": bins}
        self.run([str(tools / "pipx"), "install", "--python", sys.executable, str(self.wheel)], places)
        return bins / "kmigrate"

    def everything(self) -> Path:
        return self.pip("all", f"kmigrate[all] @ {self.wheel.as_uri()}") / "kmigrate"

    def run(self, command: Sequence[str], places: Mapping[str, Path] | None = None) -> None:
        """Run an installer far from the repository; an error ends the soak."""
        environment = {**_environment(), **{name: str(path) for name, path in (places or {}).items()}}
        subprocess.run(command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, check=True)

    def measure(self, program: Path, began: float, calls: Mapping[tuple[str, ...], tuple[int, str]]) -> Environment:
        """Return the environment's size, and the calls that did not end with the exit code and the words expected."""
        own, compiled = _megabytes(program.resolve().parents[1])
        found = Environment(round(own, 1), round(compiled, 1), round(time.monotonic() - began, 1))
        for words, (code, text) in calls.items():
            done = subprocess.run(
                [program, *words], cwd=self.folder, env=_environment(), capture_output=True, text=True, check=False
            )
            if done.returncode != code or text not in done.stdout:
                found.failed.append(
                    f"kmigrate {' '.join(words)}: {done.returncode} {done.stdout[-400:]}{done.stderr[-400:]}"
                )
        say(f"{program}: {asdict(found)}")
        return found


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_THE_CALLER}


def _megabytes(environment: Path) -> tuple[float, float]:
    """Return the sizes of an environment's packages: of all files but Python's bytecode, and of that bytecode."""
    own = compiled = 0
    for packages in environment.glob("lib/python3*/site-packages"):
        for path in packages.rglob("*"):
            if path.is_file() and path.relative_to(packages).parts[0].partition("-")[0] not in _OF_THE_INSTALLER:
                size = path.stat().st_size
                own, compiled = (own, compiled + size) if path.suffix == ".pyc" else (own + size, compiled)
    return own / 1e6, compiled / 1e6


def play(folder: Path, *, demo: bool) -> dict[str, Environment]:
    built = subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder)], cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True, check=True
    )
    soak = Soak(folder / built.stdout.strip(), folder)
    core_calls = {
        ("--version",): (0, __version__),
        ("--help",): (0, "promote"),
        ("playbook", "plan", "quickstart"): (0, "topic mirror"),
        ("verify", "--json"): (3, "kmigrate[verify]"),
        ("sandbox", "up", "--json"): (3, "kmigrate[sandbox]"),
    }
    demo_calls = {
        ("--version",): (0, __version__),
        ("sandbox", "demo", "--records", "20000", "--folder", str(folder / "demo"), "--json"): (0, '"clean": true'),
    }
    found = {}
    for name, install in (("pip", soak.core_by_pip), ("uv tool", soak.core_by_uv), ("pipx", soak.core_by_pipx)):
        began = time.monotonic()
        found[name] = soak.measure(install(), began, core_calls)
    if demo:
        began = time.monotonic()
        found["pip, all extras"] = soak.measure(soak.everything(), began, demo_calls)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="The wheel in fresh environments.")
    parser.add_argument("--without-demo", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kmigrate-install-") as folder:
        found = play(Path(folder), demo=not given.without_demo)
    core_mb = max(each.files_mb for name, each in found.items() if name != "pip, all extras")
    clean = core_mb < _MOST_MB and not any(each.failed for each in found.values())
    figures = {"clean": clean, "core_mb": core_mb, "environments": {name: asdict(each) for name, each in found.items()}}
    path = save("soak/install", figures)
    say(f"{path}: core {core_mb} MB, clean: {clean}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
