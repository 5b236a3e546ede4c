"""The wheel, installed into a folder without its dependencies and run from there: the repository is out of sight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import kmigrate
from kmigrate.workflow.playbook.shipped import shipped_playbooks

_REPOSITORY = Path(kmigrate.__file__).parents[1]
_BUILD = "from flit_core.buildapi import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
_PROGRAM = """
import contextlib, io, json, sys
from kmigrate.cli.app import main

sys.modules["hypothesis"] = None
for line in sys.stdin:
    words, without = json.loads(line)
    sys.modules.update(dict.fromkeys(without))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*words, "--json"])
    for package in without:
        del sys.modules[package]
    print(json.dumps([code, out.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-c", _BUILD, folder], cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True, check=True
    )
    place = folder / "installed"
    with zipfile.ZipFile(folder / built.stdout.strip()) as wheel:
        wheel.extractall(place)
    return place


class Installed:
    """Calls of the unpacked wheel, in a single process far from the repository, which saves most of each start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=folder.parent,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KMIGRATE_")}
        return {**kept, "PYTHONPATH": str(self.folder)}

    def says(self, *words: str, without: Sequence[str] = ()) -> tuple[int, Any]:
        """Return exit code and JSON of a call, made as if the packages `without` were not installed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([words, without]) + "\n")
        self._process.stdin.flush()
        code, text = json.loads(self._process.stdout.readline())
        return code, json.loads(text)

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def installed(unpacked: Path) -> Iterator[Installed]:
    made = Installed(unpacked)
    yield made
    made.end()


def test_the_wheel_holds_every_file_of_the_package(unpacked: Path) -> None:
    files = {
        path.relative_to(_REPOSITORY)
        for path in (_REPOSITORY / "kmigrate").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {each.suffix for each in files} >= {".py", ".toml", ".jinja", ".java", ".go", ".mod", ".sum"}
    assert {path for path in files if not (unpacked / path).is_file()} == set()


@pytest.mark.parametrize(("option", "shown"), [("--version", kmigrate.__version__), ("--help", "promote")])
def test_the_installed_program_starts_without_the_repository(installed: Installed, option: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kmigrate", option],
        cwd=installed.folder.parent,
        env=installed.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown in done.stdout


def test_shipped_playbooks_are_listed_and_checked_by_name(installed: Installed) -> None:
    code, told = installed.says("playbook", "list")
    listed = {each["name"]: each for each in told["playbooks"]}
    assert code == 0
    assert listed.keys() == shipped_playbooks().keys() > set()
    assert all(Path(each["file"]).is_relative_to(installed.folder) for each in listed.values())
    code, told = installed.says("playbook", "plan", "quickstart", without=["pyspark"])
    assert (code, told["title"]) == (0, listed["quickstart"]["title"])


@pytest.mark.parametrize(
    ("words", "without", "extra"),
    [
        (["verify"], ["pyspark"], "verify"),
        (["promote", "orders", "--verify"], ["pyspark"], "verify"),
        (["topic", "mirror", "orders", "--engine", "spark"], ["pyspark"], "verify"),
        (["playbook", "run", "quickstart", "--yes"], ["pyspark"], "verify"),
        (["sandbox", "up"], ["pyspark"], "sandbox"),
        (["sandbox", "demo"], ["aiokafka", "testcontainers"], "sandbox"),
        (["sandbox", "traffic", "start"], ["aiokafka"], "sandbox"),
    ],
)
def test_a_missing_extra_is_refused_with_its_install_command(
    installed: Installed, words: list[str], without: list[str], extra: str
) -> None:
    code, told = installed.says(*words, without=without)
    assert (code, told["error"]) == (3, "extra-missing")
    assert ", ".join(without) in told["what"]
    assert f"pip install 'kmigrate[{extra}]'" in told["next"]


def test_doctor_names_a_missing_extra_and_goes_on(installed: Installed) -> None:
    code, told = installed.says("doctor", without=["pyspark"])
    missing = {each["next"]: each["what"] for each in told["machine"] if each["ref"] == "extra-missing"}
    assert code == 0
    assert missing.keys() == {"pip install 'kmigrate[verify]'", "pip install 'kmigrate[sandbox]'"}
    assert all(what.startswith("pyspark: not installed") for what in missing.values())
