"""The command line without a cluster: errors, exit codes, JSON, and no questions without a terminal."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call, run_to_end
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.values import start_position
from kmigrate.cli.commands.sandbox import config_text
from kmigrate.cli.reference import commands as reference
from kmigrate.cli.reference.metrics import with_tables
from kmigrate.config.load import load
from kmigrate.errors import KmigrateError, ParityMismatch, Refused, UsageError, WaitTimedOut

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("KMIGRATE_CONFIG", "KMIGRATE_SANDBOX"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[Path]:
    """Return a configuration of clusters that refuse every connection."""
    with socket.socket() as taken:  # the port is bound and does not listen, so connections are refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        path = tmp_path / "kmigrate.toml"
        path.write_text(
            f'[clusters.source]\n"bootstrap.servers" = "127.0.0.1:{port}"\n'
            f'[clusters.target]\n"bootstrap.servers" = "localhost:{port}"\n[defaults]\ntarget = "target"\n',
            encoding="utf-8",
        )
        yield path


def _failing(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json"])
    said = capsys.readouterr()
    told: dict[str, Any] = json.loads(said.out)
    assert told["error"] in said.err
    assert told["exit_code"] == code
    return code, told


@pytest.mark.parametrize("words", [["frob"], ["link", "frob"], ["status", "--frob"], ["status", "--interval", "x"]])
def test_wrong_words_are_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, told = _failing(capsys, *words)
    assert (code, told["error"]) == (Exit.USAGE, "usage")


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("noun", ["topic", "group"])
@pytest.mark.parametrize(
    ("words", "ref"),
    [
        (["a(", "--regex"], "bad-regex"),
        (["a.*", "--regex", "--exclude", "["], "bad-regex"),
        (["a", "--exclude", "b"], "exclude-without-regex"),
    ],
)
def test_a_broken_expression_is_said_before_anybody_is_contacted(
    noun: str, words: list[str], ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = _failing(capsys, noun, "mirror", *words)
    assert (code, told["error"]) == (Exit.USAGE, ref)


def test_without_a_configuration_the_way_to_one_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = _failing(capsys, "status")
    assert (code, told["error"]) == (Exit.USAGE, "no-config")
    assert "kmigrate sandbox up" in told["next"]


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["link", "create"], "NAME"),
        (["link", "create", "l"], "--source"),
        (["link", "delete"], "NAME"),
        (["topic", "mirror"], "TOPIC"),
        (["topic", "show"], "TOPIC"),
        (["group", "mirror"], "GROUP"),
        (["group", "promote"], "GROUP"),
        (["promote"], "TOPIC"),
        (["sandbox", "traffic", "roll"], "WHICH"),
    ],
)
def test_a_missing_value_is_a_usage_error_where_nobody_can_be_asked(
    words: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = _failing(capsys, *words)
    assert (code, told["error"]) == (Exit.USAGE, "missing-value")
    assert told["next"] == f"give {flag}"


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(
    ("words", "code", "ref"),
    [
        (["topic", "mirror", "t", "--from", "noon"], Exit.USAGE, "bad-start-position"),
        (["topic", "mirror", "t", "--offsets", "some"], Exit.USAGE, "bad-offsets-mode"),
        (["offsets", "translate", "t", "1", "--from", "here"], Exit.USAGE, "bad-side"),
        (["offsets", "translate", "t:x", "1"], Exit.USAGE, "usage"),
        (["offsets", "translate", "t:²", "1"], Exit.USAGE, "usage"),
        (["offsets", "export", "gone.json", "--out", "new.json"], Exit.USAGE, "no-positions"),
        (["link", "create", "l", "--source", "target"], Exit.REFUSED, "source-is-target"),
        (["link", "create", "a/b", "--source", "source"], Exit.USAGE, "bad-link-name"),
        (["topic", "mirror", "t", ""], Exit.USAGE, "bad-name"),
        (["group", "promote", "g\udcff", "--yes"], Exit.USAGE, "bad-name"),
        (["link", "create", "l", "--source", "other"], Exit.USAGE, "unknown-cluster"),
        (["status", "--target", "other"], Exit.USAGE, "unknown-cluster"),
        (["status", "--config", "gone.toml"], Exit.USAGE, "no-config-file"),
        (["status", "--http", ""], Exit.USAGE, "bad-listen-address"),
        (["playbook", "plan", "gone.toml"], Exit.USAGE, "no-playbook"),
        (["verify", "--html", "gone/page.html"], Exit.USAGE, "report-not-writable"),
        (["verify", "--junit", "."], Exit.USAGE, "report-not-writable"),
        (["verify", "--parquet", "."], Exit.USAGE, "report-not-writable"),
        (["sandbox", "status"], Exit.REFUSED, "no-sandbox"),
        (["sandbox", "up", "--brokers", "2"], Exit.USAGE, "bad-broker-count"),
        (["sandbox", "up", "--source-version", "3.9"], Exit.USAGE, "bad-version"),
        (["sandbox", "up", "--target-version", "2.7.2"], Exit.USAGE, "bad-version"),
        (["sandbox", "up", "--secure", "--source-version", "3.4.1"], Exit.USAGE, "secure-needs-kraft"),
        (["sandbox", "demo", "--target-version", "latest"], Exit.USAGE, "bad-version"),
        (["sandbox", "demo", "--source-version", "2.7.2"], Exit.USAGE, "bad-version"),
        (["sandbox", "traffic", "roll", "producers", "--to", "moon"], Exit.USAGE, "bad-address"),
        (["status"], Exit.FAILED, "cluster-unreachable"),
        (["link", "create", "l", "--source", "source"], Exit.FAILED, "cluster-unreachable"),
        (["run"], Exit.FAILED, "cluster-unreachable"),
    ],
)
def test_each_error_has_its_reference_and_exit_code(
    words: list[str], code: Exit, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, told = _failing(capsys, *words)
    assert (found, told["error"]) == (code, ref)


def test_a_cluster_that_never_answers_is_called_unreachable_within_15_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts the connection and never answers
        port = silent.getsockname()[1]
        config = tmp_path / "silent.toml"
        config.write_text(f'[clusters.c]\n"bootstrap.servers" = "127.0.0.1:{port}"\n', encoding="utf-8")
        began = time.monotonic()
        code, told = _failing(capsys, "status", "--config", str(config))
    assert (code, told["error"]) == (Exit.FAILED, "cluster-unreachable")
    assert time.monotonic() - began < 15


def test_doctor_tells_of_an_unreachable_cluster_and_goes_on(nobody: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == Exit.FAILED
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert {told[f"cluster {name}"][0]["ref"] for name in ("source", "target")} == {"cluster-unreachable"}
    assert str(nobody.name) in told["configuration"][0]["what"]


@pytest.mark.usefixtures("nobody")
def test_a_dangerous_playbook_needs_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text('[[step]]\nrun = "promote"\ntopics = ["t"]\n', encoding="utf-8")
    code, told = _failing(capsys, "playbook", "run", "p.toml")
    assert (code, told["error"]) == (Exit.USAGE, "needs-yes")
    assert "--yes" in told["next"]


@pytest.mark.usefixtures("nobody")
def test_a_playbook_judges_exit_codes_and_tells_each_step_in_one_json_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("p.toml").write_text(
        '[[step]]\nexec = "true"\n[[step]]\nwait = "seconds 0.01"\n[[step]]\nexec = "false"\n[[step]]\nexec = "true"\n',
        encoding="utf-8",
    )
    assert main(["playbook", "run", "p.toml", "--json"]) == Exit.FAILED
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    ended = [(line["step"], line["outcome"]) for line in lines if line.get("event") == "step-ended"]
    assert ended == [(1, "done"), (2, "done")]
    assert lines[-1]["error"] == "exec-failed"
    assert "step 3" in lines[-1]["what"]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("1700000000123", "1700000000123"),
        ("1970-01-01T00:00:01Z", "1000"),
        ("1970-01-01T01:00:01+01:00", "1000"),
        ("1970-01-01T00:00:01", "1000"),
    ],
)
def test_a_start_position_is_a_word_or_a_moment(text: str, position: str) -> None:
    assert start_position(text) == position


@pytest.mark.parametrize("text", ["", "tomorrow", "²", "1969-12-31", "9223372036854775808"])
def test_what_no_log_can_be_asked_for_is_no_start_position(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        start_position(text)
    assert caught.value.ref == "bad-start-position"


def test_a_bug_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by zero\nand more")

    assert run_to_end(Call(), broken) is Exit.FAILED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "error internal-error: ZeroDivisionError: by zero (--debug shows where)",
        "  more: kmigrate explain internal-error",
    ]


def test_exit_codes_are_those_of_the_errors() -> None:
    pairs: list[tuple[type[KmigrateError], Exit]] = [
        (UsageError, Exit.USAGE),
        (Refused, Exit.REFUSED),
        (ParityMismatch, Exit.PARITY_MISMATCH),
        (WaitTimedOut, Exit.TIMED_OUT),
        (KmigrateError, Exit.FAILED),
    ]
    for kind, code in pairs:
        assert kind.exit_code == code


def test_every_command_takes_json_and_config() -> None:
    page = reference.reference()
    sections = page.split("\n## kmigrate ")[1:]
    assert len(sections) == len(list(reference.commands())) > 30
    for section in sections:
        assert "--json" in section
        assert "--config" in section


def test_the_command_reference_is_current() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page == reference.reference(), "make it anew: python -m kmigrate.cli.reference.commands > docs/cli.md"


def test_every_metric_has_its_row() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert "kmigrate_mirror_lag_seconds" in page
    assert page == with_tables(page), "make it anew: python -m kmigrate.cli.reference.metrics docs/metrics.md"


def test_the_sandboxs_configuration_is_one_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.toml"
    path.write_text(config_text("127.0.0.1:1,127.0.0.1:2", "127.0.0.1:3", 4), encoding="utf-8")
    settings = load(path, {})
    assert settings.cluster("source").bootstrap == (("127.0.0.1", 1), ("127.0.0.1", 2))
    assert (settings.defaults.target, settings.router.port) == ("target", 4)
