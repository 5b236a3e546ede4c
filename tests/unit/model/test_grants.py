"""The list of least privileges is the list in the documentation."""

from __future__ import annotations

from pathlib import Path

from kmigrate.model.grants import GRANTS

_KINDS = {"CLUSTER": "Cluster", "TOPIC": "Topic", "GROUP": "Group", "TRANSACTIONAL_ID": "TransactionalId"}


def test_the_page_on_security_shows_every_grant_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    source, target = page.split("On the source:")[1].split("## ")[0].split("On the target:")
    for side, text in (("source", source), ("target", target)):
        shown = [line for line in text.splitlines() if line.startswith("|")][2:]
        assert shown == [f"| {_KINDS[g.resource]} | {g.operation} | {g.why} |" for g in GRANTS if g.side == side]
