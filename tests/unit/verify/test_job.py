"""A check of ranges that retention cuts during the reading."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import Failed
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.parity.plan import TopicRange
from kmigrate.parity.report import ParityReport, nothing_read
from kmigrate.verify import compare
from kmigrate.verify.compare import SparkChoice, check, check_in_thread
from kmigrate.verify.job import Caller, Job, Selection

LINK = LinkRecord("blue", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)


class Retention:
    """A log with a beginning that moves on while the first checks read the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: Iterator[Failed | None]) -> None:
        self.compared: list[int] = []
        self.remembered: list[int] = []
        self._start = 0
        self._told = told
        monkeypatch.setattr(compare, "find_job", self._job)
        monkeypatch.setattr(compare, "_compare", self._compare)
        monkeypatch.setattr(compare, "remember", self._remember)

    async def _job(self, *_: object) -> Job:
        self._start += 10
        return Job(LINK, [], [TopicRange("t", 0, self._start, 100)], [])

    async def _remember(self, _: Caller, job: Job, __: ParityReport) -> None:
        self.remembered.append(job.ranges[0].start)

    def _compare(self, _: Caller, job: Job, *__: Any) -> ParityReport:
        self.compared.append(job.ranges[0].start)
        error = next(self._told)
        if error is not None:
            raise error
        return nothing_read(job.ranges)


def run_check(promoting: bool) -> None:
    """Run a check by `verify` or before a promote."""
    caller: Any = SimpleNamespace(say=lambda _: None, note=lambda _: None)
    selection = Selection(["t"], "blue", 1.0)
    if promoting:
        asyncio.run(check_in_thread(caller, selection))
    else:
        check(caller, selection, SparkChoice())


def gone() -> Failed:
    return Failed("parity-range-gone", "t-0 is to be compared from source offset 10, but that log now begins at 11")


@pytest.mark.parametrize("promoting", [False, True])
def test_ranges_that_retention_cut_are_read_again_from_where_the_logs_begin(
    promoting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Retention(monkeypatch, iter([gone(), gone(), None]))
    run_check(promoting)
    assert (seen.compared, seen.remembered) == ([10, 20, 30], [30])


@pytest.mark.parametrize("promoting", [False, True])
@pytest.mark.parametrize(
    ("errors", "tries"), [([gone()] * 9, 4), ([Failed("parity-read-failed", "no broker answers")], 1)]
)
def test_what_does_not_pass_is_told(
    errors: list[Failed], tries: int, promoting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Retention(monkeypatch, iter(errors))
    with pytest.raises(Failed, match=errors[0].ref):
        run_check(promoting)
    assert (len(seen.compared), seen.remembered) == (tries, [])
