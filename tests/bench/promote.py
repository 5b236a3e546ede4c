"""Promotes and rollbacks in turn under live traffic: the pause of producers, and a verdict on every record.

    python -m tests.bench.promote [--rounds 20] [--rate 2000] [--partitions 12]

Two clusters, a mirror, a controller and two routers. Idempotent producers of two families and transactional producers
write one topic, and two groups read the topic at the target. Each round promotes the topic and rolls the promote back.
The clients write their own histories. At the end the sandbox's checker, which shares no code with kmigrate's engines,
judges the histories against a last read of the target. A last read of the source must show the same records at the same
offsets.

`pause_ms` is the longest time from send to acknowledgement of each producer and partition that overlaps a fence, for
all promotes and all rollbacks. `forced_aborts` counts transactions that a producer had to abort: at most one for each
transactional producer and flip after the first promote. The bench writes build/bench/promote.json; figures that miss
their limits (`LIMITS`) are named there, and at the end, with exit code 1. A run with other sizes writes
promote-part.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console

from kmigrate.sandbox.checker import check
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, Family, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.final_read import FinalRecord, read_topic
from kmigrate.sandbox.history import ABORTED, Event, Slot, read_history
from kmigrate.sandbox.pauses import Percentiles, Timeline, Window, percentiles
from tests.bench.limits import at_most, conclude
from tests.integration.migration import Migration, fresh_migration, wait_until

_TOPIC, _GROUPS = "orders", ("billing", "analytics")
_WARM_S = 90.0
"""Seconds of traffic before the first flip: a broker that was just started spends a core on compiling its code."""
_BETWEEN_S = 1.0
"""Seconds of traffic between a flip and the next step."""
_ORDINARY_S = 10.0
"""Seconds of traffic that tell how long an ordinary acknowledgement takes."""
_PRODUCERS = 4
_IN_A_ROW = 8
"""Number of records to a partition before the next partition's turn: the idempotent producers' records of a tick."""
_IN_TRANSACTIONS = 0.2
"""Part of the records that transactional producers write."""
_MS = 1_000_000

LIMITS = (
    at_most("lost", 0),
    at_most("duplicated", 0),
    at_most("reordered", 0),
    at_most("other_anomalies", 0),
    at_most("offsets_that_differ", 0),
    at_most("forced_aborts_per_flip", 1),
    at_most("pause_ms.p50", 25),
    at_most("pause_ms.p99", 100),
)
"""The requirements: nothing lost, doubled or reordered, and a short pause, on two cores that carry everything."""

say = Console(stderr=True, highlight=False).print


def clients(rate: float) -> list[ClientSpec]:
    """Return the specs of the producers and of two groups with two members each."""
    families: tuple[Family, Family] = ("librdkafka", "aiokafka")
    plain, transactional = rate * (1 - _IN_TRANSACTIONS) / _PRODUCERS, rate * _IN_TRANSACTIONS / 2
    specs: list[ClientSpec] = [
        ProducerSpec(f"p-{number}", families[number % 2], _TOPIC, plain, in_a_row=_IN_A_ROW)
        for number in range(_PRODUCERS)
    ]
    specs += [TransactionalSpec(f"t-{number}", _TOPIC, transactional, in_a_row=_IN_A_ROW) for number in range(2)]
    for group in _GROUPS:
        specs += [ConsumerSpec(f"{group}-{number}", "librdkafka", group, (_TOPIC,)) for number in range(2)]
    return specs


def prepared(run: Migration, rate: float, partitions: int) -> None:
    """Mirror the topic and its groups, and let all clients move to the routers."""
    run.make_topic(_TOPIC, partitions)
    for group in _GROUPS:
        run.make_group(group, _TOPIC)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "controller", "router-one", "router-two")
    run.does("topic", "mirror", _TOPIC)
    run.does("group", "mirror", *_GROUPS)
    traffic = run.run_clients(clients(rate))
    run.writers_go_on(50)
    traffic.roll("all", run.routers)
    run.writers_go_on(50)
    for group in _GROUPS:
        run.does("group", "promote", group, "--yes")
    run.consumers_go_on()
    time.sleep(_WARM_S)


def flips(run: Migration, rounds: int) -> Iterator[tuple[str, Window]]:
    """Promote the topic and roll the promote back, and yield the windows from fence to flip."""
    for number in range(1, rounds + 1):
        for verb in ("promote", "rollback"):
            time.sleep(_BETWEEN_S)
            wait_until(lambda: _may_flip(run), 60, "the copy to catch up in the present direction")
            run.does(verb, _TOPIC, *(("--way-back",) if verb == "promote" else ()), "--yes")
            record = run.topic_record(_TOPIC)
            flipped_ms = record["promoted_ms"] if verb == "promote" else record["rolled_back_ms"]
            yield verb, Window(record["fenced_ms"] * _MS, (flipped_ms + 1) * _MS)
            say(f"  {number:>2}. {verb}: {flipped_ms - record['fenced_ms']} ms from fence to flip")


def _may_flip(run: Migration) -> bool:
    """Return whether the mirror copies the topic in the present direction, with the producer id of the new era."""
    record = run.topic_record(_TOPIC)
    way_back = record["way_back"]
    if record["phase"] == "promoted":
        return bool(way_back and way_back["copy"])
    return record["phase"] == "mirroring" and bool(record["copy"] or not record["resumed"])


def pause_of(timeline: Timeline, windows: Iterable[Window], partitions: int) -> Percentiles:
    """Return the pauses of all producers and partitions over all windows."""
    slots: list[Slot] = [(_TOPIC, partition) for partition in range(partitions)]
    return percentiles(
        wait for window in windows for slot in slots for wait in timeline.producer_pauses(window, slot).values()
    )


def differing(source: Iterable[FinalRecord], target: Iterable[FinalRecord]) -> int:
    """Return the number of places at which the clusters hold different records, or the same at other offsets."""

    def in_order(records: Iterable[FinalRecord]) -> list[FinalRecord]:
        return sorted(records, key=lambda each: (each.partition, each.offset))

    return sum(one != other for one, other in zip_longest(in_order(source), in_order(target)))


def forced_aborts(events: Iterable[Event]) -> tuple[Counter[str], int]:
    """Return the transactions that each producer had to abort, and the number of errors of all such transactions."""
    aborts, errors = Counter[str](), 0
    for event in events:
        if event.txn >= 0 and event.type == "fail" and event.error != ABORTED:
            errors += 1
            aborts[event.process] += event.f == "txn"
    return aborts, errors


def measure(run: Migration, rounds: int, rate: float, partitions: int) -> dict[str, Any]:
    prepared(run, rate, partitions)
    warm = time.time_ns()
    time.sleep(_ORDINARY_S)
    windows: dict[str, list[Window]] = {"promote": [], "rollback": []}
    for verb, window in flips(run, rounds):
        windows[verb].append(window)
    run.consumers_go_on()
    assert run.traffic is not None
    run.traffic.stop()
    history = run.folder / "history.jsonl"
    run.traffic.write_history(history)
    timeline = Timeline()
    verdict = check(
        timeline.observing(read_history(history)), read_topic(run.target.bootstrap, _TOPIC), topics=(_TOPIC,)
    )
    ends = wait_until(lambda: _equal_ends(run), 30, "the copy to the other cluster to reach the end of the log")
    aborts, errors = forced_aborts(read_history(history))
    named = {name: finding.count for name, finding in verdict.named.items() if name != "group_rereads"}
    named["client_errors"] = named.get("client_errors", 0) - errors
    lost, doubled, moved = (named.pop(name, 0) for name in ("lost", "duplicated", "reordered"))
    everything = [window for found in windows.values() for window in found]
    return {
        "rounds": rounds,
        "records": verdict.acked,
        "lost": lost,
        "duplicated": doubled,
        "reordered": moved,
        "other_anomalies": sum(named.values()),
        "forced_aborts": dict(aborts),
        "forced_aborts_per_flip": max(aborts.values(), default=0) / (2 * rounds - 1),
        "examples": {name: list(finding.examples) for name, finding in verdict.named.items()},
        "offsets_identical": verdict.offsets_identical,
        "offsets_that_differ": differing(
            read_topic(run.source.bootstrap, _TOPIC), read_topic(run.target.bootstrap, _TOPIC)
        )
        + (not verdict.offsets_identical),
        "log_ends": ends,
        "pause_ms": pause_of(timeline, everything, partitions).as_json(),
        "promote_pause_ms": pause_of(timeline, windows["promote"], partitions).as_json(),
        "rollback_pause_ms": pause_of(timeline, windows["rollback"], partitions).as_json(),
        "ack_ms": timeline.baseline_ack_ms(everything[0].start, warm).as_json(),
    }


def _equal_ends(run: Migration) -> dict[str, int] | None:
    """Return the log ends by partition once they are the same on both clusters."""
    topic = run.topic_status(_TOPIC)
    ends = {str(each["partition"]): each["source_end"] for each in topic["partitions"]}
    same = all(each["source_end"] == each["target_end"] for each in topic["partitions"])
    return ends if same else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=2000.0, help="records a second of all producers")
    parser.add_argument("--partitions", type=int, default=12)
    given = parser.parse_args()
    whole = (given.rounds, given.rate, given.partitions) == (20, 2000.0, 12)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kmigrate-promote-") as folder, fresh_migration(Path(folder)) as run:
        found = measure(run, given.rounds, given.rate, given.partitions)
    found["seconds"] = round(time.monotonic() - began)
    return conclude("promote", found, LIMITS, say, whole=whole)


if __name__ == "__main__":
    raise SystemExit(main())
