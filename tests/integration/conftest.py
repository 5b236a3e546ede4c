"""Clusters that more than one module of the integration tests wants, started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.secure_world import SecurePair, secure_pair


@pytest.fixture(scope="session")
def pair() -> Iterator[SecurePair]:
    """A secure source and target (`secure_world`)."""
    yield from secure_pair()
