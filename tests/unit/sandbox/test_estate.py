"""The run folder of the sandbox, without brokers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kmigrate.errors import Refused
from kmigrate.sandbox.distribution import Distribution
from kmigrate.sandbox.estate import SandboxEstate, make_room
from kmigrate.sandbox.kafka import Broker, ClusterSpec, KafkaCluster
from kmigrate.sandbox.processes import ProcessIdentity


def _cluster(name: str, version: str, data: Path, port: int) -> KafkaCluster:
    long_gone = ProcessIdentity(1, "before this machine was started")
    broker = Broker(1, port, data / f"{name}-1", long_gone, controller_port=port + 1)
    distribution = Distribution(data / "jars", version)
    return KafkaCluster(ClusterSpec(name, version, 1, {"a": "b"}), distribution, f"id-{name}", {1: broker}, True)


def _saved(folder: Path) -> SandboxEstate:
    data = folder / "data"
    data.mkdir(parents=True)
    sandbox = SandboxEstate(
        folder, data, _cluster("source", "3.9.1", data, 20001), _cluster("target", "4.3.1", data, 20003)
    )
    sandbox.save()
    return sandbox


def test_what_is_saved_is_what_another_process_loads(tmp_path: Path) -> None:
    saved = _saved(tmp_path)
    assert SandboxEstate.load(tmp_path) == saved


def test_recorded_ids_of_processes_that_are_gone_count_as_ended_and_are_left_alone(tmp_path: Path) -> None:
    sandbox = _saved(tmp_path)
    assert sandbox.status().state == "ended"
    sandbox.down()  # process 1 of this machine is alive, and not ours
    assert not sandbox.data.exists()
    assert not (tmp_path / "sandbox.json").exists()


def test_a_second_start_names_the_command_that_takes_down_the_sandbox_of_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my sandbox"
    _saved(folder)
    monkeypatch.setattr(SandboxEstate, "status", lambda _: SimpleNamespace(state="running"))
    with pytest.raises(Refused, match="sandbox-already-up") as refusal:
        make_room(folder)
    assert f"kmigrate sandbox down --folder '{folder}'," in (refusal.value.next_step or "")


def test_a_folder_without_a_sandbox_is_refused_with_the_way_on(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no-sandbox") as refusal:
        SandboxEstate.load(tmp_path)
    assert refusal.value.next_step == "kmigrate sandbox up"


@pytest.mark.parametrize("content", ["", "[]", '{"data": "/x"}'])
def test_a_sandbox_file_that_is_not_ours_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "sandbox.json").write_text(content)
    with pytest.raises(Refused, match="sandbox-file-unreadable"):
        SandboxEstate.load(tmp_path)
