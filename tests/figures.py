"""Files in which benchmarks and soaks leave their figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["save"]


def save(name: str, found: Mapping[str, Any]) -> Path:
    """Write build/NAME.json, and return the path for the printed result."""
    path = Path("build") / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path
