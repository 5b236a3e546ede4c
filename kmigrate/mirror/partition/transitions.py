"""The transition table of a lane, the only way to change its state, and origin of docs/mirror.md's diagram. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

__all__ = ["TRANSITIONS", "LaneEvent", "LaneState", "next_state"]


class LaneState(Enum):
    LOST = "lost"
    """The position is unknown. Once nothing is in flight, the target's tail is read."""
    PRIMING = "priming"
    """A single batch may be in flight (C)."""
    PIPING = "piping"
    """Several batches may be in flight."""
    FILLING = "filling"
    """A hole is filled, and the next batch goes alone."""
    FILLING_PIPED = "filling_piped"
    """A hole is filled, and the batches go on as before (C)."""
    STOPPED = "stopped"
    """The lane stands still until a person resumes the partition."""


class LaneEvent(Enum):
    RECOVERED = "the target's tail was read"
    ACKNOWLEDGED = "a batch was acknowledged"
    RECONNECTED = "the connection is new"
    HOLE_BEGUN = "a hole is due"
    HOLE_FILLED = "the hole is filled"
    LOST = "an error, or an unknown outcome"
    STOPPED = "a problem that no retry can mend"


TRANSITIONS: Mapping[tuple[LaneState, LaneEvent], LaneState] = {
    (LaneState.LOST, LaneEvent.RECOVERED): LaneState.PRIMING,
    (LaneState.PRIMING, LaneEvent.ACKNOWLEDGED): LaneState.PIPING,
    (LaneState.PIPING, LaneEvent.RECONNECTED): LaneState.PRIMING,
    (LaneState.PRIMING, LaneEvent.HOLE_BEGUN): LaneState.FILLING,
    (LaneState.PIPING, LaneEvent.HOLE_BEGUN): LaneState.FILLING_PIPED,
    (LaneState.FILLING_PIPED, LaneEvent.RECONNECTED): LaneState.FILLING,
    (LaneState.FILLING, LaneEvent.HOLE_FILLED): LaneState.PRIMING,
    (LaneState.FILLING_PIPED, LaneEvent.HOLE_FILLED): LaneState.PIPING,
    **{(state, LaneEvent.LOST): LaneState.LOST for state in LaneState if state is not LaneState.STOPPED},
    **{(state, LaneEvent.STOPPED): LaneState.STOPPED for state in LaneState},
}


def next_state(state: LaneState, event: LaneEvent) -> LaneState:
    """Return the state after an event; an event without a row changes nothing."""
    return TRANSITIONS.get((state, event), state)
