"""Clusters that more than one module of the integration tests wants, started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kmigrate.sandbox.jars import ensure_spark_kafka_jars
from kmigrate.sandbox.java import find_java
from kmigrate.spark.session import spark_session
from tests.integration.secure_world import SecurePair, secure_pair


@pytest.fixture(scope="session")
def pair() -> Iterator[SecurePair]:
    """A secure source and target (`secure_world`)."""
    yield from secure_pair()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests that look at a check itself; the command line always starts its own."""
    with spark_session(jars=ensure_spark_kafka_jars(), java_home=find_java().home) as session:
        yield session
