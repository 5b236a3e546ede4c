"""What a planting says of its faults is what two lists of its records show."""

from __future__ import annotations

import pytest

from kmigrate.parity.plan import TopicRange
from kmigrate.parity.verdict import Anomaly, Drilled, Fingerprint, judge, settle
from tests.soak.planted import KINDS, Planting, Record, plant


def fingerprints(records: list[Record]) -> list[Fingerprint]:
    return [
        Fingerprint(at, hash(each), hash(each.key), hash(each.value), hash(each.headers), each.timestamp)
        for at, each in enumerate(records)
    ]


def named(planting: Planting) -> set[Anomaly]:
    sources = [fingerprints(list(planting.source(p))) for p in range(planting.partitions)]
    targets = [fingerprints([made for _, made in planting.target(p)]) for p in range(planting.partitions)]
    read = [
        Drilled.of(TopicRange("t", p, 0, len(source)), source, target)
        for p, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]
    anomalies, strays = judge(read)
    return set(anomalies + settle(strays, {}))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "timestamp type"])
def test_each_fault_is_told_at_its_places(kind: str) -> None:
    planting = plant(2, 2_000, [kind], seed=3)
    (allowed,) = planting.told("t")
    found = named(planting)
    assert len(found) == 1
    assert found <= allowed


@pytest.mark.parametrize("seed", range(5))
def test_all_faults_together_are_told_at_their_places(seed: int) -> None:
    kinds = [kind for kind in KINDS if kind != "timestamp type"]
    planting = plant(3, 2_000, kinds, seed)
    found = named(planting)
    assert [len(found & allowed) for allowed in planting.told("t")] == [1] * len(kinds)
    assert len(found) == len(kinds)


def test_without_faults_both_sides_are_given_the_same() -> None:
    planting = plant(1, 2_000, (), 0)
    assert list(planting.source(0)) == [made for _, made in planting.target(0)]
