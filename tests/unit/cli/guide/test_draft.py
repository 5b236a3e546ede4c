"""The first configuration file: all or nothing is written, without a password, and `load` reads the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kmigrate.cli.guide.draft import ClusterDraft, ConfigDraft, given_key, write_draft
from kmigrate.config.load import load
from kmigrate.config.secret_text import SecretText
from kmigrate.errors import Failed, Refused, UsageError
from kmigrate.model.security import Login


def draft() -> ConfigDraft:
    target = ClusterDraft(
        "new",
        {
            "bootstrap.servers": "new-1:9093",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "kmigrate",
        },
        {"sasl.password": SecretText("hush")},
    )
    source = ClusterDraft("old", {"bootstrap.servers": "old-1:9092,old-2:9092"})
    return ConfigDraft(source, target, {"host": "127.0.0.1", "port": 19092}, "blue")


def test_the_file_is_read_by_load_and_the_secret_has_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "kmigrate.toml"
    written = write_draft(draft(), file, overwrite=False)
    secret = tmp_path / "secrets" / "new.sasl.password"
    assert written == [secret, file]
    assert "hush" not in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    settings = load(file, {})
    assert settings.clusters["old"].bootstrap == (("old-1", 9092), ("old-2", 9092))
    login = settings.clusters["new"].security.sasl
    assert isinstance(login, Login)
    assert (str(login.password), login.mechanism) == ("hush", "PLAIN")
    assert (settings.defaults.target, settings.defaults.link, settings.router.port) == ("new", "blue", 19092)


def test_the_draft_connects_as_the_written_file_will() -> None:
    login = draft().target.settings(Path(), {}).security.sasl
    assert isinstance(login, Login)
    assert str(login.password) == "hush"


@pytest.mark.parametrize(
    ("present", "way_on"),
    [("kmigrate.toml", "kmigrate doctor --config"), ("secrets/new.sasl.password", "another name of the cluster")],
)
def test_an_existing_file_stays_and_nothing_else_is_written(tmp_path: Path, present: str, way_on: str) -> None:
    kept = tmp_path / present
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine", encoding="utf-8")
    with pytest.raises(Refused) as caught:
        write_draft(draft(), tmp_path / "kmigrate.toml", overwrite=False)
    assert caught.value.ref == "file-exists"
    assert f"kmigrate init --overwrite --config {tmp_path}/kmigrate.toml" in caught.value.next_step
    assert way_on in caught.value.next_step
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]
    assert kept.read_text(encoding="utf-8") == "mine"


def test_with_overwrite_the_files_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "kmigrate.toml"
    file.write_text("mine", encoding="utf-8")
    write_draft(draft(), file, overwrite=True)
    assert load(file, {}).defaults.link == "blue"
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_with_overwrite_all_files_are_replaced_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    replace, file, secret = Path.replace, tmp_path / "kmigrate.toml", tmp_path / "secrets/new.sasl.password"
    secret.parent.mkdir()
    for each in (file, secret):
        each.write_text("mine", encoding="utf-8")

    def stop(path: Path, place: Path) -> Path:
        if place == file and path.suffix == ".part":
            raise failure
        return replace(path, place)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises((KeyboardInterrupt, Failed)):
        write_draft(draft(), file, overwrite=True)
    found = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {file: "mine", secret: "mine"}


def test_a_new_file_beside_a_replaced_file_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, file = Path.replace, tmp_path / "kmigrate.toml"
    file.write_text("mine", encoding="utf-8")

    def stop(path: Path, place: Path) -> Path:
        made = replace(path, place)
        if place == file and path.suffix == ".part":
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_draft(draft(), file, overwrite=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert file.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("secrets", [True, False])
def test_a_place_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, secrets: bool) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    made = draft()
    if not secrets:
        made.target.secrets.clear()
    with pytest.raises(Failed) as caught:
        write_draft(made, blocked / "kmigrate.toml", overwrite=False)
    assert (caught.value.ref, caught.value.still_true) == ("config-not-written", "no configuration was written")
    assert list(tmp_path.iterdir()) == [blocked]


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_draft(draft(), tmp_path / "kmigrate.toml", overwrite=False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_ctrl_c_between_two_files_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Path.hardlink_to

    def stop(path: Path, part: Path) -> None:
        if path.name == "kmigrate.toml":
            raise KeyboardInterrupt
        link(path, part)

    monkeypatch.setattr(Path, "hardlink_to", stop)
    with pytest.raises(KeyboardInterrupt):
        write_draft(draft(), tmp_path / "kmigrate.toml", overwrite=False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_shown_text_hides_user_names() -> None:
    assert "(hidden)" in draft().text(hide=True)
    assert '"kmigrate"' not in draft().text(hide=True)
    assert 'sasl.username" = "kmigrate"' in draft().text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("security.protocol=SASL_SSL", ("security.protocol", "SASL_SSL")),
        ("sasl.password=env:PASSWORD", ("sasl.password", {"env": "PASSWORD"})),
        ("ssl.key.password = file:secrets/key", ("ssl.key.password", {"file": "secrets/key"})),
        ("sasl.oauthbearer.token.command=fetch a=b", ("sasl.oauthbearer.token.command", "fetch a=b")),
    ],
)
def test_a_flag_gives_a_key(text: str, expected: tuple[str, object]) -> None:
    assert given_key(text, "--source-set") == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sasl.password=hush", "sasl.password is given in plain text"),
        ("sasl.pasword=env:A", "there is no key 'sasl.pasword'"),
        ("sasl.username", "'sasl.username' has no value"),
        ("=x", "'=x' has no value"),
    ],
)
def test_a_wrong_flag_is_named_and_a_password_is_not_repeated(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        given_key(text, "--source-set")
    assert (caught.value.ref, caught.value.what) == ("bad-setting", f"--source-set: {what}")
    assert "hush" not in str(caught.value)
