"""The tables of docs/playbooks.md, made from the keys of steps: `python -m kmigrate.cli.reference.playbooks FILE`.

People write the page above the marker, which stays. A test compares the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kmigrate.cli.commands.playbook_verbs import verbs
from kmigrate.workflow.playbook.fields import Fields
from kmigrate.workflow.playbook.parse import APPROVE, EVERY_STEP, EXEC, LIMIT, WAIT
from kmigrate.workflow.playbook.steps import DANGEROUS
from kmigrate.workflow.playbook.variables import DECLARATION

__all__ = ["with_tables"]

_MARKER = "<!-- From here on made by `python -m kmigrate.cli.reference.playbooks docs/playbooks.md`; do not edit. -->\n"


def with_tables(page: str) -> str:
    """Return the page with today's tables below the marker."""
    written, marker, _ = page.partition(_MARKER)
    kinds = {"Every step": EVERY_STEP, "`exec`": EXEC, "`wait`": WAIT, "`approve`": APPROVE}
    tables = [_table("##", "Keys of steps", {}), *(_table("###", name, fields) for name, fields in kinds.items())]
    for verb, own in verbs().items():
        tables.append(_table("###", f'`run = "{verb}"`', _of_verb(own), asks=verb in DANGEROUS))
    return "".join((written, marker, *tables, _table("##", "Keys of a variable", DECLARATION)))


def _of_verb(own: Fields) -> Fields:
    return own if "timeout" in own else {**own, **LIMIT}


def _table(level: str, title: str, fields: Fields, *, asks: bool = False) -> str:
    lines = [f"\n{level} {title}\n"]
    lines += ["\nA playbook with this verb asks for a yes.\n"] if asks else []
    lines += ["\n| key | value | meaning |\n|---|---|---|\n"] if fields else []
    for key, field in fields.items():
        name = f"`{key}` (required)" if field.required else f"`{key}`"
        lines.append(f"| {name} | {_cell(field.expected)} | {_cell(field.meaning)} |\n")
    return "".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
