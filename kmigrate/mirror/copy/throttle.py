"""A link's limit in bytes per second: a bucket that every reader of the link draws from after its reads. Pure.

The limit applies to reading, because that spares source, network and target. A response's size is known only
afterwards. So the bucket goes into debt, and no reader continues before the debt is paid. `most` keeps single responses
small enough for a smooth rate. Partitions in a promote do not wait, because their producers are held at the fence.
Their bytes are charged, but never so much that the others wait for longer than a second.
"""

from __future__ import annotations

__all__ = ["Throttle", "part_of_limit"]

_BURST_S = 0.25
_LEAST = 64 << 10
_EXEMPT_DEBT_S = 1.0


class Throttle:
    """A bucket with `rate` bytes per second; 0 is no limit. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.rate = 0
        self._level = 0.0
        self._at = 0.0

    def limit(self, rate: int, now: float) -> None:
        """Set a new rate from now on; debts of the old rate are forgotten."""
        if rate != self.rate:
            self.rate = rate
            self._level, self._at = rate * _BURST_S, now

    def _fill(self, now: float) -> None:
        self._level = min(self._level + (now - self._at) * self.rate, self.rate * _BURST_S)
        self._at = now

    def charge(self, size: int, now: float, *, exempt: bool = False) -> None:
        if self.rate:
            self._fill(now)
            least = min(self._level, -_EXEMPT_DEBT_S * self.rate)
            self._level = max(self._level - size, least) if exempt else self._level - size

    def wait_s(self, now: float) -> float:
        """Return the seconds until reading may continue."""
        if not self.rate:
            return 0.0
        self._fill(now)
        return max(0.0, -self._level / self.rate)

    def most(self, size: int) -> int:
        """Return the maximum number of bytes of a response; `size` is the maximum without a limit."""
        return min(size, max(_LEAST, int(self.rate * _BURST_S))) if self.rate else size


def part_of_limit(throttle: int, ours: int, all_partitions: int) -> int:
    """Return this process's part of the link's limit, by partitions: all processes together keep the limit."""
    return throttle and max(1, throttle * ours // max(1, all_partitions))
