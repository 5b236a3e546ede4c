"""An Admin's librdkafka client ends with it: one that is left to the garbage collector may end in its own callback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

THREADS = Path("/proc/self/task")
SCENE = """
import gc
from pathlib import Path
from kmigrate.cluster.admin import Admin
from kmigrate.model.security import PLAINTEXT, Bearer, Login, Security
from kmigrate.model.settings import ClusterSettings

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

def admin():
    made = Admin(ClusterSettings("c", (("127.0.0.1", 1),), security={security}))
    made.client
    return made

gc.disable()
one = admin()
running = threads()
del one
print(running > 1, threads())
with admin() as other:
    running = threads()
print(running > 1, threads())
other.close()
"""
"""In a process of its own, of which nobody else starts or ends threads."""


@pytest.mark.skipif(not THREADS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "security",
    ["PLAINTEXT", "Security(sasl=Login('PLAIN', 'me', 'x'))", "Security(sasl=Bearer(token='x'))"],
    ids=["plain", "login", "bearer"],
)
def test_a_client_ends_with_the_last_who_holds_it_and_when_it_is_closed(security: str) -> None:
    command = [sys.executable, "-c", SCENE.format(security=security)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.split() == ["True", "1", "True", "1"], ran.stderr
