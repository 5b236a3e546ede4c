"""The same seed gives the same estate, another seed another estate, and the rate stays the rate."""

from __future__ import annotations

import pytest

from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.seeded import seeded_clients, seeded_preload


def test_a_seed_is_repeatable_and_seeds_differ() -> None:
    assert seeded_clients(3, 1500) == seeded_clients(3, 1500)
    assert seeded_preload(3, 1000, 1) == seeded_preload(3, 1000, 1)
    assert len({repr(seeded_clients(seed, 1500)) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(5))
def test_the_shares_of_the_rate_add_up(seed: int) -> None:
    rates = [s.rate for s in seeded_clients(seed, 1500) if isinstance(s, ProducerSpec)]
    assert sum(rates) == pytest.approx(1500)
    assert seeded_preload(seed, 1000, 1).log_start >= 1_000_000
