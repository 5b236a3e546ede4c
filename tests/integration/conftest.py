"""Clusters that several modules of the integration tests need, started on first use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kmigrate.errors import Refused
from kmigrate.kafka_jars.jars import ensure_spark_kafka_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, keep_classes
from tests.conftest import Pair
from tests.integration.migration import Migration
from tests.integration.router_world import links_gone
from tests.integration.secure_world import SecurePair, secure_pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def _brokers_start_fast() -> None:
    """Some eighty brokers are started: each begins with the classes that a broker of its version has loaded before."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(keep_classes, (SOURCE_VERSION, TARGET_VERSION)))


@pytest.fixture
def migration3(clusters3: Pair, tmp_path: Path) -> Iterator[Migration]:
    """A migration on the clusters of three brokers.

    Six brokers are slow on a busy machine: a fence gets more time, and a mirror's presence may be stored late. The
    mirror finds no link of another test, also where that test has failed while brokers were dead.
    """
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 1.0\n[mirror]\nlease_s = 9.0\n"
    run = Migration(clusters3.source, clusters3.target, tmp_path / "run", settings)
    _forget_links(clusters3)
    try:
        yield run
    finally:
        run.stop()
    _forget_links(clusters3)


def _forget_links(pair: Pair) -> None:
    with suppress(Refused):  # Before the first test, and after a test that failed early, there is no state log.
        asyncio.run(links_gone(pair.target))


@pytest.fixture(scope="session")
def pair() -> Iterator[SecurePair]:
    """A secure source and target (`secure_world`)."""
    yield from secure_pair()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark for all tests that look at a check itself; the command line always starts a Spark of its own."""
    from kmigrate.spark.session import spark_session

    with spark_session(jars=ensure_spark_kafka_jars(), java_home=find_java().home) as session:
        yield session


@pytest.fixture(autouse=True)
def who_waits_for_what(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shortly before a test's timeout, print where each task stands."""
    marker = request.node.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else request.config.getini("timeout"))

    def say() -> None:
        # The tasks of every thread's loop; asyncio keeps them under a different name in each version.
        for task in [*getattr(asyncio.tasks, "_all_tasks", ()), *getattr(asyncio.tasks, "_scheduled_tasks", ())]:
            if not task.done():
                task.print_stack(limit=6)

    timer = threading.Timer(max(1.0, seconds - 3), say)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
