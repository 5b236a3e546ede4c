"""Questions about one cluster: a wrong answer is named while a person types."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kmigrate.cli.base import wizard
from kmigrate.cli.guide.cluster_questions import ask_cluster


def test_a_file_in_a_home_directory_of_nobody_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    answers = iter(["old-1:9093", ""])

    def type_in(question: str, default: str, wrong: Callable[[str], str]) -> str:
        told.append(wrong("~no-such-user/ca.pem"))
        return next(answers)

    monkeypatch.setattr(wizard, "type_in", type_in)
    monkeypatch.setattr(wizard, "choose", lambda *_: "SSL")
    cluster, _ = ask_cluster("source", "old")
    assert told[1] == "there is no file ~no-such-user/ca.pem"
    assert cluster.keys == {"bootstrap.servers": "old-1:9093", "security.protocol": "SSL"}
