"""The requirements of a benchmark: a table of figures and limits, judged when the figures are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.figures import save

__all__ = ["Limit", "at_least", "at_most", "conclude", "missed"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure by its place (`cases.1kB.cpu_ratio`) with a bound: a number, or the place of another figure."""

    figure: str
    bound: float | str
    lowest: bool
    """True if the bound is the least good value, False if it is the most."""

    def missed(self, found: Mapping[str, Any], *, whole: bool) -> str | None:
        """Return in words how the figure misses its bound, or None. A `whole` run has every figure."""
        value = _at(found, self.figure)
        bound = _at(found, self.bound) if isinstance(self.bound, str) else self.bound
        if value is None or bound is None:
            return f"{self.figure} was not measured" if whole else None
        if value >= bound if self.lowest else value <= bound:
            return None
        of = f" ({self.bound})" if isinstance(self.bound, str) else ""
        return f"{self.figure} is {value:g}, and {'at least' if self.lowest else 'at most'} {bound:g}{of} is asked"


def at_least(figure: str, bound: float | str) -> Limit:
    return Limit(figure, bound, lowest=True)


def at_most(figure: str, bound: float | str) -> Limit:
    return Limit(figure, bound, lowest=False)


def missed(found: Mapping[str, Any], limits: Iterable[Limit], *, whole: bool) -> list[str]:
    return [words for limit in limits if (words := limit.missed(found, whole=whole)) is not None]


def _at(found: Mapping[str, Any], place: str) -> float | None:
    value: Any = found
    for key in place.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return float(value)


def conclude(
    name: str, found: Mapping[str, Any], limits: Iterable[Limit], say: Callable[[str], None], *, whole: bool
) -> int:
    """Save the figures and their misses, report them, and return the exit code: 1 if a limit is missed.

    A partial run of a benchmark does not replace the figures of a whole run.
    """
    misses = missed(found, limits, whole=whole)
    path = save(f"bench/{name}" if whole else f"bench/{name}-part", {**found, "missed": misses})
    for words in misses:
        say(f"  missed: {words}")
    say(f"{path}: {found['seconds']} s")
    return 1 if misses else 0
