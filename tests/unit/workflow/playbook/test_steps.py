"""Playbooks are parsed, each mistake is reported with file, step and key, and conditions are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmigrate.errors import UsageError
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.workflow.playbook.conditions import Scope, parse_condition
from kmigrate.workflow.playbook.steps import ExecStep, RunStep, WaitStep, parse_playbook
from kmigrate.workflow.status.snapshot import GroupStatus, PartitionStatus, Snapshot, TopicStatus

PLAYBOOKS = Path(__file__).parents[4] / "playbooks"


def _topic(name: str, phase: TopicPhase, *lags: int) -> TopicStatus:
    parts = tuple(PartitionStatus(n, 0, 10, 0, 10, lag, "", -1.0) for n, lag in enumerate(lags))
    return TopicStatus("l", name, phase, 0, "", "identical", parts)


def _group(name: str, phase: GroupPhase) -> GroupStatus:
    return GroupStatus("l", name, phase, "", (), 0, 0)


def _shot(
    topics: tuple[TopicStatus, ...] = (), groups: tuple[GroupStatus, ...] = (), mirrors: tuple[MirrorPresence, ...] = ()
) -> Snapshot:
    return Snapshot(0, 0, (), topics, groups, (), frozenset(), mirrors, ())


@pytest.mark.parametrize("file", sorted(PLAYBOOKS.glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_playbook_parses(file: Path) -> None:
    book = parse_playbook(file.read_text(encoding="utf-8"), file.name)
    assert book.title
    assert len(book.steps) > 3
    assert book.dangerous


def test_steps_become_values_and_take_the_default_link() -> None:
    book = parse_playbook(
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
        """,
        "f.toml",
    )
    create, mirror, echo, wait, promote = book.steps
    assert isinstance(create, RunStep) and create.options == {"name": "l", "source": "a"}
    assert isinstance(mirror, RunStep) and mirror.options == {"link": "l", "topics": ["x", "y"], "from": "latest"}
    assert isinstance(echo, ExecStep) and echo.command == ("echo", "a b")
    assert echo.unless is not None and echo.scope.topics == ("x",)
    assert isinstance(wait, WaitStep) and (wait.condition.number, wait.timeout, wait.scope.link) == (10, 5.0, "l")
    assert isinstance(promote, RunStep) and promote.options["link"] == "other"
    assert book.dangerous == (promote,)


