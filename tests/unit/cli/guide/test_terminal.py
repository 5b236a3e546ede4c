"""`kmigrate` alone and `kmigrate init` on a pseudo-terminal, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli

from tests.terminal import CTRL_C, DOWN, ENTER, Person


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    made = Person(tmp_path)
    try:
        yield made
    finally:
        if made.terminal is not None:
            made.terminal.close(force=True)


def test_kmigrate_alone_opens_the_guide_and_ctrl_c_names_the_command_that_goes_on(person: Person) -> None:
    person.calls()
    person.answers("How do you begin?", CTRL_C)
    code, rest = person.ends()
    assert (code, "kmigrate guide" in rest) == (130, True)
    assert not (person.folder / "kmigrate.toml").exists()


def test_init_asks_for_a_login_and_keeps_the_password_out_of_the_file(person: Person, tmp_path: Path) -> None:
    person.calls("init", "--offline", "--source", "old-1:9092", "--link", "blue", "--listen", "127.0.0.1:9000")
    person.answers("Bootstrap servers of the target", "new-1" + ENTER)
    person.answers("one or more host:port", ":9093" + ENTER)  # a wrong address is named at once
    person.answers("How do clients connect to the target?", DOWN * 4 + ENTER)
    person.answers("Which SASL mechanism?", ENTER)
    person.answers("User name?", "me" + ENTER)
    person.answers("Where does kmigrate read the password?", DOWN * 2 + ENTER)
    person.answers("The password?", "hush" + ENTER)
    person.answers("Write this to kmigrate.toml?", "y")
    code, rest = person.ends()
    assert (code, "kmigrate doctor" in rest) == (0, True)
    target = tomli.loads((tmp_path / "kmigrate.toml").read_text(encoding="utf-8"))["clusters"]["target"]
    assert target == {
        "bootstrap.servers": "new-1:9093",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": {"file": "secrets/target.sasl.password"},
    }
    assert (tmp_path / "secrets/target.sasl.password").read_text(encoding="utf-8") == "hush\n"
