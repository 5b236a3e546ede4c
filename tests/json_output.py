"""Validates what the command line prints with `--json` against the published schema of the command.

The published schema allows further fields, because later versions may add fields. Here no further field is allowed, so
that a field without a description in the schema fails the test that met the field.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from kmigrate.cli.reference.json_schema import json_schema

__all__ = ["check_document", "check_output", "command_of", "documents_in"]


def check_output(words: Sequence[str], text: str) -> None:
    """Validate all that a command printed on stdout."""
    command = command_of(words)
    if command is not None:
        for document in documents_in(text):
            check_document(command, document)


def check_document(command: str, document: Any) -> None:
    """Validate one document against the shape that fits best, so that the failure names the field that does not fit."""
    found = [list(shape.iter_errors(document)) for shape in _shapes(command)]
    fewest = min(len(errors) for errors in found)
    error = best_match(next(errors for errors in found if len(errors) == fewest))
    if error is None:
        return
    place = "/".join(map(str, error.absolute_path)) or "the document"
    raise AssertionError(
        f"kmigrate {command} --json is not as docs/json.schema.json says, at {place}: {error.message[:500]}\n"
        f"the type of the document is in kmigrate/cli/reference/shapes.py\n{json.dumps(document)[:2_000]}"
    )


def command_of(words: Sequence[str]) -> str | None:
    """Return the command that the words of a call begin with; None without a command, as in `--help`."""
    commands = json_schema()["properties"]
    found = [" ".join(words[:length]) for length in range(1, 4)]
    return next((each for each in reversed(found) if each in commands), None)


def documents_in(text: str) -> Iterator[Any]:
    """Yield the documents of an output: one document, or a line per event; a text that is no JSON ends the output."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            document, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        yield document


@cache
def _shapes(command: str) -> tuple[Draft202012Validator, ...]:
    """Return the shapes that a document of the command may have, without further fields."""
    schema = copy.deepcopy(json_schema())
    _close(schema["$defs"])
    return tuple(
        Draft202012Validator({"$defs": schema["$defs"], **shape}) for shape in schema["properties"][command]["anyOf"]
    )


def _close(schema: Any) -> None:
    """Forbid further fields in every object of a schema."""
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    elif isinstance(schema, dict):
        for each in schema.values():
            _close(each)
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
