"""The JSON schema of playbooks, for editors: completion and mistakes while a person writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kmigrate.workflow.playbook.fields import Field, Fields
from kmigrate.workflow.playbook.parse import APPROVE, EVERY_STEP, EXEC, LIMIT, WAIT
from kmigrate.workflow.playbook.variables import DECLARATION

__all__ = ["playbook_schema"]

_TEXT = {"type": "string", "minLength": 1}
_VARIABLE = {"type": "string", "pattern": r"^\$\{[A-Za-z][A-Za-z0-9_-]*\}$"}
"""A variable alone, which takes the place of a value of any type."""
_OTHER_KINDS: Mapping[str, tuple[str, Fields]] = {
    "exec": ("a command line, run without a shell", EXEC),
    "wait": ("a condition on the status", WAIT),
    "approve": ("a question that somebody answers with yes", APPROVE),
}


def playbook_schema(verbs: Mapping[str, Fields]) -> dict[str, Any]:
    """Return the schema (draft 7, which editors of TOML know)."""
    kinds = [_step(kind, {**_TEXT, "description": meaning}, fields) for kind, (meaning, fields) in _OTHER_KINDS.items()]
    runs = [_step("run", {"const": verb}, fields) for verb, fields in verbs.items()]
    after = [each for each in kinds if "approve" not in each["required"]]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Playbook of kmigrate",
        "type": "object",
        "required": ["step"],
        "additionalProperties": False,
        "properties": {
            "title": {"type": "string", "description": "the title, shown in the plan"},
            "variables": {"type": "object", "additionalProperties": _variable()},
            "defaults": {"type": "object", "additionalProperties": False, "properties": {"link": _TEXT}},
            "step": {"type": "array", "minItems": 1, "items": {"anyOf": [*runs, *kinds]}},
            "on_failure": {"type": "array", "items": {"anyOf": [*runs, *after]}},
        },
    }


def _variable() -> dict[str, Any]:
    plain: list[dict[str, Any]] = [
        {"type": ["string", "number", "boolean"]},
        {"type": "array", "items": _TEXT},
    ]
    table = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _described(field, field.schema) for key, field in DECLARATION.items()},
    }
    return {"anyOf": [*plain, table]}


def _step(kind: str, sentence: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    fields = {**EVERY_STEP, **LIMIT, **own}
    return {
        "type": "object",
        "required": [kind, *(key for key, field in own.items() if field.required)],
        "additionalProperties": False,
        "properties": {kind: dict(sentence), **{key: _value(field) for key, field in fields.items()}},
    }


def _value(field: Field) -> dict[str, Any]:
    if field.schema.get("type") == "string":
        return _described(field, field.schema)
    return _described(field, {"anyOf": [dict(field.schema), _VARIABLE]})


def _described(field: Field, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": field.meaning, **schema} if field.meaning else dict(schema)
