"""Client tables that change under a running router: the router takes a table that stands still and is usable."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kmigrate.errors import Refused
from kmigrate.model.listener_access import ClientEntry, ListenerAccess
from kmigrate.router.process.credentials import Credentials
from kmigrate.router.settings import RouterSettings


class Scene:
    """A table of clients with an entry per line, and the router's view of the table."""

    def __init__(self, folder: Path, *, certified: bool = False) -> None:
        self.path = folder / "clients"
        self.certified = certified
        self.path.write_text("orders a\nbilling b", "utf-8")
        self.reads = 0
        self.taken: list[ListenerAccess] = []
        self.credentials = Credentials(
            RouterSettings(access=self._read(), read_access=self._read), None, self.taken.append
        )

    def _read(self) -> ListenerAccess:
        self.reads += 1
        lines = [line.split() for line in self.path.read_text("utf-8").splitlines()]
        if any(len(words) != 2 for words in lines):
            raise Refused("bad", "half a line")
        if any(word == "FILE" for _, word in lines) and not self.path.with_name("FILE").exists():
            raise Refused("bad", "FILE is no file")
        if self.certified:
            return ListenerAccess(
                clients={name: ClientEntry(name, certificate=word.strip("-")) for name, word in lines},
                files=(str(self.path),),
            )
        return ListenerAccess(
            mechanisms=("PLAIN",),
            mapped=True,
            clients={name: ClientEntry(name, word) for name, word in lines},
            files=(str(self.path),),
        )

    def looks(self, times: int = 2) -> None:
        for _ in range(times):
            asyncio.run(self.credentials.look())


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kmigrate.router")


def test_a_table_is_read_again_only_when_it_has_changed_and_stands_still(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.looks(10)
    assert (scene.reads, scene.taken) == (2, []), "once more at the start: it may have changed since it was read"
    scene.path.write_text("orders changed\nshop", "utf-8")
    scene.looks(1)
    scene.path.write_text("orders changed\nshop c", "utf-8")
    scene.looks(1)
    assert scene.reads == 2, "it was being written"
    scene.looks(1)
    assert [sorted(access.clients) for access in scene.taken] == [["orders", "shop"]]
    scene.looks(10)
    assert (scene.reads, len(scene.taken)) == (3, 1)


def test_the_log_says_of_whom_there_is_news_and_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(tmp_path)
    scene.path.write_text("orders changed\nshop c", "utf-8")
    scene.looks()
    assert caplog.messages == ["the table of clients was read again: new: shop; changed: orders; gone: billing"]
    scene.path.write_text("\n".join(f"c{number:02} x" for number in range(12)), "utf-8")
    scene.looks()
    assert "c09 and 2 more; gone: orders, shop" in caplog.messages[-1]


def test_a_broken_table_is_told_once_and_the_old_one_stays_until_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path)
    scene.path.write_text("orders", "utf-8")
    scene.looks(100)
    assert caplog.messages == ["the table of clients stays as it was: half a line"]
    assert scene.taken == []
    scene.path.write_text("orders a", "utf-8")
    scene.looks()
    assert [sorted(access.clients) for access in scene.taken] == [["orders"]]


def test_a_table_that_names_a_file_which_is_about_to_come_is_taken_when_it_is_there(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.path.write_text("orders a\nshop FILE", "utf-8")
    scene.looks(10)
    assert scene.taken == []
    (tmp_path / "FILE").touch()
    scene.looks(10)
    assert [sorted(access.clients) for access in scene.taken] == [["orders", "shop"]]


def test_a_table_without_certificates_does_not_open_the_door_to_everybody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path, certified=True)
    scene.path.write_text("orders -\nbilling -", "utf-8")
    scene.looks()
    assert "no client of the new one has a certificate" in caplog.text
    assert scene.taken == []


def test_a_router_without_a_table_looks_at_nothing() -> None:
    asyncio.run(Credentials(RouterSettings(), None, lambda _: None).look())
