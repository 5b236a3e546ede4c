"""docs/errors.md, made from the registry, compared by a test: `python -m kmigrate.cli.reference.errors`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping

from kmigrate.cli.base.references import Reference, references

__all__ = ["page"]

_HEAD = """# Error references

Made by `python -m kmigrate.cli.reference.errors > docs/errors.md`; do not edit.

Each error and each finding of a plan has a reference. The last line of an error on a terminal names the reference, and
`--json` has the reference in the field `error` or `ref` ([json.md](json.md)). `kmigrate explain REF` prints the same
texts as this page, `kmigrate explain --list` prints all of them. A reference does not change between versions.

Tests hold this page against the code: each reference in the code is explained here, and each explanation is used
(`tests/unit/cli/base/test_references.py`).
"""


def page() -> str:
    """Return the whole page: a section for each area, and an anchor for each reference."""
    areas: Mapping[str, list[Reference]] = defaultdict(list)
    for each in references().values():
        areas[each.area].append(each)
    parts = [_HEAD]
    for area, found in areas.items():
        parts.append(f"\n## {area}\n")
        parts += map(_section, found)
    return "".join(parts)


def _section(found: Reference) -> str:
    return (
        f"\n### {found.ref}\n\n"
        f"- *What happened:* {found.what}\n"
        f"- *Still true:* {found.still_true}\n"
        f"- *What to do:* {found.next_step}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())
