"""A run of a playbook without a cluster: conditions, further tries, approvals, steps after a failure, events, JUnit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
import typer
from rich.console import Group
from rich.text import Text

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text as ShownText
from kmigrate.cli.commands.playbook import _Reached
from kmigrate.cli.commands.playbook_verbs import CALLS
from kmigrate.cli.views.tables import table
from kmigrate.errors import Diverged, Failed, Refused, Unreachable

Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def act(text: str, *flags: str) -> tuple[int, list[dict[str, Any]], str]:
        (tmp_path / "p.toml").write_text(text, encoding="utf-8")
        code = main(["playbook", "run", "p.toml", "--json", *flags])
        said = capfd.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return act


def _check(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | Answer) -> list[object]:
    """Replace `link check`; each call raises or returns the next outcome. Return the calls."""
    left, calls = list(outcomes), list[object]()

    def check(call: object, name: str | None = None) -> Answer:
        if type(call) is not Call:  # a check of the values only
            raise _Reached
        calls.append(name)
        outcome = left.pop(0) if left else Answer({"changes": []}, Text(""))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setitem(cast("Any", CALLS), "link check", check)
    return calls


def _events(lines: list[dict[str, Any]]) -> list[str]:
    return [str(line.get("event", line.get("error"))) for line in lines]


def test_each_step_prints_its_start_and_its_end(run: Run) -> None:
    code, lines, _ = run('title = "t"\n[[step]]\ntitle = "why"\nexec = "true"\n[[step]]\nwait = "seconds 0"\n')
    assert code == Exit.OK
    assert lines[0] == {"event": "step-started", "step": 1, "kind": "exec", "what": "exec: true", "title": "why"}
    assert {**lines[1], "seconds": 0} == {
        **lines[0],
        "event": "step-ended",
        "outcome": "done",
        "seconds": 0,
        "result": {"exit_code": 0},
    }
    assert _events(lines[2:]) == ["step-started", "progress", "step-ended", "playbook-ended"]
    assert (lines[-1]["file"], lines[-1]["steps"]) == ("p.toml", 2)


@pytest.mark.parametrize(
    ("guard", "skipped"),
    [
        ('when = "a == b"', "not a == b"),
        ('when = "a != a"', "not a != a"),
        ('unless = "a == a"', "a == a"),
        ("unless = true", "true"),
        ("when = false", "not false"),
        ('when = "${x} == 5"', None),
        ('unless = "${x} == 6"', None),
        ('when = "${names}"', None),
        ('when = "${nobody}"', "not an empty list"),
        ('unless = "${names}"', "a,b"),
    ],
)
def test_a_comparison_of_values_skips_a_step(guard: str, skipped: str | None, run: Run) -> None:
    code, lines, _ = run(f'[variables]\nx = 5\nnames = ["a", "b"]\nnobody = []\n[[step]]\nexec = "true"\n{guard}\n')
    assert code == Exit.OK
    assert lines[1]["outcome"] == ("skipped" if skipped else "done")
    assert lines[1]["result"] == ({"skipped": skipped} if skipped else {"exit_code": 0})


def test_a_step_that_failed_is_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _check(monkeypatch, Unreachable("cluster-unreachable", "no broker answers"), Failed("x", "y"))
    code, lines, said = run('[[step]]\nrun = "link check"\nname = "l"\nretries = 2\nretry-delay = 0\n')
    assert (code, calls) == (Exit.OK, ["l", "l", "l"])
    assert _events(lines) == ["step-started", "try-failed", "try-failed", "step-ended", "playbook-ended"]
    assert (lines[1]["error"], lines[1]["left"], lines[2]["left"]) == ("cluster-unreachable", 2, 1)
    assert "step 1 failed: cluster-unreachable: no broker answers; trying again in 0 s, 2 tries left" in said


@pytest.mark.parametrize("error", [Refused("no", "no"), Diverged("other", "differs")])
def test_what_a_further_try_cannot_mend_is_not_tried_again(
    error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _check(monkeypatch, error)
    code, lines, _ = run('[[step]]\nrun = "link check"\nretries = 5\n')
    assert code != Exit.OK
    assert len(calls) == 1
    assert _events(lines) == ["step-started", lines[-1]["error"]]


def test_after_a_failure_all_steps_of_on_failure_run_and_the_failure_stays_the_result(run: Run) -> None:
    code, lines, said = run(
        '[[step]]\nexec = "false"\n[[step]]\nexec = "touch never"\n'
        '[[on_failure]]\nexec = "false"\n[[on_failure]]\nexec = "touch undone"\n'
    )
    assert (code, lines[-1]["error"]) == (Exit.FAILED, "exec-failed")
    assert lines[-1]["what"].startswith("step 1: exec: false")
    assert _events(lines) == ["step-started", "step-started", "step-started", "step-ended", "exec-failed"]
    assert [line.get("after_failure") for line in lines[:-1]] == [None, True, True, True]
    assert "on_failure step 1: exec: false: ended with exit code 1; the failure before is: exec-failed" in said
    assert Path("undone").exists()
    assert not Path("never").exists()


@pytest.mark.parametrize(("step", "code"), [('exec = "true"', Exit.OK), ('approve = "well?"', Exit.REFUSED)])
def test_steps_after_a_failure_do_not_run_without_a_failure_and_a_missing_approval_is_none(
    step: str, code: Exit, run: Run
) -> None:
    assert run(f'[[step]]\n{step}\n[[on_failure]]\nexec = "touch undone"\n')[0] == code
    assert not Path("undone").exists()


def test_a_verb_that_takes_longer_than_its_step_may_is_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(call: object, name: str | None = None) -> Answer:
        if type(call) is not Call:
            raise _Reached
        await asyncio.sleep(60)
        return Answer({}, Text(""))

    monkeypatch.setitem(cast("Any", CALLS), "link check", slow)
    code, lines, _ = run('[[step]]\nrun = "link check"\ntimeout = 0.05\n')
    assert (code, lines[-1]["error"]) == (Exit.TIMED_OUT, "step-timed-out")


APPROVE = '[[step]]\nexec = "true"\n[[step]]\napprove = "are all consumers well?"\n[[step]]\nexec = "touch after"\n'


def test_without_a_terminal_an_approval_stops_the_run_and_names_the_flag(run: Run) -> None:
    code, lines, _ = run(APPROVE)
    assert (code, lines[-1]["error"]) == (Exit.REFUSED, "not-approved")
    assert lines[-1]["what"] == "step 2 is not approved: are all consumers well?: there is no terminal to ask on"
    assert lines[-1]["next"] == "to approve the step: kmigrate playbook run p.toml --approve 2"
    assert not Path("after").exists()


@pytest.mark.parametrize("flag", ["2", "all"])
def test_an_approval_may_be_given_beforehand(flag: str, run: Run) -> None:
    code, lines, _ = run(APPROVE, "--approve", flag)
    assert code == Exit.OK
    assert [line["result"] for line in lines if line.get("kind") == "approve" and "result" in line] == [
        {"approved": "--approve"}
    ]
    assert Path("after").exists()


@pytest.mark.parametrize("flag", ["1", "x", "4"])
def test_an_approval_of_a_step_that_asks_for_none_is_a_mistake(flag: str, run: Run) -> None:
    code, lines, _ = run(APPROVE, "--approve", flag)
    assert (code, lines[-1]["error"]) == (Exit.USAGE, "bad-approval")


def test_a_person_approves_on_the_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    async def confirm(interactive: bool, question: str) -> None:
        asked.append(question)
        if not interactive or len(asked) > 1:
            raise Refused("not-confirmed", "not confirmed", still_true="nothing was changed")

    monkeypatch.setattr("kmigrate.cli.base.wizard.confirm", confirm)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Path("p.toml").write_text(APPROVE, encoding="utf-8")
    assert main(["playbook", "run", "p.toml"]) == Exit.OK
    assert main(["playbook", "run", "p.toml"]) == Exit.REFUSED
    assert asked == ["are all consumers well?"] * 2


def test_who_leaves_at_a_question_is_told_what_stands_and_how_to_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    async def confirm(interactive: bool, question: str) -> None:
        asked.append(question)
        raise typer.Abort

    monkeypatch.setattr("kmigrate.cli.base.wizard.confirm", confirm)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    secret = "[variables]\npw = { default = 'hidden', secret = true }\n"
    Path("p.toml").write_text(secret + APPROVE.replace("well", "${pw}"), encoding="utf-8")
    assert main(["playbook", "run", "p.toml", "--junit", "out.xml"]) == Exit.INTERRUPTED
    assert asked == ["are all consumers ***?"]
    said = capfd.readouterr().err
    assert "stopped in step 2" in said
    assert "the steps before it stand" in said
    assert "run the playbook again" in said
    assert ET.parse("out.xml").getroot().get("failures") == "1"
    assert not Path("after").exists()


def test_a_yes_is_needed_for_steps_that_may_run_and_endanger_something(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)
    step = '[[step]]\nexec = "touch begun"\n'
    promote = '[variables]\nstage = "copy"\n[[step]]\nrun = "promote"\ntopics = ["t"]\nwhen = "${stage} == promote"\n'
    assert run(promote + step)[0] == Exit.OK
    Path("begun").unlink()
    forget = '[[on_failure]]\nexec = "true"\n[[on_failure]]\nrun = "topic forget"\ntopics = ["t"]\n'
    code, lines, _ = run(step + forget)
    assert (code, lines[-1]["error"]) == (Exit.USAGE, "needs-yes")
    assert "p.toml promotes or deletes in on_failure step 2. Run it?" in lines[-1]["what"]
    assert not Path("begun").exists()


def test_a_file_approves_once_it_exists(run: Run) -> None:
    step = '[[step]]\napprove = "well?"\nfile = "yes"\ntimeout = 0\n'
    code, lines, _ = run(step)
    assert (code, lines[-1]["error"]) == (Exit.TIMED_OUT, "approval-timed-out")
    code, lines, _ = run('[[step]]\nexec = "touch yes"\n' + step)
    assert code == Exit.OK


@pytest.mark.parametrize(("command", "code"), [("true", Exit.OK), ("false", Exit.REFUSED), ("absent-x", Exit.FAILED)])
def test_a_command_approves_with_its_exit_code(command: str, code: Exit, run: Run) -> None:
    assert run(f'[[step]]\napprove = "well?"\ncommand = "{command}"\n')[0] == code


def test_an_approval_whose_command_cannot_start_is_a_failure_and_a_missing_yes_is_none(run: Run) -> None:
    after = '[[on_failure]]\nexec = "touch undone"\n'
    code, lines, _ = run('[[step]]\napprove = "well?"\ncommand = "false"\n' + after)
    assert (code, lines[-1]["error"], Path("undone").exists()) == (Exit.REFUSED, "not-approved", False)
    code, lines, _ = run('[[step]]\napprove = "well?"\ncommand = "absent-x"\n' + after)
    assert (code, lines[-1]["error"], Path("undone").exists()) == (Exit.FAILED, "exec-failed", True)


def test_no_view_of_a_step_shows_a_secret(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def check(call: Call, name: str | None = None) -> Answer:
        if type(call) is not Call:
            raise _Reached
        rows = table("login", "words")
        rows.add_row(f"as {name}", ShownText.assemble("with ", (f"the {name}", "bold")))
        call.out.note(f"{name} will end soon")
        return Answer({"changes": []}, Group(ShownText(f"logged in with {name}"), rows))

    monkeypatch.setitem(cast("Any", CALLS), "link check", check)
    text = '[variables]\npw = { default = "hush-hush", secret = true }\n[[step]]\nrun = "link check"\nname = "${pw}"\n'
    Path("p.toml").write_text(text, encoding="utf-8")
    assert main(["playbook", "run", "p.toml"]) == Exit.OK
    said = capfd.readouterr()
    assert "hush" not in said.out + said.err
    assert all(each in said.out for each in ("logged in with ***", "as ***", "with the ***"))
    assert "*** will end soon" in said.err


def test_secrets_reach_commands_and_are_never_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "hidden-word")
    _check(monkeypatch, Failed("x", "the login of hidden-word failed"))
    text = (
        '[variables.pw]\nenv = "PW"\nsecret = true\n'
        """[[step]]\nexec = "sh -c 'test $KMIGRATE_VAR_PW = hidden-word'"\n"""
        '[[step]]\nrun = "link check"\nname = "${pw}"\n'
    )
    code, lines, said = run(text, "--junit", "out.xml")
    assert (code, lines[1]["outcome"], lines[-1]["error"]) == (Exit.FAILED, "done", "x")
    assert lines[-1]["what"] == "step 2 (link check ***): the login of *** failed"
    everything = json.dumps(lines[2:]) + said + Path("out.xml").read_text(encoding="utf-8").split("step 2")[1]
    assert "hidden-word" not in everything
    assert main(["playbook", "plan", "p.toml", "--json"]) == Exit.OK


def test_junit_has_a_case_per_step_however_the_run_ends(run: Run) -> None:
    code, _, _ = run(
        'title = "a <title>"\n[[step]]\nexec = "true"\n[[step]]\nexec = "true"\nwhen = false\n'
        '[[step]]\nexec = "false"\n[[step]]\nexec = "true"\n[[on_failure]]\nexec = "true"\n',
        *("--junit", "out.xml"),
    )
    assert code == Exit.FAILED
    root = ET.parse("out.xml").getroot()
    assert root.attrib == {**root.attrib, "name": "a <title>", "tests": "5", "failures": "1", "skipped": "2"}
    cases = root.findall("./testsuite/testcase")
    assert [case.get("name") for case in cases] == [
        "step 1: exec: true",
        "step 2: exec: true (when false)",
        "step 3: exec: false",
        "on_failure step 1: exec: true",
        "step 4: exec: true",
    ]
    assert [case[0].tag for case in cases] == ["system-out", "skipped", "failure", "system-out", "skipped"]
    failure = cases[2][0]
    assert (failure.get("type"), failure.get("message")) == (
        "exec-failed",
        "exec-failed: step 3: exec: false: ended with exit code 1",
    )


def test_a_step_that_ends_by_a_bug_has_failed_in_junit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(monkeypatch, RuntimeError("a bug"))
    code, lines, _ = run('[[step]]\nrun = "link check"\n', "--junit", "out.xml")
    assert (code, lines[-1]["error"]) == (Exit.FAILED, "internal-error")
    [failure] = ET.parse("out.xml").getroot().findall("./testsuite/testcase/failure")
    assert (failure.get("type"), failure.get("message")) == ("internal-error", "a bug")


def test_an_unwritable_junit_file_is_found_before_the_first_step(run: Run) -> None:
    code, lines, _ = run('[[step]]\nexec = "touch begun"\n', "--junit", "absent/out.xml")
    assert (code, lines[-1]["error"]) == (Exit.USAGE, "report-not-writable")
    assert not Path("begun").exists()


def test_a_junit_file_that_cannot_be_written_at_the_end_hides_no_failure_of_a_step(run: Run) -> None:
    code, lines, _ = run('[[step]]\nexec = "true"\n', "--junit", "/dev/full")
    assert (code, lines[-1]["error"]) == (Exit.FAILED, "report-not-written")
    code, lines, said = run('[[step]]\nexec = "false"\n', "--junit", "/dev/full")
    assert (code, lines[-1]["error"]) == (Exit.FAILED, "exec-failed")
    assert "--junit /dev/full cannot be written" in said


def test_several_playbooks_are_checked_at_once(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text('title = "A"\n[[step]]\nexec = "true"\n', encoding="utf-8")
    assert main(["playbook", "check", "a.toml", "a.toml", "--json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out)["playbooks"] == [{"file": "a.toml", "title": "A", "steps": 1}] * 2
    Path("b.toml").write_text('[[step]]\nexec = "true"\nruns = 5\n', encoding="utf-8")
    assert main(["playbook", "check", "a.toml", "b.toml"]) == Exit.USAGE
    assert "b.toml:3:1: step 1: runs: no such key" in capfd.readouterr().err


def test_a_folder_with_the_name_of_a_listed_playbook_is_in_nobodys_way(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)
    Path("one-topic").mkdir()
    assert main(["playbook", "plan", "one-topic", "--set", "topic=orders", "--json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out)["title"] == "Move topic orders from source to target"


@pytest.mark.parametrize("text", ["x", "=5"])
def test_a_flag_that_sets_no_variable_is_a_mistake(text: str, run: Run) -> None:
    code, lines, _ = run('[[step]]\nexec = "true"\n', "--set", text)
    assert (code, lines[-1]["error"]) == (Exit.USAGE, "bad-variable")


def test_a_run_without_a_terminal_says_now_and_then_what_it_waits_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The clock jumps a minute with each look, and the file appears at the third look."""
    looks = iter(range(0, 10_000, 60))
    monkeypatch.setattr("kmigrate.cli.commands.playbook_run.monotonic", lambda: float(next(looks) + 1))
    exists, met = Path.exists, list[Path]()

    def third(path: Path) -> bool:
        met.append(path)
        return len(met) > 2 or exists(path)

    Path("p.toml").write_text('[[step]]\napprove = "well?"\nfile = "yes"\n', encoding="utf-8")
    monkeypatch.setattr(Path, "exists", third)
    monkeypatch.setattr("kmigrate.cli.commands.playbook_run.block", lambda seconds: None)
    assert main(["playbook", "run", "p.toml"]) == Exit.OK
    assert "  … waiting for the file yes" in capfd.readouterr().out
