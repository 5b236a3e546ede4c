"""An Admin's librdkafka client ends with it: one that is left to the garbage collector may end in its own callback."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmigrate.cluster.admin import Admin
from kmigrate.model.security import PLAINTEXT, Bearer, Login, Security
from kmigrate.model.settings import ClusterSettings


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def threads() -> set[str]:
    """Those of the process by number, librdkafka's among them."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


def admin(security: Security) -> Admin:
    return Admin(ClusterSettings("c", (("127.0.0.1", 1),), security=security))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "security",
    [PLAINTEXT, Security(sasl=Login("PLAIN", "me", "x")), Security(sasl=Bearer(token="x"))],
    ids=["plain", "login", "bearer"],
)
def test_a_client_ends_with_the_last_who_holds_it_and_when_it_is_closed(security: Security) -> None:
    before = threads()
    one = admin(security)
    assert one.client is not None
    assert threads() > before
    del one
    assert threads() <= before
    with admin(security) as other:
        assert other.client is not None
        assert threads() > before
    assert threads() <= before
    other.close()
