"""A migration while a follower of the source stands still, on clusters of three brokers."""

from __future__ import annotations

import time
from collections.abc import Callable

from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec
from tests.integration.migration import Migration, assert_clean


def test_a_slow_follower_hides_nothing_from_the_barrier(
    migration3: Migration, unique_name: Callable[[str], str]
) -> None:
    """RF 2, a stopped follower: acks=1 writes are acknowledged above the high watermark (V1) and must not be lost."""
    run, ledger, group = migration3, unique_name("ledger"), unique_name("audit-trail")
    # Without idempotence librdkafka keeps the order over retries only with a single request in flight.
    ordered = {"max.in.flight": 1}
    run.make_topic(ledger, 3, 2, config={"min.insync.replicas": "1"})
    run.make_group(group, ledger)
    run.run_clients(
        [
            ProducerSpec("one", "librdkafka", ledger, 75.0, acks="1", idempotent=False, settings=ordered),
            ProducerSpec("all", "librdkafka", ledger, 75.0),
            ConsumerSpec("reader", "librdkafka", group, (ledger,)),
        ]
    )
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", ledger)
    run.does("group", "mirror", group)
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    run.traffic.roll("consumers", run.routers)
    run.does("group", "promote", group, "--yes")
    time.sleep(1.5)  # By then a writer at the source is no longer a straggler.

    def resume_after(seconds: float) -> None:
        time.sleep(seconds)
        run.source.resume(3)

    run.source.pause(3)
    try:
        run.again("promote", ledger, "--yes", during=lambda: resume_after(1.3))
    finally:
        run.source.resume(3)
    run.writers_go_on(100)
    (told,) = [t for t in run.does("status")["topics"] if t["topic"] == ledger]
    assert told["phase"] == "promoted"
    assert_clean(run, ledger)
