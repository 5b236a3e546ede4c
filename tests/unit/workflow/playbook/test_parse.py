"""Playbooks are parsed, and each mistake is reported with file, line, column, step and key."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from kmigrate.cli.commands.playbook_verbs import verbs
from kmigrate.errors import UsageError
from kmigrate.workflow.playbook.parse import parse_playbook
from kmigrate.workflow.playbook.steps import ApproveStep, ExecStep, Playbook, RunStep, WaitStep

PLAYBOOKS = Path(__file__).parents[4] / "kmigrate" / "playbooks"


def _parsed(text: str, given: dict[str, str] | None = None, environment: dict[str, str] | None = None) -> Playbook:
    return parse_playbook(text, "f.toml", verbs(), given, environment)


@pytest.mark.parametrize("file", sorted(PLAYBOOKS.glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_playbook_parses(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    variables = tomli.loads(text).get("variables", {})
    unset = [name for name, value in variables.items() if isinstance(value, dict) and "default" not in value]
    book = parse_playbook(text, file.name, verbs(), dict.fromkeys(unset, "x"))
    assert text.startswith("#"), "a head comment says when to use the playbook, and what to set"
    assert book.title
    assert len(book.steps) > 3
    assert any(isinstance(step, RunStep) and step.verb == "promote" for step in book.steps)


def test_steps_become_values_and_take_the_default_link() -> None:
    book = _parsed(
        """
        title = "t"
        [defaults]
        link = "l"
        [[step]]
        run = "link create"
        name = "l"
        source = "a"
        [[step]]
        run = "topic mirror"
        topics = ["x", "y"]
        from = "latest"
        [[step]]
        exec = "echo 'a b'"
        unless = "topics promoted"
        topics = ["x"]
        [[step]]
        wait = "lag <= 10"
        timeout = 5
        [[step]]
        run = "promote"
        topics = ["x"]
        link = "other"
        """
    )
    create, mirror, echo, wait, promote = book.steps
    assert isinstance(create, RunStep) and create.options == {"name": "l", "source": "a"}
    assert isinstance(mirror, RunStep) and mirror.options == {"link": "l", "topics": ["x", "y"], "from": "latest"}
    assert isinstance(echo, ExecStep) and echo.command == ("echo", "a b")
    assert [guard.text for guard in echo.guards] == ["topics promoted"] and echo.scope.topics == ("x",)
    assert isinstance(wait, WaitStep) and (wait.condition.number, wait.timeout, wait.scope.link) == (10, 5.0, "l")
    assert isinstance(promote, RunStep) and promote.options["link"] == "other"
    assert book.dangerous == (promote,)


@pytest.mark.parametrize(
    ("text", "named", "expected"),
    [
        ("[[step]", "f.toml", "TOML"),
        ("", "f.toml:1:1: step: there is no step", "[[step]]"),
        ("titel = 1", "f.toml:1:1: titel: no such key: did you mean 'title'?", "title, [variables], [defaults]"),
        ('defaults = { topic = "x" }', "f.toml:1:1: defaults", "link"),
        ("[[step]]\ntitle = 'x'", "f.toml:1:1: step 1: found only title", "exactly one"),
        ("[[step]]\nrun = 'verify'\nexec = 'x'", "f.toml:1:1: step 1: found run and exec", "exactly one"),
        (
            "[[step]]\nrun = 'verify'\n[[step]]\nrun = 'promot'",
            "f.toml:4:1: step 2: run: there is no verb 'promot': did you mean 'promote'?",
            "topic mirror",
        ),
        ("[[step]]\nrun = 'promote'", "f.toml:1:1: step 1: topics: is missing", "list of names"),
        ("[[step]]\nrun = 'promote'\ntopics = 'x'", "f.toml:3:1: step 1: topics: found 'x'", "list of names"),
        ("[[step]]\nrun = 'promote'\ntopics = ['x']\nyes = true", "f.toml:4:1: step 1: yes", "lag-threshold"),
        ("[[step]]\nrun = 'promote'\ntopics = ['x']\ntimeout = -1", "step 1: timeout: found -1", "seconds"),
        ("[[step]]\nwait = 'lag < 5'", "f.toml:2:1: step 1: wait: found 'lag < 5'", "lag <= N"),
        (f"[[step]]\nwait = 'lag <= {'9' * 5_000}'", "f.toml:2:1: step 1: wait: found 'lag <= 999", "lag <= N"),
        ("[[step]]\nwait = 'topics lost'", "f.toml:2:1: step 1: wait", "topics PHASE"),
        ("[[step]]\nexec = 'a'\nunless = 'later'", "f.toml:3:1: step 1: unless", "groups PHASE"),
        ('[[step]]\nexec = "a \'b"', "f.toml:2:1: step 1: exec", "command line"),
        ("[[step]]\nexec = ''", "f.toml:2:1: step 1: exec", "text"),
        (
            "[[step]]\nrun = 'link create'\nname = 'l'\nsource = 's'\n[[step]]\nrun = 'link delete'\nname = 'l'",
            "step 2: run: another step makes link l",
            "playbook of its own",
        ),
        (
            "[[step]]\nrun = 'link delete'\nname = 'l'\n[[step]]\nrun = 'link create'\nname = 'l'\nsource = 's'",
            "step 1: run: another step makes link l",
            "playbook of its own",
        ),
        ('[[step]]\nexec = "a\\u0000b"', "f.toml:2:1: step 1: exec", "command line"),
        (f"[[step]]\nexec = 'a'\ntimeout = {'9' * 400}", "step 1: timeout: found 999", "of a year at most"),
        ("[[step]]\nexec = 'a'\ntimeout = inf", "step 1: timeout: found inf", "of a year at most"),
        (f"[[step]]\nwait = 'seconds {'9' * 400}'", "step 1: wait: found 'seconds 999", "seconds N"),
        ("[[step]]\nwait = 'seconds ५'", "step 1: wait: found 'seconds ५'", "seconds N"),
        (f"x = {'9' * 5_000}", "f.toml: Exceeds", "TOML"),
        (f"x = {'[' * 3_000}{']' * 3_000}", "f.toml: TOML inline arrays", "TOML"),
        ("[[step]]\nrun = 'topic mirror'\ntopics = ['x']\noffsets = 'same'", "step 1: offsets: found 'same'", "mapped"),
        ("[[step]]\nrun = 'topic mirror'\ntopics = ['x']\nengine = 'flink'", "step 1: engine: found", "spark"),
        ("[[step]]\nrun = 'group mirror'\ngroups = ['x']\nmode = 'both'", "step 1: mode: found 'both'", "hold"),
        (
            "[[step]]\napprove = 'sure?'\nfile = 'f'\ncommand = 'c'",
            "f.toml:4:1: step 1: command: found file and",
            "one",
        ),
        ("[[step]]\napprove = 'sure?'\ntimeout = 5", "f.toml:3:1: step 1: timeout: a person", "a file or a command"),
        ("[[on_failure]]\napprove = 'sure?'", "f.toml:1:1: step: there is no step", "[[step]]"),
        ("[[step]]\nexec = 'a'\n[[on_failure]]\napprove = 'x'", "f.toml:4:1: on_failure step 1: approve", "exec"),
        ("[[step]]\nexec = 'a'\nwhen = 'x = y'", "f.toml:3:1: step 1: when: found 'x = y'", "A == B"),
        ("[[step]]\nexec = 'a'\nretries = -1", "f.toml:3:1: step 1: retries: found -1", "number"),
        (
            "[[step]]\nexec = 'a'\ntimout = 5",
            "step 1: timout: no such key in this step: did you mean 'timeout'?",
            "link",
        ),
        ("variables = 5", "f.toml:1:1: variables: found 5", "[variables]"),
        ("[variables]\n1x = 5", "f.toml:2:1: variable 1x: '1x' is no name", "letters"),
        (
            "[variables]\na-b = 1\nA_b = 2",
            "f.toml:3:1: variable A_b: a-b and A_b are both KMIGRATE_VAR_A_B in the environment",
            "another name",
        ),
        ("[variables]\nx = 1979-05-27", "f.toml:2:1: variable x: found", "a text, a list of texts"),
        (
            "[variables.x]\nsecrt = true",
            "f.toml:2:1: variable x: secrt: no such key: did you mean 'secret'?",
            "default",
        ),
        ("[variables.x]\ntype = 'list'\ndefault = 5", "f.toml:3:1: variable x: default: found 5", "a list"),
        (
            "[variables.x]\ndescription = 'which one'\n[variables.y]\ntype = 'list'",
            "f.toml:1:1: variable x: no value: x (which one); y (list)",
            "--set x=TEXT --set y=TEXT,TEXT",
        ),
        (
            "[variables.x]\n[variables.pw]\nsecret = true\nenv = 'PW'\n[variables.key]\nsecret = true",
            "f.toml:1:1: variable x: no value: x (text); pw (text); key (text)",
            "expected: --set x=TEXT and PW and KMIGRATE_VAR_KEY in the environment",
        ),
        (
            "[variables]\nx = 1\n[[step]]\nexec = '${y}'",
            "f.toml:4:1: step 1: exec: there is no variable 'y'",
            "command",
        ),
        (
            "[variables]\nx = 1\n[[step]]\nrun = 'promote'\ntopics = ['${y}']",
            "f.toml:5:1: step 1: topics: there is no variable 'y'",
            "one of: x",
        ),
        (
            "[variables]\nx = 'a'\n[[step]]\nrun = 'promote'\ntopics = ['t']\ntimeout = '${x}'",
            "f.toml:6:1: step 1: timeout: found 'a'",
            "seconds",
        ),
        (
            "[variables]\npw = { default = 'hidden', secret = true }\n[[step]]\nexec = 'x ${pw}'",
            "f.toml:4:1: step 1: exec: pw is a secret, and a command line is no secret: read $KMIGRATE_VAR_PW",
            "command line",
        ),
        (
            "[variables]\npw = { default = 'hidden', secret = true }\n[[step]]\nwait = 'lag <= ${pw}'",
            "f.toml:4:1: step 1: wait: found 'lag <= ***'",
            "lag <= N",
        ),
        ("[variables]\nx = 5\n[[step]]\nwait = '${x}'", "f.toml:4:1: step 1: wait: found '5'", "lag <= N"),
        (
            "[variables]\nx = ['l']\n[defaults]\nlink = '${x}'\n[[step]]\nrun = 'verify'",
            "f.toml:3:1: defaults: found {'link': ['l']}",
            "link",
        ),
        ("[[step]]\nexec = 5", "f.toml:2:1: step 1: exec: found 5", "text"),
    ],
)
def test_every_mistake_names_the_file_the_step_and_the_key(text: str, named: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        _parsed(text)
    assert caught.value.ref == "bad-playbook"
    assert named in caught.value.what
    assert expected in caught.value.next_step
    assert caught.value.still_true == "no step was run"


_VARIABLES = """
[variables]
link = "blue"
topics = ["orders", "payments"]
limit = 1000
really = false
[variables.password]
env = "PW"
secret = true
[variables.stage]
default = "test"
[defaults]
link = "${link}"
[[step]]
title = "$${link} is ${link}"
run = "promote"
topics = ["first", "${topics}"]
timeout = "${limit}"
verify = "${really}"
[[step]]
exec = "roll ${topics} --stage=${stage} --all=${topics}"
when = "${stage} == prod"
[[step]]
wait = "lag <= ${limit}"
topics = "${topics}"
unless = "${really}"
"""


def test_variables_take_their_values_from_flags_then_the_environment_then_defaults() -> None:
    environment = {"PW": "s3cret", "KMIGRATE_VAR_STAGE": "prod", "KMIGRATE_VAR_LIMIT": "5"}
    book = _parsed(_VARIABLES, {"limit": "50", "topics": "a, b,", "really": "true"}, environment)
    promote, roll, wait = book.steps
    assert isinstance(promote, RunStep) and promote.title == "${link} is blue"
    assert promote.options == {"link": "blue", "topics": ["first", "a", "b"], "timeout": 50, "verify": True}
    assert isinstance(roll, ExecStep) and roll.command == ("roll", "a", "b", "--stage=prod", "--all=a,b")
    assert [(guard.text, guard.condition, guard.holds) for guard in roll.guards] == [("prod == prod", None, True)]
    assert isinstance(wait, WaitStep) and (wait.condition.number, wait.scope.topics) == (50, ("a", "b"))
    assert wait.guards[0].skips(wait.guards[0].holds)
    assert book.values.environment == {
        "KMIGRATE_VAR_LINK": "blue",
        "KMIGRATE_VAR_TOPICS": "a,b",
        "KMIGRATE_VAR_LIMIT": "50",
        "KMIGRATE_VAR_REALLY": "true",
        "KMIGRATE_VAR_PASSWORD": "s3cret",
        "KMIGRATE_VAR_STAGE": "prod",
    }
    assert book.values.hide_json({"x": ["is s3cret", 5]}) == {"x": ["is ***", 5]}


def test_no_part_of_a_secret_is_shown() -> None:
    """A secret may begin another secret, and the elements of a list are shown one by one, too."""
    text = "[variables]\na = { default = 'pass', secret = true }\nb = { default = 'password', secret = true }\n"
    text += "c = { default = ['one', 'two'], secret = true }\n[[step]]\nrun = 'promote'\ntopics = '${c}'"
    book = _parsed(text)
    assert book.values.hide("password, pass, one,two") == "***, ***, ***"
    assert book.values.hide(book.steps[0].text) == "promote *** ***"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"lnk": "x"}, "f.toml: --set lnk: no such variable: did you mean 'link'?"),
        ({"limit": "many"}, "f.toml:5:1: variable limit: the value of --set limit is no number"),
        ({"limit": "nan"}, "f.toml:5:1: variable limit: the value of --set limit is no number"),
        ({"really": "yes"}, "f.toml:6:1: variable really: the value of --set really is no boolean"),
        ({}, "f.toml:7:1: variable password: no value: password (text)"),
    ],
)
def test_a_value_that_does_not_fit_names_the_variable_and_its_place(given: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        _parsed(_VARIABLES, given)
    assert caught.value.what == what


def test_a_bad_value_of_the_environment_names_the_environment_variable() -> None:
    with pytest.raises(UsageError, match="the value of KMIGRATE_VAR_REALLY is no boolean"):
        _parsed(_VARIABLES, {}, {"PW": "x", "KMIGRATE_VAR_REALLY": "1"})


def test_steps_after_a_failure_and_approvals_are_parsed() -> None:
    book = _parsed(
        """
        [[step]]
        approve = "are consumers well?"
        [[step]]
        approve = "and producers?"
        command = "look --at producers"
        timeout = 5
        retries = 2
        retry-delay = 0.5
        [[step]]
        run = "link create"
        name = "l"
        source = "a"
        timeout = 7
        [[on_failure]]
        run = "promote"
        topics = ["x"]
        cancel = true
        """
    )
    asked, looked, created = book.steps
    assert isinstance(asked, ApproveStep) and (asked.question, asked.file, asked.command) == (
        "are consumers well?",
        "",
        (),
    )
    assert isinstance(looked, ApproveStep) and looked.command == ("look", "--at", "producers")
    assert (looked.timeout, looked.retries, looked.retry_delay) == (5.0, 2, 0.5)
    assert isinstance(created, RunStep) and created.timeout == 7.0 and "timeout" not in created.options
    (cancel,) = book.on_failure
    assert cancel.name == "on_failure step 1" and cancel.text == "promote x --cancel"
    assert book.dangerous == (), "taking a promote back endangers nothing"


def test_a_step_that_is_skipped_for_sure_may_have_an_empty_list() -> None:
    text = "[variables]\ngroups = []\n[[step]]\nrun = 'group promote'\ngroups = '${groups}'\n"
    (step,) = _parsed(f"{text}when = '${{groups}}'").steps
    assert step.idle
    assert step.text == "group promote (when an empty list)"
    assert _parsed(f"{text}when = '${{groups}}'").dangerous == ()
    with pytest.raises(UsageError, match=r"f.toml:5:1: step 1: groups: found \[\]"):
        _parsed(text)
