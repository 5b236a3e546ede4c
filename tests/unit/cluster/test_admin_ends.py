"""An Admin's librdkafka client ends with the Admin; the garbage collector might end a client in its own callback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kmigrate.cluster.admin import Admin
from kmigrate.errors import UsageError
from kmigrate.model.security import Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.sandbox.security import SandboxSecurity

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
"""A script for a process of its own, in which nothing else starts or ends threads."""


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


def test_a_renewed_certificate_is_read_by_a_client_that_runs_and_a_broken_one_is_not(tmp_path: Path) -> None:
    """librdkafka reads a certificate only once.

    A mirror that went on with an expired certificate could not create a topic.
    """
    authority = SandboxSecurity.create(tmp_path / "s")
    first, second = authority.issue("one"), authority.issue("two")
    certificate, key = tmp_path / "ours.pem", tmp_path / "ours.key"

    def put(file: Path, made: Path) -> None:
        file.write_bytes(made.read_bytes())

    put(certificate, first[0])
    security = Security(Tls(str(authority.ca_file), str(certificate), str(key)))
    with Admin(ClusterSettings("c", (("127.0.0.1", 1),), security=security)) as admin:
        with pytest.raises(UsageError, match="tls-file-unusable"):
            _ = admin.client
        put(key, first[1])
        used = admin.client
        assert admin.client is used
        put(certificate, second[0])
        assert admin.client is used
        put(key, second[1])
        assert admin.client is not used