@pytest.mark.parametrize(
    ("text", "named", "expected"),
    [
        ("[[step]", "f.toml", "TOML"),
        ("", "f.toml: step: there is no step", "[[step]]"),
        ("titel = 1", "f.toml: titel", "title, [defaults]"),
        ('defaults = { topic = "x" }', "f.toml: defaults", "link"),
        ("[[step]]\ntitle = 'x'", "f.toml, step 1: found only title", "exactly one"),
        ("[[step]]\nrun = 'verify'\nexec = 'x'", "f.toml, step 1: found run and exec", "exactly one"),
        ("[[step]]\nrun = 'verify'\n[[step]]\nrun = 'promot'", "f.toml, step 2: run", "topic mirror"),
        ("[[step]]\nrun = 'promote'", "f.toml, step 1: topics: is missing", "list of names"),
        ("[[step]]\nrun = 'promote'\ntopics = 'x'", "f.toml, step 1: topics: found 'x'", "list of names"),
        ("[[step]]\nrun = 'promote'\ntopics = ['x']\nyes = true", "f.toml, step 1: yes", "lag-threshold"),
        ("[[step]]\nrun = 'promote'\ntopics = ['x']\ntimeout = -1", "step 1: timeout: found -1", "seconds"),
        ("[[step]]\nwait = 'lag < 5'", "f.toml, step 1: wait: found 'lag < 5'", "lag <= N"),
        (f"[[step]]\nwait = 'lag <= {'9' * 5_000}'", "f.toml, step 1: wait: found 'lag <= 999", "lag <= N"),
        ("[[step]]\nwait = 'topics lost'", "f.toml, step 1: wait", "topics PHASE"),
        ("[[step]]\nexec = 'a'\nunless = 'later'", "f.toml, step 1: unless", "groups PHASE"),
        ('[[step]]\nexec = "a \'b"', "f.toml, step 1: exec", "command line"),
        ("[[step]]\nexec = ''", "f.toml, step 1: exec", "text"),
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
        ('[[step]]\nexec = "a\\u0000b"', "f.toml, step 1: exec", "command line"),
        (f"[[step]]\nexec = 'a'\ntimeout = {'9' * 400}", "step 1: timeout: found 999", "of a year at most"),
        ("[[step]]\nexec = 'a'\ntimeout = inf", "step 1: timeout: found inf", "of a year at most"),
        (f"[[step]]\nwait = 'seconds {'9' * 400}'", "step 1: wait: found 'seconds 999", "seconds N"),
        ("[[step]]\nwait = 'seconds ५'", "step 1: wait: found 'seconds ५'", "seconds N"),
        (f"x = {'9' * 5_000}", "f.toml: Exceeds", "TOML"),
        (f"x = {'[' * 3_000}{']' * 3_000}", "f.toml: TOML inline arrays", "TOML"),
        ("[[step]]\nrun = 'topic mirror'\ntopics = ['x']\noffsets = 'same'", "step 1: offsets: found 'same'", "mapped"),
        ("[[step]]\nrun = 'topic mirror'\ntopics = ['x']\nengine = 'flink'", "step 1: engine: found", "spark"),
        ("[[step]]\nrun = 'group mirror'\ngroups = ['x']\nmode = 'both'", "step 1: mode: found 'both'", "hold"),
        ("[[step]]\nexec = 5", "f.toml, step 1: exec: found 5", "text"),
    ],
)
def test_every_mistake_names_the_file_the_step_and_the_key(text: str, named: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_playbook(text, "f.toml")
    assert caught.value.ref == "bad-playbook"
    assert named in caught.value.what
    assert expected in caught.value.next_step
    assert caught.value.still_true == "no step was run"


@pytest.mark.parametrize(
    ("text", "shot", "holds", "waits_for"),
    [
        ("lag <= 3", _shot((_topic("a", TopicPhase.MIRRORING, 1, 2),)), True, ""),
        ("lag <= 2", _shot((_topic("a", TopicPhase.MIRRORING, 1, 2),)), False, "topic a lags 3"),
        ("lag <= 2", _shot((_topic("a", TopicPhase.MIRRORING, -1, 0),)), False, "unknown"),
        ("lag <= 2", _shot(), False, "no topic is mirrored"),
        ("topics mirroring", _shot((_topic("a", TopicPhase.PROMOTED, 0),)), True, ""),
        ("topics promoted", _shot((_topic("a", TopicPhase.FENCED, 0),)), False, "topic a is fenced"),
        ("topics promoted", _shot(), False, "no topic is mirrored"),
        ("groups promoted", _shot(groups=(_group("g", GroupPhase.PROMOTING),)), False, "group g is promoting"),
        ("groups mirrored", _shot(groups=(_group("g", GroupPhase.PROMOTING),)), True, ""),
        ("mirror running", _shot(mirrors=(MirrorPresence("i", "l", 0, True, 500),)), True, ""),
        ("mirror running", _shot(mirrors=(MirrorPresence("i", "l", 0, False, 500),)), False, "no mirror"),
        ("router running", _shot(), False, "no router"),
        ("controller running", _shot(), False, "no controller"),
        ("seconds 5", _shot(), False, "5 s"),
    ],
)
def test_a_condition_holds_or_names_what_it_waits_for(text: str, shot: Snapshot, holds: bool, waits_for: str) -> None:
    condition = parse_condition(text)
    assert condition is not None
    verdict = condition.judge(shot)
    assert verdict.holds is holds
    assert waits_for in verdict.waits_for


def test_a_condition_looks_at_the_named_topics_only() -> None:
    shot = _shot((_topic("a", TopicPhase.MIRRORING, 0), _topic("b", TopicPhase.MIRRORING, 99)))
    condition = parse_condition("lag <= 0")
    assert condition is not None
    assert condition.judge(shot, Scope(topics=("a",))).holds
    assert not condition.judge(shot).holds
    assert "topic c is not mirrored" in condition.judge(shot, Scope(topics=("c",))).waits_for
