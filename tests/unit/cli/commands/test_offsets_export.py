"""Copies of a Spark checkpoint: translated files, copied files, and positions without a place on the other side."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from kmigrate.cli.commands.offsets import _check_places, _checkpoint, _copy_checkpoint, _read, _view, _whole
from kmigrate.errors import Failed, UsageError
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TopicRecord

BATCH = 'v1\n{}\n{"orders":{"0":400}}'
BEGINNING = '\0v1\n{"orders":{"0":100}}'


def checkpoint(folder: Path, **more: str) -> Path:
    """Write the checkpoint of a query that ended in its first batch; `more` holds files, with `__` for the slash."""
    told = {"metadata": "{}", "offsets__0": BATCH, "offsets__.0.crc": "sum", "sources__0__0": BEGINNING}
    for name, text in {**told, "sources__0__.0.crc": "sum", "sources__1__0": "v1\nnot Kafka", **more}.items():
        path = folder.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_of_a_first_batch_that_was_not_committed_the_beginnings_of_kafka_sources_are_translated_too(
    tmp_path: Path,
) -> None:
    given = checkpoint(tmp_path / "given")
    assert _checkpoint(given) == {given / "offsets/0": BATCH, given / "sources/0/0": BEGINNING}


def test_beginnings_stay_as_they_are_once_a_batch_is_committed(tmp_path: Path) -> None:
    """The files may name topics that are long gone, and no start of the query reads the files."""
    given = checkpoint(tmp_path / "given", commits__0="v1\n{}")
    assert list(_checkpoint(given)) == [given / "offsets/0"]


def test_a_copy_leaves_out_the_checksums_of_what_was_translated(tmp_path: Path) -> None:
    given, out = checkpoint(tmp_path / "given"), tmp_path / "out"
    _copy_checkpoint(given, out, {Path("offsets/0"): "a", Path("sources/0/0"): "b"})
    found = {str(path.relative_to(out)): path.read_text("utf-8") for path in out.rglob("*") if path.is_file()}
    assert found == {"metadata": "{}", "offsets/0": "a", "sources/0/0": "b", "sources/1/0": "v1\nnot Kafka"}


def test_a_copy_that_was_broken_off_never_has_the_name_that_was_asked_for(tmp_path: Path) -> None:
    """Spark would start again from half a checkpoint."""
    given, out = checkpoint(tmp_path / "given"), tmp_path / "out"

    def broken(beside: Path) -> None:
        _copy_checkpoint(given, beside, {Path("offsets/0"): "a"})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _whole(out, broken)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]
    _whole(out, lambda beside: _copy_checkpoint(given, beside, {Path("offsets/0"): "b"}))
    assert (out / "offsets/0").read_text("utf-8") == "b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given", "out"]
    assert out.stat().st_mode == given.stat().st_mode


@pytest.mark.parametrize(
    ("phase", "why"),
    [(TopicPhase.MIRRORING, "not copied yet"), (TopicPhase.PROMOTED, "beyond the barrier of its promote")],
)
def test_a_position_without_a_place_on_the_other_side_is_told_with_the_reason(phase: TopicPhase, why: str) -> None:
    console = Console(width=100)
    with console.capture() as shown:
        console.print(_view(TopicRecord("l", "t", phase, 1), [(300, None)], "target"))
    assert why in shown.get()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    no_text, folder = tmp_path / "p.json", checkpoint(tmp_path / "given")
    no_text.write_bytes(b"\xff")
    (folder / "offsets/0").unlink()
    (folder / "offsets/0").mkdir()
    for given in (no_text, folder):
        with pytest.raises(UsageError) as caught:
            _read(given)
        assert (caught.value.ref, str(given) in caught.value.what) == ("bad-positions", True)


def test_a_copy_into_what_it_is_a_copy_of_is_refused(tmp_path: Path) -> None:
    """Such a copy would contain itself, and the given directory would change."""
    given = checkpoint(tmp_path / "given")
    with pytest.raises(UsageError) as caught:
        _check_places(given, given / "more" / "copy")
    assert caught.value.ref == "out-within"
    _check_places(given, tmp_path / "given-copy")


def test_a_name_that_is_too_long_is_no_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        _check_places(tmp_path, tmp_path / ("a" * 300))


def test_a_copy_that_finds_no_room_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    def full(beside: Path) -> None:
        beside.write_text("half", encoding="utf-8")
        raise OSError(28, "No space left on device")

    with pytest.raises(Failed) as caught:
        _whole(tmp_path / "out", full)
    assert (caught.value.ref, "No space left" in caught.value.what) == ("copy-not-written", True)
    assert not list(tmp_path.iterdir())
