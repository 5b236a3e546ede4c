"""`kmigrate guide` without a cluster, and `kmigrate` without a word: the next step, and never a question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.guide.answers import Answers
from kmigrate.cli.guide.guide import _Guide
from kmigrate.cli.guide.standing import Standing
from kmigrate.errors import Refused, UsageError
from kmigrate.extras import Extra


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)


def test_without_a_configuration_the_next_step_is_init(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guide", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["next"]["stage"], told["next"]["command"]) == ("configure", "kmigrate init")
    assert told["standing"]["clusters"] == []


def test_without_a_terminal_kmigrate_alone_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage: kmigrate" in capsys.readouterr().out


def test_without_a_yes_no_playbook_is_written(tmp_path: Path) -> None:
    answers = Answers(["orders"], [], "blue", "old", "new", tmp_path / "orders.toml", True, "", "", None)
    with pytest.raises(UsageError) as caught:
        _Guide(Call(json=True), answers, asks=False)._travel(Standing("kmigrate.toml"))
    assert caught.value.ref == "needs-yes"
    assert not list(tmp_path.iterdir())


def test_a_verify_without_spark_is_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extra, "missing", lambda _: ("pyspark",))
    answers = Answers(["orders"], [], "blue", "old", "new", None, True, "", "", verify=True, yes=True)
    with pytest.raises(Refused) as caught:
        _Guide(Call(json=True), answers, asks=False)._travel(Standing("kmigrate.toml"))
    assert caught.value.ref == "extra-missing"


def test_a_target_that_does_not_answer_is_an_error_with_a_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    text = '[clusters.a]\n"bootstrap.servers" = "127.0.0.1:1"\n[clusters.b]\n"bootstrap.servers" = "127.0.0.1:2"\n'
    Path("kmigrate.toml").write_text(f'{text}[defaults]\ntarget = "b"\n', encoding="utf-8")
    assert main(["guide", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["error"] == "cluster-unreachable"
    assert told["next"]
