"""The files that `verify` writes beside its answer; unwritable places are refused before anything is read."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from kmigrate.errors import Failed, UsageError
from kmigrate.model.records import LinkRecord
from kmigrate.parity.report import ParityReport
from kmigrate.report.check import Check
from kmigrate.report.parity_junit import parity_junit
from kmigrate.report.parity_page import parity_page

__all__ = ["ReportFiles", "not_written"]


@dataclass(frozen=True)
class ReportFiles:
    """The place of each kind of report, None for an unwanted kind; Spark itself writes the Parquet files."""

    html: Path | None = None
    junit: Path | None = None
    parquet: Path | None = None

    def check(self) -> None:
        """Raise UsageError where a file could not be written at the end."""
        for flag, place in (("--html", self.html), ("--junit", self.junit), ("--parquet", self.parquet)):
            if place is None:
                continue
            if not place.absolute().parent.is_dir():
                raise _unwritable(flag, place, "its folder does not exist", "make the folder first")
            if flag != "--parquet" and place.is_dir():
                raise _unwritable(flag, place, "it is a folder", "name a file in it")
            if flag == "--parquet" and place.exists():
                raise _unwritable(flag, place, "it exists already", "name a new folder: findings are never mixed")

    def write(self, link: LinkRecord, report: ParityReport, now_ms: int) -> dict[str, str]:
        """Write the pages, and return the place of every report by kind."""
        at = dt.datetime.fromtimestamp(now_ms // 1000, dt.UTC).isoformat().replace("+00:00", "Z")
        check = Check(link.name, link.source.name, link.target.name, at)
        pages = ((self.html, parity_page), (self.junit, parity_junit))
        for place, made in pages:
            if place is None:
                continue
            try:
                place.write_text(made(check, report), encoding="utf-8")
            except OSError as error:
                raise not_written(place, error.strerror or str(error), report) from error
        kinds = (("html", self.html), ("junit", self.junit), ("parquet", self.parquet))
        return {kind: str(place) for kind, place in kinds if place is not None}


def not_written(place: Path, why: str, report: ParityReport) -> Failed:
    """Return the error for an unwritten report, with the verdict, because the check may have taken hours."""
    verdict = "both sides are equal" if report.equal else f"both sides differ: {report.mismatches} mismatches"
    return Failed(
        "report-not-written",
        f"{place} cannot be written: {why}",
        still_true=f"the check came to its end, and {verdict}",
        next_step="make room or give the right to write there, then repeat it (--full where all of it was equal)",
    )


def _unwritable(flag: str, place: Path, why: str, next_step: str) -> UsageError:
    return UsageError(
        "report-not-writable", f"{flag} {place}: {why}", still_true="nothing was read or changed", next_step=next_step
    )
