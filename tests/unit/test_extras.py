"""Optional packages: the names in the code are those of the installation, and a missing package is refused."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
import tomli

import kmigrate
from kmigrate.cli.commands.doctor import machine_findings
from kmigrate.errors import Refused
from kmigrate.extras import EXTRAS, SANDBOX, VERIFY

_PROJECT = tomli.loads((Path(kmigrate.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_extras_are_those_of_the_installation() -> None:
    declared = _PROJECT["optional-dependencies"]
    for extra in EXTRAS:
        assert tuple(each.partition(">")[0] for each in declared[extra.name]) == extra.packages
    assert declared["all"] == ["kmigrate[sandbox,verify]"]


def test_no_package_of_an_extra_is_part_of_the_core() -> None:
    core = {each.partition(">")[0] for each in _PROJECT["dependencies"]}
    assert "kio" in core
    assert not core & {package for extra in EXTRAS for package in extra.packages}


def test_a_missing_package_is_refused_with_the_command_that_installs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    VERIFY.need("kmigrate verify")
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    VERIFY.need("kmigrate verify")
    with pytest.raises(Refused, match="extra-missing") as caught:
        SANDBOX.need("kmigrate sandbox up")
    assert caught.value.what == "kmigrate sandbox up needs aiokafka: not installed"
    assert caught.value.next_step.startswith("pip install 'kmigrate[sandbox]'")


def test_doctor_lists_the_extras_and_warns_of_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"extra-sandbox", "extra-verify"} <= {finding.ref for finding in machine_findings()}
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    warned = [finding for finding in machine_findings() if finding.ref == "extra-missing"]
    assert [(finding.level, finding.next_step) for finding in warned] == [("warn", SANDBOX.install)]


def test_doctor_installs_a_missing_package_of_the_core_by_its_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry may have another program under the name kmigrate."""
    version = importlib.metadata.version

    def gone(package: str) -> str:
        if package == "crc32c":
            raise importlib.metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", gone)
    (missing,) = [finding for finding in machine_findings() if finding.ref == "package-missing"]
    wanted = next(each for each in _PROJECT["dependencies"] if each.startswith("crc32c"))
    assert missing.next_step == f"pip install '{wanted}'"
