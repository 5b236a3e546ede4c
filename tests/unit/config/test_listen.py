"""Addresses of listeners, as a person writes addresses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kmigrate.config.listen import listen_address
from kmigrate.config.load import load
from kmigrate.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("metrics.example.org:80", ("metrics.example.org", 80)),
        ("[::1]:9464", ("::1", 9464)),
        ("::1:9464", None),
        ("host", None),
        ("host:", None),
        ("host:65536", None),
        ("a b:1", None),
        ("host:٣", None),
        ("host:" + "1" * 5_000, None),
    ],
)
def test_a_port_alone_is_loopbacks_and_what_is_no_address_is_none(text: str, address: tuple[str, int] | None) -> None:
    assert listen_address(text) == address


def test_a_wrong_address_is_refused_with_the_flag_the_variable_or_the_file_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('[metrics]\nlisten = "9464"\n', encoding="utf-8")
    assert load(file, {}).metrics.listen == "9464"
    tries: list[tuple[Callable[[], object], str]] = [
        (lambda: load(file, {}, {"metrics.listen": "nowhere"}), "a flag"),
        (lambda: load(file, {"KMIGRATE_METRICS__LISTEN": "nowhere"}), "KMIGRATE_METRICS__LISTEN"),
    ]
    for attempt, origin in tries:
        with pytest.raises(UsageError) as caught:
            attempt()
        assert origin in str(caught.value)
        assert "[metrics] listen" in str(caught.value)
