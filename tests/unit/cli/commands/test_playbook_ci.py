"""The CI pipelines of the docs are valid for their servers, and their commands for kmigrate."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kmigrate import __version__
from kmigrate.cli.app import main

_ROOT = Path(__file__).parents[4]
_PIPELINES = {"github-actions.yml": "vendor.github-workflows", "gitlab-ci.yml": "vendor.gitlab-ci"}
_COMMAND = re.compile(r"(?:- run: |  run: |- )(kmigrate playbook [^>|\n]+)")


@pytest.mark.parametrize(("file", "schema"), _PIPELINES.items())
def test_a_pipeline_is_valid_for_its_server(file: str, schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(_ROOT / "docs" / "ci" / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", _PIPELINES)
def test_a_pipeline_installs_the_wheel_of_this_version_from_a_file(file: str) -> None:
    """A registry may have another program under the name kmigrate, and the jobs hold passwords."""
    installed = re.findall(r"pipx? install (\S+)", (_ROOT / "docs" / "ci" / file).read_text(encoding="utf-8"))
    assert set(installed) == {f"'./migration/kmigrate-{__version__}-py3-none-any.whl[verify]'"}


@pytest.mark.parametrize("file", _PIPELINES)
def test_the_playbook_of_each_command_and_its_variables_exist(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command is called with --plan, which contacts nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)
    monkeypatch.setenv("KMIGRATE_VAR_TOPICS", "orders")
    monkeypatch.setenv("KMIGRATE_VAR_GROUPS", "")
    commands = _COMMAND.findall((_ROOT / "docs" / "ci" / file).read_text(encoding="utf-8"))
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)[1:]
        assert words[2] == "ci-gate"
        words[2] = str(_ROOT / "kmigrate" / "playbooks" / "ci-gate.toml")
        assert main([*words, *(["--plan"] if words[1] == "run" else [])]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("file", _PIPELINES)
def test_the_plan_needs_no_password_that_the_configuration_names(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pull request of somebody else gets no secrets."""
    (tmp_path / "migration").mkdir()
    (tmp_path / "migration" / "kmigrate.toml").write_text(
        '[clusters.source]\n"bootstrap.servers" = "h:1"\n"sasl.password" = { env = "SOURCE_PASSWORD" }\n', "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOURCE_PASSWORD", raising=False)
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)
    text = (_ROOT / "docs" / "ci" / file).read_text(encoding="utf-8")
    pipeline = yaml.safe_load(text)
    plan = pipeline.get("jobs", pipeline)["plan"]
    for table in (pipeline.get("env"), pipeline.get("variables"), plan.get("env"), plan.get("variables")):
        for name, value in (table or {}).items():
            monkeypatch.setenv(name, "" if "${{" in value else value)
    monkeypatch.setenv("KMIGRATE_VAR_TOPICS", "orders")
    command = next(each for each in _COMMAND.findall(text) if "playbook plan" in each)
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
