"""The schema of the JSON output: every command has one, the published file is current, and the check finds mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kmigrate.cli.app import main
from kmigrate.cli.reference.commands import commands
from kmigrate.cli.reference.json_schema import json_schema
from kmigrate.cli.reference.shapes import MERGED
from kmigrate.errors import Refused
from kmigrate.workflow.base.plan import Plan, warn
from tests.json_output import check_document, check_output, command_of, documents_in

_DOCS = Path(__file__).parents[4] / "docs"
_WITHOUT_DOCUMENT = {("playbook", "schema")}
"""Commands that print a JSON schema, which has a schema elsewhere."""


def test_every_command_has_a_schema() -> None:
    words = [" ".join(path) for path in commands() if path not in _WITHOUT_DOCUMENT]
    assert sorted(json_schema()["properties"]) == sorted(words)


def test_the_published_file_is_current() -> None:
    published = json.loads((_DOCS / "json.schema.json").read_text(encoding="utf-8"))
    made_by = "python -m kmigrate.cli.reference.json_schema > docs/json.schema.json"
    assert published == json.loads(json.dumps(json_schema())), f"make it anew: {made_by}"


def test_the_schema_is_one_and_defines_all_that_it_refers_to() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    references = {line.split('"')[3] for line in json.dumps(schema, indent=1).splitlines() if '"$ref"' in line}
    assert references <= {f"#/$defs/{name}" for name in schema["$defs"]}


def test_fields_have_the_descriptions_of_their_source_also_inherited_fields() -> None:
    definitions = json_schema()["$defs"]
    assert definitions["Plan"]["properties"]["applied"]["description"] == "whether the changes were made"
    assert definitions["TopicMirror"]["properties"]["applied"] == definitions["Plan"]["properties"]["applied"]
    assert definitions["TopicMirror"]["required"] == definitions["Plan"]["required"]
    assert "Bytes a second" in definitions["LinkStatus"]["properties"]["throttle"]["description"]


def test_a_document_has_the_fields_of_the_dataclass_that_it_is_made_of() -> None:
    definitions = json_schema()["$defs"]
    for kind, parts in MERGED.items():
        for part in parts:
            assert set(part.__dataclass_fields__) <= set(definitions[kind.__name__]["properties"])  # type: ignore[attr-defined]


def _plan() -> dict[str, Any]:
    return Plan.of("topic pause", ["topic t is paused"], [warn("r", "w", "n")]).as_json()


def test_a_real_document_is_valid() -> None:
    check_document("topic pause", _plan())
    check_document("topic pause", Refused("r", "w", still_true="s", next_step="n").as_json())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"more": 1}, "more"),
        ({"applied": "yes"}, "yes"),
        ({"findings": [{"level": "bad", "ref": "", "what": "", "next": ""}]}, "bad"),
        ({"changes": None}, "None"),
    ],
)
def test_a_document_that_the_schema_does_not_describe_is_found(change: dict[str, Any], named: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_document("topic pause", _plan() | change)
    assert "kmigrate topic pause --json is not as docs/json.schema.json says" in str(caught.value)
    assert named in str(caught.value)


def test_a_field_that_is_missing_is_found() -> None:
    document = _plan()
    del document["applied"]
    with pytest.raises(AssertionError, match="applied"):
        check_document("topic pause", document)


def test_the_command_of_a_call_is_found_in_its_words() -> None:
    assert command_of(["sandbox", "traffic", "roll", "producers"]) == "sandbox traffic roll"
    assert command_of(["verify", "--follow"]) == "verify"
    assert command_of(["--help"]) is None


def test_an_output_may_have_several_documents_and_an_end_that_is_no_json() -> None:
    assert list(documents_in('{"a": 1}\n{"b": 2}\nTraceback')) == [{"a": 1}, {"b": 2}]
    check_output(["--version"], "kmigrate 1")


@pytest.mark.parametrize(
    "words",
    [["playbook", "plan", "p.toml"], ["playbook", "run", "p.toml"], ["doctor"], ["doctor", "--print-acls"]],
)
def test_outputs_that_need_no_cluster_are_valid(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)
    (tmp_path / "p.toml").write_text(
        '[variables]\nx = ["a"]\n[[step]]\nexec = "true"\n[[step]]\nexec = "false"\nretries = 1\nretry-delay = 0\n'
        '[[on_failure]]\nwait = "seconds 0"\n',
        encoding="utf-8",
    )
    main([*words, "--json"])
    text = capfd.readouterr().out
    assert list(documents_in(text))
    check_output(words, text)
