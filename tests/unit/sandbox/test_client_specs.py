"""The specification of a client reaches the client's process and comes back unchanged."""

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
    spec_from_json,
)


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
