"""The specification of a client reaches the client's process and comes back unchanged.

The same seed gives the same clients and preload, another seed gives others, and the rate stays the rate.
"""

from __future__ import annotations

import pytest

from kmigrate.errors import UsageError
from kmigrate.sandbox.client_specs import (
    ClientSpec,
    ConsumerSpec,
    Launch,
    ProducerSpec,
    TransactionalSpec,
    demo_clients,
    seeded_clients,
    spec_from_json,
)
from kmigrate.sandbox.preload import seeded_preload


@pytest.mark.parametrize("spec", demo_clients(), ids=lambda spec: spec.name)
def test_a_launch_survives_its_file(spec: ClientSpec) -> None:
    launch = Launch(spec, "127.0.0.1:1", 2, 40, "x.jsonl", (17, "12345"))
    assert Launch.from_json(launch.to_json()) == launch


def test_an_unknown_role_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'juggler'"):
        spec_from_json({"role": "juggler"})


def test_the_demo_has_two_families_two_groups_of_three_and_one_transactional_writer() -> None:
    specs = demo_clients(1500)
    producers = [spec for spec in specs if isinstance(spec, ProducerSpec)]
    consumers = [spec for spec in specs if isinstance(spec, ConsumerSpec)]
    assert {spec.family for spec in producers} == {"librdkafka", "aiokafka"}
    assert all(spec.idempotent and spec.acks == "all" for spec in producers)
    assert sum(spec.rate for spec in producers) == pytest.approx(1500)
    assert sorted(spec.group for spec in consumers) == ["analytics"] * 3 + ["billing"] * 3
    assert sum(isinstance(spec, TransactionalSpec) for spec in specs) == 1
    assert len({spec.name for spec in specs}) == len(specs)


def test_a_seed_is_repeatable_and_seeds_differ() -> None:
    assert seeded_clients(3, 1500) == seeded_clients(3, 1500)
    assert seeded_preload(3, 1000, 1) == seeded_preload(3, 1000, 1)
    assert len({repr(seeded_clients(seed, 1500)) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(5))
def test_the_shares_of_the_rate_add_up(seed: int) -> None:
    rates = [s.rate for s in seeded_clients(seed, 1500) if isinstance(s, ProducerSpec)]
    assert sum(rates) == pytest.approx(1500)
    assert seeded_preload(seed, 1000, 1).log_start >= 1_000_000
