"""`sandbox up|status|down` with real brokers, across processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kmigrate.errors import Refused
from kmigrate.sandbox.estate import SandboxEstate

_UP = """
import sys
import time
from pathlib import Path
from kmigrate.sandbox.estate import SandboxEstate
SandboxEstate.up(Path(sys.argv[1]), detached=True)
"""


def test_a_detached_sandbox_outlives_its_starter_and_is_ended_by_another_process(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _UP, str(tmp_path)], check=True, timeout=100)
    sandbox = SandboxEstate.load(tmp_path)
    try:
        assert sandbox.status().state == "running"
        for cluster in sandbox.clusters:
            answer = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=20)
            assert answer.cluster_id == cluster.cluster_id

        with pytest.raises(Refused, match="sandbox-already-up"):
            SandboxEstate.up(tmp_path)

        sandbox.source.restart(1)
        sandbox.source.wait_ready()
        sandbox.save()
        sandbox = SandboxEstate.load(tmp_path)
        assert sandbox.status().state == "running"

        sandbox.target.kill(1)
        assert sandbox.status().state == "partly"
    finally:
        sandbox.down()
    assert sandbox.status().state == "ended"
    assert not sandbox.data.exists()
    with pytest.raises(Refused, match="no-sandbox"):
        SandboxEstate.load(tmp_path)


_TIED = """
import sys
from pathlib import Path
from kmigrate.sandbox.estate import SandboxEstate
SandboxEstate.up(Path(sys.argv[1]))
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_foreground_sandbox_leaves_no_broker_and_no_data_after_5_seconds(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _TIED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        sandbox = SandboxEstate.load(tmp_path)
        assert sandbox.status().state == "running"
        sandbox.source.pause(1)  # A stopped broker must end, too.
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 5
        while sandbox.status().state != "ended" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sandbox.status().state == "ended"
        while sandbox.data.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not sandbox.data.exists(), "the data of a dead sandbox stays on the disk"
