"""Tests of names by which a process knows whether another process of the same machine has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kmigrate.net import process
from kmigrate.net.process import has_ended, this_process

_TELL = "import sys; from kmigrate.net.process import this_process; print(this_process(), flush=True); sys.stdin.read()"


def test_a_process_that_runs_has_not_ended() -> None:
    assert str(os.getpid()) in this_process().split("/")
    assert not has_ended(this_process())


def test_a_process_has_ended_once_it_is_killed_even_before_its_parent_knows() -> None:
    with subprocess.Popen([sys.executable, "-c", _TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        named = child.stdout.readline().decode().strip()
        assert not has_ended(named)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(named), "a zombie"
        child.wait()
        assert has_ended(named)


def test_another_process_under_the_same_id_is_not_the_named_process() -> None:
    place, _, start = this_process().rpartition("/")
    assert has_ended(f"{place}/{int(start) - 1}")


def test_nothing_is_known_of_processes_of_another_machine_or_container() -> None:
    boot, rest = this_process().split("/", 1)
    _, pid, start = rest.split("/")
    assert not has_ended(f"{boot}/pid:[1]/{pid}/0")
    assert not has_ended(f"other-boot/{rest.rpartition('/')[0]}/0")
    assert not has_ended("")
    assert not has_ended(f"{boot}//{start}")


def test_a_process_that_the_system_hides_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hidepid` and systemd's ProtectProc hide the processes of other users; only the kernel knows these ids."""
    named, _, start = this_process().rpartition("/")
    hiding = tmp_path / "proc"
    (hiding / "sys/kernel/random").mkdir(parents=True)
    (hiding / "sys/kernel/random/boot_id").write_text(named.split("/")[0], encoding="ascii")
    (hiding / "self/ns").mkdir(parents=True)
    (hiding / "self/ns/pid").symlink_to(named.split("/")[1])
    monkeypatch.setattr(process, "_PROC", hiding)
    assert not has_ended(f"{named}/{start}")
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    machine = named.rpartition("/")[0]
    assert has_ended(f"{machine}/{child.pid}/{start}")
    assert has_ended(f"{machine}/99999999999999999999/{start}")
