"""`kmigrate guide` without a cluster, and `kmigrate` without a word: the next step, and never a question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base import wizard
from kmigrate.cli.base.call import Call
from kmigrate.cli.guide.answers import Answers
from kmigrate.cli.guide.guide import _Guide, _Way
from kmigrate.cli.guide.next_step import next_step
from kmigrate.cli.guide.standing import Standing, TopicStanding
from kmigrate.errors import Refused, UsageError
from kmigrate.extras import Extra
from kmigrate.model.lifecycle import TopicPhase


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


def test_a_file_that_is_not_there_yet_is_an_error_that_names_init(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guide", "--config", "new one.toml", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["error"] == "no-config-file"
    assert "kmigrate init --config 'new one.toml'" in told["next"]


@pytest.mark.parametrize("by", ["a flag", "the environment"])
def test_on_a_terminal_the_guide_offers_to_write_the_file_that_is_not_there_yet(
    by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wizard, "choose", lambda question, _: "leave" if question == "How do you begin?" else None)
    if by == "the environment":
        monkeypatch.setenv("KMIGRATE_CONFIG", "new.toml")
    answers = Answers([], [], "", "", "", None, False, "", "", None)
    call = Call(Path("new.toml") if by == "a flag" else None)
    guided = _Guide(call, answers, asks=True)
    assert guided.lead() is None
    assert guided.found["standing"]["place"] == "new.toml"
    assert "There is no configuration with two clusters yet." in capsys.readouterr().out


_PROMOTED = Standing(
    "kmigrate.toml",
    ("new", "old"),
    ("blue",),
    "blue",
    "old",
    "new",
    topics=(TopicStanding("orders", TopicPhase.PROMOTED, 0),),
)


def test_once_all_is_promoted_a_person_can_finish_the_link_or_move_further_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered: list[str] = []

    def choose(_: str, choices: list[tuple[str, object]]) -> object:
        offered[:] = [title for title, _ in choices]
        return choices[1][1]

    monkeypatch.setattr(wizard, "choose", choose)
    guided = _Guide(Call(), Answers([], [], "", "", "", None, False, "", "", None), asks=True)
    assert guided._way(_PROMOTED, next_step(_PROMOTED)) is _Way.CHOOSE
    assert [title.partition(" (")[0] for title in offered] == [
        "let the clients leave the routers",
        "choose further topics and groups",
        "leave",
    ]


@pytest.mark.parametrize(
    ("topics", "run", "way"),
    [([], False, _Way.LEAVE), ([], True, _Way.FINISH), (["audit"], True, _Way.CHOOSE)],
)
def test_without_a_terminal_flags_say_what_follows_the_last_promote(topics: list[str], run: bool, way: _Way) -> None:
    guided = _Guide(Call(), Answers(topics, [], "", "", "", None, run, "", "", None), asks=False)
    assert guided._way(_PROMOTED, next_step(_PROMOTED)) is way
