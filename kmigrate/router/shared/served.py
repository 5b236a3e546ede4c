"""One router's account of its clients' requests: time until the answer, time held, and errors, by API. Pure.

An answer costs an addition and a counter. The figures of the last minute are differences: every 30 s the counters are
copied, and the copy before the last is subtracted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from kio.schema.errors import ErrorCode

from kmigrate.model.presences import ServedApi
from kmigrate.observe.distributions import HistogramValue
from kmigrate.protocol.api import API_NAMES

__all__ = ["BOUNDS_S", "ServedRequests"]

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the counted latencies, in seconds."""
_WINDOW_S = 30.0
_MOST_TOLD = 8
"""Maximum number of APIs in a report: a report goes to the presence log twice a second."""
_MOST_ERRORS_TOLD = 5


@dataclass(slots=True)
class _Api:
    """The account of one API."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    """Answers by latency, up to each of `BOUNDS_S` and beyond."""
    seconds: float = 0.0
    held: int = 0
    """Number of requests that had to wait before the router carried them out."""
    held_s: float = 0.0
    errors: Counter[int] = field(default_factory=Counter)

    def copy(self) -> _Api:
        return _Api(list(self.counts), self.seconds, self.held, self.held_s, Counter(self.errors))

    def since(self, before: _Api) -> _Api:
        """Return what has come since a copy was made."""
        counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        held, held_s = self.held - before.held, self.held_s - before.held_s
        return _Api(counts, self.seconds - before.seconds, held, held_s, self.errors - before.errors)

    def quantile(self, share: float) -> float:
        """Return the bound that this share of the answers did not exceed, in seconds; infinity beyond the last."""
        left = share * sum(self.counts)
        for bound, count in zip(BOUNDS_S, self.counts, strict=False):
            left -= count
            if left <= 0:
                return bound
        return float("inf")


@dataclass(slots=True)
class ServedRequests:
    """The account of all requests."""

    _apis: dict[int, _Api] = field(default_factory=dict)
    _copies: list[dict[int, _Api]] = field(default_factory=lambda: [{}, {}])
    """Copies of the account, the newest last."""
    _copied: float = 0.0
    """Time of the newest copy."""

    def answered(self, api_key: int, seconds: float) -> None:
        """Count an answer."""
        try:
            api = self._apis[api_key]
        except KeyError:
            api = self._apis[api_key] = _Api()
        api.counts[bisect_left(BOUNDS_S, seconds)] += 1
        api.seconds += seconds

    def held(self, api_key: int, seconds: float) -> None:
        """Count a request that had to wait before the router carried the request out."""
        api = self._apis.setdefault(api_key, _Api())
        api.held += 1
        api.held_s += seconds

    def failed(self, api_key: int, codes: Iterable[int]) -> None:
        """Count the error codes of an answer."""
        self._apis.setdefault(api_key, _Api()).errors.update(codes)

    # since the start

    def latencies(self) -> list[tuple[tuple[str], HistogramValue]]:
        return [((API_NAMES[key],), _histogram(api)) for key, api in self._apis.items() if any(api.counts)]

    def holds(self) -> list[tuple[tuple[str], int]]:
        return [((API_NAMES[key],), api.held) for key, api in self._apis.items() if api.held]

    def held_seconds(self) -> list[tuple[tuple[str], float]]:
        return [((API_NAMES[key],), api.held_s) for key, api in self._apis.items() if api.held]

    def errors(self) -> list[tuple[tuple[str, str], int]]:
        return [
            ((API_NAMES[key], _name(code)), count)
            for key, api in self._apis.items()
            for code, count in api.errors.items()
        ]

    # lately

    def lately(self, now: float) -> tuple[ServedApi, ...]:
        """Return the figures of the last 30 to 60 s: APIs with errors or held requests first, then the busiest."""
        if now - self._copied >= _WINDOW_S:
            self._copied = now
            self._copies = [self._copies[1], {key: api.copy() for key, api in self._apis.items()}]
        older = self._copies[0]
        recent = {key: api.since(older.get(key, _Api())) for key, api in self._apis.items()}
        told = [_told(key, api) for key, api in recent.items() if any(api.counts) or api.errors or api.held]
        return tuple(sorted(told, key=lambda each: (not each.errors, not each.held, -each.answers))[:_MOST_TOLD])


def _name(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return str(ErrorCode(cast("Any", code)).name).upper()
    except ValueError:
        return f"ERROR_{code}"


def _histogram(api: _Api) -> HistogramValue:
    seen, buckets = 0, []
    for bound, count in zip(BOUNDS_S, api.counts, strict=False):
        seen += count
        buckets.append((bound, seen))
    return HistogramValue(tuple(buckets), api.seconds, sum(api.counts))


def _told(key: int, api: _Api) -> ServedApi:
    slowest = api.quantile(0.99)
    return ServedApi(
        API_NAMES[key],
        sum(api.counts),
        slowest if slowest != float("inf") else -1.0,
        api.held,
        round(api.held_s, 3),
        {_name(code): count for code, count in api.errors.most_common(_MOST_ERRORS_TOLD)},
    )
