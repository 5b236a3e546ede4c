"""Kafka's own message schemas, as they ship in the kafka-clients jar of a version."""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from typing import Any

from kmigrate.sandbox.jars import ensure_jars

__all__ = ["message_schemas"]


@cache
def message_schemas(version: str) -> dict[int, dict[str, Any]]:
    """Return the request and response schema of each API, by API key."""
    jar = next(ensure_jars("kafka", version).glob("kafka-clients-*.jar"))
    out: dict[int, dict[str, Any]] = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(("Request.json", "Response.json")):
                text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                schema = json.loads(text)
                out.setdefault(schema["apiKey"], {})[schema["type"]] = schema
    return out
