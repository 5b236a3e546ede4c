"""Clusters that more than one module of the integration tests wants, started when first asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.integration.secure_world import SecurePair, secure_pair


@pytest.fixture(scope="session")
def pair() -> Iterator[SecurePair]:
    """A secure source and target (`secure_world`)."""
    yield from secure_pair()


@pytest.fixture(autouse=True)
def who_waits_for_what(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shortly before a test is ended for taking too long, say where each of its tasks stands."""
    marker = request.node.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else request.config.getini("timeout"))

    def say() -> None:
        # Of every thread's loop, which asyncio keeps under a name of its own in each version.
        for task in [*getattr(asyncio.tasks, "_all_tasks", ()), *getattr(asyncio.tasks, "_scheduled_tasks", ())]:
            if not task.done():
                task.print_stack(limit=6)

    timer = threading.Timer(max(1.0, seconds - 3), say)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
