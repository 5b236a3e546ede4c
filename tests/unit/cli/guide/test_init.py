"""`kmigrate init` by flags: what is written, what is refused, and that no refusal writes anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kmigrate.cli.app import main
from kmigrate.config.load import load

_BOTH = ("--source", "old-1:9092", "--target", "new-1:9092")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KMIGRATE_CONFIG", raising=False)
    return tmp_path


def init(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["init", *words, "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


def test_two_addresses_are_enough(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = init(capsys, *_BOTH, "--offline", "--yes")
    assert (code, told["config"], told["written"]) == (0, "kmigrate.toml", ["kmigrate.toml"])
    assert told["next"] == ["kmigrate doctor", "kmigrate guide"]
    settings = load(None, {})
    assert (settings.defaults.target, settings.defaults.link) == ("target", "migration")
    assert (settings.router.host, settings.router.port, settings.router.broker_ports) == ("127.0.0.1", 19092, 19093)


def test_every_answer_has_a_flag(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "client.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nlinger.ms=5\n"
        'sasl.jaas.config=PlainLoginModule required username="me" password="hush";\n',
        encoding="utf-8",
    )
    words = ["--source-name", "old", "--target-name", "new", "--target-properties", "client.properties"]
    words += ["--source-set", "client.id=mover", "--link", "blue", "--listen", "0.0.0.0:9000"]
    words += ["--advertised-host", "router.example.org", "--config", "other.toml"]
    code, told = init(capsys, *_BOTH, *words, "--offline")
    assert code == 0
    assert told["written"] == ["secrets/new.sasl.password", "other.toml"]
    assert told["clusters"]["target"]["left_out"] == ["linger.ms"]
    assert told["next"][0] == "kmigrate doctor --config other.toml"
    assert "hush" not in json.dumps(told)
    settings = load(folder / "other.toml", {})
    assert settings.clusters["old"].client_id == "mover"
    assert settings.clusters["new"].bootstrap == (("new-1", 9092),)
    assert (settings.defaults.link, settings.router.advertised_host) == ("blue", "router.example.org")


def test_a_plan_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = init(capsys, *_BOTH, "--offline", "--plan")
    assert (code, told["written"]) == (0, [])
    assert '"bootstrap.servers" = "old-1:9092"' in told["text"]
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ((), 2, "missing-value"),
        (("--source", "old-1:9092"), 2, "missing-value"),
        ((*_BOTH, "--source-set", "sasl.password=hush"), 2, "bad-setting"),
        ((*_BOTH, "--source-properties", "nowhere.properties"), 2, "bad-properties"),
        ((*_BOTH, "--target-name", "source"), 2, "bad-name"),
        ((*_BOTH, "--link", "a b"), 2, "bad-link-name"),
        ((*_BOTH, "--offline", "--listen", "nowhere"), 2, "bad-listen-address"),
        (("--source", "old-1", "--target", "new-1:9092"), 2, "bad-config-value"),
        (("--source", "127.0.0.1:1", "--target", "127.0.0.1:1"), 1, "cluster-unreachable"),
        ((*_BOTH, "--source-set", "sasl.password=env:NOT_SET_HERE"), 2, "bad-config-value"),
        (("--source", "old-1", "--target", "new-1:9092", "--offline"), 2, "bad-config-value"),
        ((*_BOTH, "--source-set", "security.protocol=TLS", "--offline"), 2, "bad-config-value"),
    ],
)
def test_a_refusal_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, error: str
) -> None:
    found, told = init(capsys, *words, "--yes")
    assert (found, told["error"]) == (code, error)
    assert told["still_true"]
    assert told["next"]
    assert not list(folder.iterdir())


def test_a_variable_may_be_set_later(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    login = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=me", "sasl.password=env:LATER")
    words = [word for each in login for word in ("--target-set", each)]
    assert init(capsys, *_BOTH, *words, "--offline")[0] == 0
    assert load(None, {"LATER": "hush"}).clusters["target"].security.sasl is not None


def test_the_file_is_in_the_home_directory_where_the_variable_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("KMIGRATE_CONFIG", "~/my clusters.toml")
    _, told = init(capsys, *_BOTH, "--offline")
    assert told["next"][0] == f"kmigrate doctor --config '{folder}/my clusters.toml'"
    assert (folder / "my clusters.toml").is_file()


def test_an_existing_file_is_never_replaced_unasked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = folder / "kmigrate.toml"
    kept.write_text("# mine\n", encoding="utf-8")
    code, told = init(capsys, *_BOTH, "--offline", "--yes")
    assert (code, told["error"]) == (3, "file-exists")
    assert kept.read_text(encoding="utf-8") == "# mine\n"
    assert init(capsys, *_BOTH, "--offline", "--overwrite")[0] == 0
    assert load(None, {}).clusters.keys() == {"source", "target"}
