"""The steps one by one: the verb's plan before each question, and a way on from every stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kmigrate.cli.base import wizard
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands.playbook_verbs import CALLS
from kmigrate.cli.commands.playbook_verbs import verbs as keys_of_verbs
from kmigrate.cli.guide.itinerary import Choices
from kmigrate.cli.guide.journey import Journey
from kmigrate.errors import Failed, Interrupted, Refused, UsageError

_GO_ON = "kmigrate guide --link blue --topic orders --run"
_MIRROR = {"title": "Copy.", "run": "topic mirror", "topics": ["orders"]}
_PROMOTE = {"title": "Switch.", "run": "promote", "topics": ["orders"]}
_MOVE = {"title": "Restart.", "approve": "Have all producers restarted?"}


class Verbs:
    """Stands for the verbs: keeps the calls, and answers with changes, or raises what a test planned."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.changes = ["a change"]
        self.failures: list[BaseException] = []

    def named(self, name: str) -> Callable[..., Answer]:
        def verb(call: Call, plan: bool = False, **options: Any) -> Answer:
            self.calls.append((name, plan))
            if not plan and self.failures:
                raise self.failures.pop(0)
            return Answer({"changes": self.changes}, Text(f"{name}: {'would' if plan else 'done'}"))

        return verb


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> Verbs:
    keys_of_verbs()  # read once from the real verbs
    made = Verbs()
    for name in ("topic mirror", "promote"):
        monkeypatch.setitem(CALLS, name, made.named(name))
    return made


class Person:
    """Stands for the person: keeps the questions, and stops where a test says so."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.stops_at = 0

    def choose(self, question: str, choices: list[tuple[str, bool]]) -> bool:
        self.questions.append(question)
        return len(self.questions) == self.stops_at


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Person:
    made = Person()
    monkeypatch.setattr(wizard, "choose", made.choose)
    return made


def journey(*steps: dict[str, Any], asks: bool = True, moved: bool = False) -> Journey:
    choices = Choices("blue", "old", "new", ("orders",))
    return Journey(Call(), choices, steps, asks, moved, lambda: _GO_ON, lambda: Text("nobody is left"))


def test_each_verb_shows_its_plan_before_the_question(
    verbs: Verbs, person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    assert journey(_MIRROR, _PROMOTE).run()
    assert verbs.calls == [("topic mirror", True), ("topic mirror", False), ("promote", True), ("promote", False)]
    assert person.questions == ["Run this step?", "Run this step?"]
    shown = capsys.readouterr().out
    assert shown.index("$ kmigrate promote --link blue orders") < shown.index("promote: would")


def test_a_step_that_is_done_already_is_not_asked_for(verbs: Verbs, person: Person) -> None:
    verbs.changes = []
    assert journey(_MIRROR).run()
    assert (verbs.calls[-1], person.questions) == (("topic mirror", False), [])


def test_a_command_of_the_person_is_run_only_after_a_yes(person: Person, tmp_path: Path) -> None:
    person.stops_at = 1
    roll = {"title": "Restart.", "exec": f"touch {tmp_path}/restarted"}
    assert not journey(roll).run()
    assert not list(tmp_path.iterdir())
    assert journey(roll).run()
    assert [path.name for path in tmp_path.iterdir()] == ["restarted"]


def test_a_stop_before_a_step_names_the_command_that_goes_on(
    verbs: Verbs, person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    person.stops_at = 2
    assert not journey(_MIRROR, _PROMOTE).run()
    assert ("promote", False) not in verbs.calls
    assert _GO_ON in capsys.readouterr().out


def test_a_step_that_failed_can_be_tried_again(verbs: Verbs, person: Person) -> None:
    verbs.failures = [Failed("broken", "it broke")]
    assert journey(_PROMOTE).run()
    assert [call for call in verbs.calls if not call[1]] == [("promote", False), ("promote", False)]
    assert person.questions[1] == "The step did not succeed. How do you go on?"


def test_without_a_terminal_a_failure_ends_the_guide(verbs: Verbs, person: Person) -> None:
    verbs.failures = [Refused("no", "a guard said no", still_true="nothing was changed")]
    with pytest.raises(Refused) as caught:
        journey(_PROMOTE, asks=False).run()
    assert caught.value.still_true == "nothing was changed; the steps before this step stand"
    assert person.questions == []


@pytest.mark.parametrize(
    "stop", [KeyboardInterrupt(), Interrupted("interrupted", "stopped waiting", still_true="the controller goes on")]
)
def test_ctrl_c_in_a_step_names_the_step_and_the_command_that_goes_on(
    verbs: Verbs, person: Person, stop: BaseException
) -> None:
    verbs.failures = [stop]
    with pytest.raises(Interrupted) as caught:
        journey(_MIRROR, _PROMOTE).run()
    assert caught.value.what == "stopped in step 1 (Copy.)"
    assert caught.value.still_true.endswith("the steps before this step stand")
    assert caught.value.next_step == _GO_ON


def test_only_a_person_says_that_clients_have_moved(verbs: Verbs, person: Person) -> None:
    assert journey(_MOVE).run()
    assert person.questions == ["Have all producers restarted?"]
    assert journey(_MOVE, asks=False, moved=True).run()
    with pytest.raises(UsageError) as caught:
        journey(_MOVE, asks=False).run()
    assert (caught.value.ref, caught.value.next_step) == (
        "needs-yes",
        f"restart the clients, then: {_GO_ON} --clients-moved",
    )
