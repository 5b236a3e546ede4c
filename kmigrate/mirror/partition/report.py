"""The report on a lane: its stop and its troubles, as status and the presence log show them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kmigrate.mirror.partition.reactions import Asked, remedy_of
from kmigrate.model.presences import PartitionProgress
from kmigrate.model.stops import PartitionStop

__all__ = ["LaneReport"]

_NO_RANGE = (-1, -1)


@dataclass(slots=True, eq=False)
class LaneReport:
    """The stop and the troubles of a lane; only the lane changes its report."""

    problem: str = ""
    lost_range: tuple[int, int] = _NO_RANGE
    """First and last source offset that the problem concerns."""
    recorded: bool = False
    """True once the state log holds this stop; when the log no longer does, a person has resumed the partition."""
    trouble: str = ""
    """The trouble that is being retried now; cleared by the next success."""
    target_loss: str = ""
    """The target's last loss of stored offsets; the text stays, because consumers there may have noticed."""
    metadata_trouble: dict[Asked, str] = field(default_factory=dict)
    """Trouble that the last metadata of each cluster has shown."""
    throttled: dict[Asked, str] = field(default_factory=dict)
    """Pauses that a broker asks for, because the quota is used up."""
    unserved: str = ""
    """The reason why the target's leader had no connection when a batch was due."""
    _last: tuple[dict[str, Any], PartitionProgress] | None = None

    def blocked_by(self, problem: str, lost: tuple[int, int] = _NO_RANGE) -> None:
        """Set the problem; '' if there is none."""
        self.problem, self.lost_range = problem, lost

    def stop_record(self, now_ms: int) -> PartitionStop:
        """Return this stop as the state log keeps it."""
        ref, _, what = self.problem.partition(": ")
        return PartitionStop(ref, what, remedy_of(self.problem), *self.lost_range, at_ms=now_ms)

    def progress(self, fields: dict[str, Any]) -> PartitionProgress:
        """Return these facts for the presence log; the same object as before while nothing changes."""
        if self._last is None or self._last[0] != fields:
            self._last = fields, PartitionProgress(**fields)
        return self._last[1]
