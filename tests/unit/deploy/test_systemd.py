"""Tests of the systemd units. `make soak-deploy` has systemd itself verify the units."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kmigrate.config.load import load
from tests.command_lines import command_of

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


def settings_of(unit: Path) -> list[tuple[str, str]]:
    lines = unit.read_text(encoding="utf-8").splitlines()
    return [(key, value) for key, sign, value in (line.partition("=") for line in lines) if sign and key[0].isupper()]


def environment_of(unit: Path) -> dict[str, str]:
    return dict(value.split("=", 1) for key, value in settings_of(unit) if key == "Environment")


def hardening_of(unit: Path) -> list[tuple[str, str]]:
    found = settings_of(unit)
    return found[found.index(("NoNewPrivileges", "yes")) : found.index(("WantedBy", "multi-user.target"))]


def test_there_is_a_unit_for_each_engine() -> None:
    assert [unit.name for unit in UNITS] == [
        "kmigrate-controller.service", "kmigrate-mirror.service", "kmigrate-router@.service",
    ]  # fmt: skip


@each_unit
def test_a_unit_starts_a_command_of_kmigrate(unit: Path) -> None:
    environment = environment_of(unit)
    command = dict(settings_of(unit))["ExecStart"].replace("%i", "edge-1")
    words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda name: environment[name[1]], command))
    assert words[0] == "/opt/kmigrate/bin/kmigrate"
    engine = unit.name.removeprefix("kmigrate-").removesuffix(".service").removesuffix("@")
    assert command_of(words[1:]) == f"{engine} run"


@each_unit
def test_a_unit_sets_keys_of_the_configuration(unit: Path, tmp_path: Path) -> None:
    file = tmp_path / "kmigrate.toml"
    file.write_text('[clusters.new]\n"bootstrap.servers" = "new:9092"\n', encoding="utf-8")
    settings = load(None, {**environment_of(unit), "KMIGRATE_CONFIG": str(file)})
    assert settings.metrics.listen.startswith("127.0.0.1:")


def test_units_of_one_machine_serve_metrics_at_ports_of_their_own() -> None:
    listens = [environment_of(unit)["KMIGRATE_METRICS__LISTEN"] for unit in UNITS]
    assert len(set(listens)) == len(UNITS)


def test_all_units_are_hardened_alike() -> None:
    first, *others = map(hardening_of, UNITS)
    assert len(first) > 25
    assert all(other == first for other in others)


@each_unit
def test_a_unit_leaves_the_boot_id_readable(unit: Path) -> None:
    """Without the boot id a router does not know that the router before it was killed, and waits for its silence."""
    assert "ProcSubset" not in dict(settings_of(unit))


@each_unit
def test_a_unit_comes_back_after_any_end_but_a_mistake_in_the_configuration(unit: Path) -> None:
    found = dict(settings_of(unit))
    assert (found["Restart"], found["RestartPreventExitStatus"], found["StartLimitIntervalSec"]) == ("always", "2", "0")
