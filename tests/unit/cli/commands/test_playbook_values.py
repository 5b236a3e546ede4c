"""Values of a playbook's steps: each verb checks the values of its step before the first step runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.exits import Exit

CONFIG = """
[clusters.old]
"bootstrap.servers" = "127.0.0.1:1"
[clusters.new]
"bootstrap.servers" = "127.0.0.1:2"
[defaults]
target = "new"
"""
FIRST = '[[step]]\nexec = "touch begun"\n[[step]]\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)
    (tmp_path / "kmigrate.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


BAD = {
    'run = "link create"\nname = "a/b"\nsource = "old"': "bad-link-name",
    'run = "link create"\nname = "l"\nsource = "odl"': "unknown-cluster",
    'run = "link create"\nname = "l"\nsource = "new"': "source-is-target",
    'run = "link throttle"\nrate = "10 parsecs"': "bad-rate",
    'run = "link finish"\nname = "l"\nbootstrap = "new-1"': "bad-address",
    'run = "topic mirror"\ntopics = ["t"]\nfrom = "yesterday"': "bad-start-position",
    'run = "topic mirror"\ntopics = ["t("]\nregex = true': "bad-regex",
    'run = "topic mirror"\ntopics = ["t"]\nexclude = ["u"]': "exclude-without-regex",
    'run = "topic mirror"\ntopics = ["t"]\nengine = "spark"\nthrottle = "fast"': "bad-rate",
    'run = "topic mirror"\ntopics = ["t"]\nthrottle = "1MB"': "only-with-spark",
    'run = "topic mirror"\ntopics = ["t"]\nengine = "spark"\nconf = ["x"]': "bad-conf",
    'run = "topic resume"\ntopics = ["t"]\npartition = 0\naccept-loss = "9..5"': "bad-range",
    'run = "topic resume"\ntopics = ["t"]\naccept-loss = "5..9"': "loss-of-what",
    'run = "group mirror"\ngroups = ["g["]\nregex = true': "bad-regex",
    'run = "verify"\nconf = ["driver.memory=4g"]': "bad-spark-conf",
}


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.parametrize(("step", "ref"), BAD.items())
def test_a_value_that_its_verb_would_refuse_is_found_before_the_first_step(
    step: str, ref: str, verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "p.toml").write_text(FIRST + step + "\n", encoding="utf-8")
    assert main(["playbook", verb, "p.toml", "--json"]) in (Exit.USAGE, Exit.REFUSED)
    told = json.loads(capsys.readouterr().out)
    assert (told["error"], told["still_true"]) == (ref, "no step was run")
    assert told["what"].startswith("p.toml:3:1: step 2 (")
    assert told["next"]
    assert not (folder / "begun").exists()


def test_a_report_that_could_not_be_written_is_found_unless_a_command_may_make_room_for_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify = '[[step]]\nrun = "verify"\nhtml = "reports/copy.html"\n'
    (folder / "p.toml").write_text(verify, encoding="utf-8")
    assert main(["playbook", "plan", "p.toml", "--json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().out)["error"] == "report-not-writable"
    (folder / "p.toml").write_text('[[step]]\nexec = "mkdir -p reports"\n' + verify, encoding="utf-8")
    assert main(["playbook", "plan", "p.toml", "--json"]) == Exit.OK


def test_good_values_are_judged_without_contacting_anybody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No cluster answers at these addresses."""
    steps = [
        'run = "link create"\nname = "l"\nsource = "old"',
        'run = "topic mirror"\ntopics = ["t"]\nfrom = "2026-03-01T08:00:00Z"',
        'run = "topic resume"\ntopics = ["t"]\npartition = 0\naccept-loss = "5..9"',
        'run = "group mirror"\ngroups = ["g.*"]\nregex = true',
        'run = "group promote"\ngroups = ["g"]',
        'run = "promote"\ntopics = ["t"]',
        'run = "verify"\nhtml = "copy.html"',
        'run = "link finish"\nname = "l"\nbootstrap = "new-1:9092"',
    ]
    (folder / "p.toml").write_text("".join(f"[[step]]\n{step}\n" for step in steps), encoding="utf-8")
    assert main(["playbook", "plan", "p.toml", "--json"]) == Exit.OK
    assert len(json.loads(capsys.readouterr().out)["steps"]) == len(steps)


def test_a_playbook_may_be_looked_at_where_no_cluster_is_configured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "kmigrate.toml").unlink()
    create = '[[step]]\nrun = "link create"\nname = "l"\nsource = "old"\n'
    (folder / "p.toml").write_text(create, encoding="utf-8")
    assert main(["playbook", "plan", "p.toml", "--json"]) == Exit.OK
    (folder / "p.toml").write_text(create.replace('"l"', '"a b"'), encoding="utf-8")
    capsys.readouterr()
    assert main(["playbook", "plan", "p.toml", "--json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().out)["error"] == "bad-link-name"


def test_a_target_that_a_person_is_asked_for_may_be_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the step asks for the target; elsewhere the missing target is an error before the first step."""
    (folder / "kmigrate.toml").write_text(CONFIG.partition("[defaults]")[0], encoding="utf-8")
    (folder / "p.toml").write_text('[[step]]\nrun = "link create"\nname = "l"\nsource = "old"\n', encoding="utf-8")
    assert main(["playbook", "plan", "p.toml"]) == Exit.USAGE
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["playbook", "plan", "p.toml"]) == Exit.OK
