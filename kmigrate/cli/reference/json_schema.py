"""docs/json.schema.json, the schema of every `--json` output: `python -m kmigrate.cli.reference.json_schema`."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

from kmigrate.cli.reference.json_types import SchemaOfTypes
from kmigrate.cli.reference.shapes import COMMANDS, MERGED, Doctor, Error, Finding

__all__ = ["json_schema"]


@cache
def json_schema() -> dict[str, Any]:
    """Return the schema of an object that has a document of each command, by the command's words."""
    made = SchemaOfTypes(MERGED)
    error, finding = made.of(Error), made.of(Finding)
    properties: dict[str, Any] = {}
    for command, kinds in COMMANDS.items():
        documents = [made.of(kind) for kind in kinds]
        properties[command] = {"anyOf": [*documents, error]}
    # The names of the other fields are those of the clusters, so they are no fields of a type.
    made.definitions[Doctor.__name__]["additionalProperties"] = {"type": "array", "items": finding}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Documents of kmigrate",
        "description": "Each property is a command; its value is a document, or a line, that the command prints.",
        "type": "object",
        "properties": properties,
        "$defs": dict(sorted(made.definitions.items())),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n")
