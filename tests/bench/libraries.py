"""Libraries against our own code for the same work: the figures of docs/decisions/0015-libraries-that-are-not-used.md.

    pip install prometheus_client msgspec cattrs google-re2    # into an environment of your own
    python -m tests.bench.libraries

A library that is not installed is left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from timeit import repeat
from types import SimpleNamespace
from typing import Any

from kmigrate.errors import KmigrateError
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.record_json import decode_part, decode_record, encode_record
from kmigrate.observe.registry import Kind, Metric, Registry, exposition

PARTITIONS = 4_000
LABELS = ("link", "topic", "partition")
SAMPLES = [(("link", f"topic-{n // 10}", str(n % 10)), float(n)) for n in range(PARTITIONS)]
NAMES = [f"gauge_{n}" for n in range(12)]
TOPICS = [f"orders-{n}.{'x' * (n % 40)}" for n in range(1_000)]


def took(work: Callable[[], object], number: int = 1) -> str:
    """Return the shortest of five times of a call."""
    seconds = min(repeat(work, number=number, repeat=5)) / number
    return f"{seconds * 1e9:,.0f} ns" if seconds < 1e-5 else f"{seconds * 1e3:,.1f} ms"


def prometheus() -> Iterator[str]:
    client: Any = import_module("prometheus_client")
    core: Any = import_module("prometheus_client.core")
    counter = client.Counter("a", "a", ["t"], registry=None).labels("x")
    own = SimpleNamespace(n=0)

    def add() -> None:
        own.n += 100

    yield f"a count: own {took(add, 100_000)}, Counter.inc {took(lambda: counter.inc(100), 100_000)}"

    class Collector:
        def collect(self) -> Iterable[Any]:
            for name in NAMES:
                family = core.GaugeMetricFamily(name, "text", labels=LABELS)
                for labels, value in SAMPLES:
                    family.add_metric(labels, value)
                yield family

    registry, theirs = Registry(), client.CollectorRegistry()
    for name in NAMES:
        registry.add(Metric(name, Kind.GAUGE, "text", LABELS), lambda: SAMPLES)
    theirs.register(Collector())
    scrapes = took(lambda: "".join(exposition(registry))), took(lambda: client.generate_latest(theirs))
    yield f"a scrape of {PARTITIONS * len(NAMES):,} samples: own {scrapes[0]}, generate_latest {scrapes[1]}"


def presence() -> MirrorPresence:
    parts = {n: PartitionProgress(10**6 + n, 10**6 + n, 10**6) for n in range(10)}
    return MirrorPresence("m", "link", 5, True, 500, {f"topic-{n}": parts for n in range(PARTITIONS // 10)})


def record_json() -> Iterator[str]:
    found = presence()
    text = json.dumps(encode_record(found))
    own = took(lambda: json.dumps(encode_record(found))), took(lambda: decode_record(json.loads(text)))
    yield f"a presence of {PARTITIONS:,} partitions: own {own[0]} to write, {own[1]} to read, {len(text):,} bytes"
    strange = [f'{{"position": {value}}}' for value in ("1e0", "true", '"1"', str(1 << 63))]
    taken = reads(lambda t: decode_part(PartitionProgress, json.loads(t)), strange)
    yield f"    values that are no offset and are read as one: {taken}"
    msgspec: Any = import_module("msgspec")
    long = msgspec.json.encode(found)
    times = took(lambda: msgspec.json.encode(found)), took(lambda: msgspec.json.decode(long, type=MirrorPresence))
    taken = reads(lambda t: msgspec.json.decode(t, type=PartitionProgress), strange)
    yield f"    msgspec {times[0]} to write, {times[1]} to read, {len(long):,} bytes; {taken}"
    converter: Any = import_module("cattrs.preconf.json").make_converter()
    longer = converter.dumps(found)
    times = took(lambda: converter.dumps(found)), took(lambda: converter.loads(longer, MirrorPresence))
    taken = reads(lambda t: converter.loads(t, PartitionProgress), strange)
    yield f"    cattrs {times[0]} to write, {times[1]} to read, {len(longer):,} bytes; {taken}"


def reads(read: Callable[[str], object], texts: Iterable[str]) -> list[str]:
    """Return the texts that are read without an error."""
    taken = []
    for text in texts:
        try:
            read(text)
        except (KmigrateError, TypeError, ValueError):
            continue
        taken.append(text)
    return taken


def expressions() -> Iterator[str]:
    re2: Any = import_module("re2")
    for expression in ("orders-.*", "([a-z]+-)*x", "(?!internal-).*"):
        times = took(partial(matched, re.compile(expression).fullmatch))
        try:
            theirs = re2.compile(expression)
        except re2.error as error:
            yield f"{expression}: re {times}, re2 {error}"
        else:
            yield f"{expression}: re {times}, re2 {took(partial(matched, theirs.fullmatch))}"


def matched(match: Callable[[str], object]) -> list[object]:
    return [match(topic) for topic in TOPICS]


def main() -> int:
    for measure in (prometheus, record_json, expressions):
        try:
            for line in measure():
                print(line)
        except ModuleNotFoundError as error:
            print(f"left out: {error.name} is not installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
