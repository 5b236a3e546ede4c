"""An estate from a seed: each seed gives other log starts, other shares of the producers and other transactions."""

from __future__ import annotations

import random
from dataclasses import replace

from kmigrate.sandbox.client_specs import ClientSpec, ProducerSpec, TransactionalSpec, demo_clients, family_clients
from kmigrate.sandbox.preload import Preload

__all__ = ["seeded_clients", "seeded_preload"]

_PARTITIONS = 6


def seeded_preload(seed: int, records: int, replicas: int) -> Preload:
    """Return a preload. The seed decides which partitions of `orders` start beyond 1,000,000, and where."""
    chance = random.Random(seed)
    return Preload(
        records=records,
        log_start=1_000_000 + chance.randrange(200_000),
        filled_partitions=tuple(sorted(chance.sample(range(_PARTITIONS), chance.randint(2, 3)))),
        replicas=replicas,
    )


def seeded_clients(seed: int, rate: float, *, families: bool = False) -> tuple[ClientSpec, ...]:
    """Return the demo's clients with uneven shares of the same total rate and another transaction size."""
    chance = random.Random(seed)
    specs = list(family_clients(rate) if families else demo_clients(rate))
    orders = [n for n, s in enumerate(specs) if isinstance(s, ProducerSpec) and s.topic == "orders"]
    weights = [chance.uniform(0.5, 1.5) for _ in orders]
    whole = sum(spec.rate for spec in (specs[n] for n in orders) if isinstance(spec, ProducerSpec))
    for n, weight in zip(orders, weights, strict=True):
        spec = specs[n]
        assert isinstance(spec, ProducerSpec)
        specs[n] = replace(spec, rate=whole * weight / sum(weights))
    for n, spec in enumerate(specs):
        if isinstance(spec, TransactionalSpec):
            specs[n] = replace(spec, records=chance.randint(5, 20))
    return tuple(specs)
