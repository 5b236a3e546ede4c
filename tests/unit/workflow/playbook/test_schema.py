"""The JSON schema of playbooks accepts what the parser accepts, and finds the mistakes that a schema can find."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import tomli

from kmigrate.cli.app import main
from kmigrate.cli.commands.playbook_verbs import verbs
from kmigrate.workflow.playbook.schema import playbook_schema

_ROOT = Path(__file__).parents[4]
_SCHEMA = jsonschema.Draft7Validator(playbook_schema(verbs()))


def test_the_schema_is_one_and_the_published_file_is_current() -> None:
    jsonschema.Draft7Validator.check_schema(playbook_schema(verbs()))
    published = json.loads((_ROOT / "docs" / "playbook.schema.json").read_text(encoding="utf-8"))
    assert published == playbook_schema(verbs()), "make it anew: kmigrate playbook schema > docs/playbook.schema.json"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_person_gets_the_schema_as_json(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["playbook", "schema", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == playbook_schema(verbs())


@pytest.mark.parametrize("file", sorted((_ROOT / "kmigrate" / "playbooks").glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_playbook_is_valid(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    _SCHEMA.validate(tomli.loads(text))
    if text.startswith("#:schema "):
        named = text.splitlines()[0].removeprefix("#:schema ")
        assert (file.parent / named).resolve() == _ROOT / "docs" / "playbook.schema.json"


@pytest.mark.parametrize(
    "text",
    [
        "[[step]]\nrun = 'promote'\ntopics = '${topics}'\ntimeout = '${seconds}'\nverify = '${verify}'",
        "[variables.pw]\nsecret = true\n[[step]]\napprove = 'x'\nfile = 'y'",
        "[[step]]\nexec = 'a'\nwhen = true\n[[on_failure]]\nrun = 'topic pause'\ntopics = ['x']",
    ],
)
def test_variables_approvals_and_steps_after_a_failure_are_valid(text: str) -> None:
    _SCHEMA.validate(tomli.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "title = 'no step'",
        "[[step]]\ntitle = 'x'",
        "[[step]]\nrun = 'verify'\nexec = 'x'",
        "[[step]]\nrun = 'promot'",
        "[[step]]\nrun = 'promote'",
        "[[step]]\nrun = 'promote'\ntopics = 'x'",
        "[[step]]\nrun = 'promote'\ntopics = ['x']\nyes = true",
        "[[step]]\nrun = 'promote'\ntopics = ['x']\ntimeout = -1",
        "[[step]]\nrun = 'topic mirror'\ntopics = ['x']\noffsets = 'same'",
        "[[step]]\nexec = 'x'\n[[on_failure]]\napprove = 'x'",
        "[variables.x]\nsecrt = true\n[[step]]\nexec = 'x'",
    ],
)
def test_mistakes_are_found(text: str) -> None:
    assert not _SCHEMA.is_valid(tomli.loads(text))
