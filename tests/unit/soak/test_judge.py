"""A judge that finds nothing is only worth something if it would have found it."""

from __future__ import annotations

import pytest

from tests.soak.judge import Record, Verdict, compare
from tests.soak.writers import Ledger


def log(*numbers: int, first: int = 0) -> dict[int, list[Record]]:
    """One partition whose records carry these numbers, told to be what their numbers are."""
    return {0: [Record(first + at, "w", number, number) for at, number in enumerate(numbers)]}


def ledger(*acked: int, aborted: tuple[int, ...] = ()) -> dict[str, Ledger]:
    made = Ledger()
    made.acked[0] = {number: at for at, number in enumerate(acked)}
    made.aborted[0] = set(aborted)
    return {"w": made}


def test_two_equal_logs_that_hold_what_was_promised_are_clean() -> None:
    verdict = compare(log(0, 1, 2), log(0, 1, 2), ledger(0, 1, 2))
    assert verdict.clean
    assert verdict.offsets_identical


@pytest.mark.parametrize(
    ("found", "promised", "anomalies"),
    [
        (log(0, 1), ledger(0, 1, 2), Verdict(lost=1, misplaced=1)),
        (log(0, 1, 2, 2), ledger(0, 1, 2), Verdict(duplicated=1, misplaced=1)),
        (log(0, 2, 1), ledger(0, 1, 2), Verdict(reordered=1, altered=2)),
        (log(0, 1, 2, first=1), ledger(0, 1, 2), Verdict(altered=2, misplaced=2)),
        (log(0, 1, 2), ledger(0, 1, aborted=(2,)), Verdict(resurrected=1)),
        (log(0, 1, 2), ledger(0, 1, 2, 3), Verdict(lost=1, lost_by_source=1)),
        (log(0, 1, 2), ledger(0, 2, 1), Verdict(lost_by_source=2)),
        ({0: [*log(0, 1)[0], Record(2, "w", 2, 99)]}, ledger(0, 1, 2), Verdict(altered=1)),
    ],
    ids=["lost", "twice", "order", "shifted", "aborted", "promise-broken", "other-offset", "bytes"],
)
def test_every_anomaly_is_found_and_named(
    found: dict[int, list[Record]], promised: dict[str, Ledger], anomalies: Verdict
) -> None:
    verdict = compare(log(0, 1, 2), found, promised)
    assert verdict == anomalies
    assert not verdict.clean


def test_what_the_source_doubled_by_itself_is_no_anomaly_but_once_more_is() -> None:
    doubled = log(0, 1, 0, 1, 2)
    promised = {"w": Ledger()}
    promised["w"].acked[0] = {0: 2, 1: 3, 2: 4}
    assert compare(doubled, doubled, promised).clean
    assert compare(doubled, log(0, 1, 0, 1, 2, 1), promised) == Verdict(duplicated=1, misplaced=1)
    assert compare(doubled, log(0, 1, 1, 0, 2), promised) == Verdict(reordered=1, altered=2)


@pytest.mark.parametrize(("in_doubt", "torn"), [([0, 1], 0), ([7, 8], 0), ([1, 7], 1)], ids=["all", "none", "half"])
def test_a_transaction_of_unknown_outcome_is_there_as_a_whole_or_torn(in_doubt: list[int], torn: int) -> None:
    promised = ledger(0, 2)
    promised["w"].acked[0] = {0: 0, 2: 2}
    promised["w"].in_doubt.append([(0, number) for number in in_doubt])
    assert compare(log(0, 1, 2), log(0, 1, 2), promised) == Verdict(torn=torn)


def test_verdicts_add_up() -> None:
    assert Verdict(lost=1, altered=2) + Verdict(lost=2, bounds_differ=1) == Verdict(lost=3, altered=2, bounds_differ=1)
    assert not Verdict(bounds_differ=1).offsets_identical
