"""The table of the mirror's reactions to every possible error. Pure.

    REFRESH     the metadata is out of date: refresh the metadata, then ask again
    LOOK        the topic or the log has changed: ask for both, then decide (`Found`)
    READ_TAIL   another writer of our producer id was faster: the target's tail shows where to go on (append rule)
    SETTLE      the outcome is unknown: wait until the tail has come to rest, then read the tail
    BACK_OFF    nothing is wrong with the data: try again, ever more slowly, until a person mends the cause
    STOP        no action is safe: this partition stands still under the row's name

Only the partition that was answered is held back, by `pause_s` between its own tries. A code that no row names stops
the partition, because an unknown error must not be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from kmigrate.model.stops import WITHOUT_BATCH, Remedy
from kmigrate.protocol.codes import Code, row

__all__ = ["REACTIONS", "Action", "Asked", "Found", "Reaction", "pause_s", "reaction_to", "remedy_of"]


class Asked(StrEnum):
    """The request that was answered."""

    FETCH = "fetch"
    """Fetch and ListOffsets requests to the source's leader."""
    PRODUCE = "produce"
    """Produce requests to the target's leader."""
    MARKERS = "markers"
    """WriteTxnMarkers requests or empty transactions on the target."""


class Found(StrEnum):
    """A finding without an error code, seen in a response or by a look after a response."""

    NO_ANSWER = "no answer"
    RANGE_DELETED = "log start beyond our position"
    CUT = "log end or epoch before our position"
    NO_BATCH = "no batch up to the log's end"
    RECREATED = "another topic id"
    GONE = "no such topic"
    LEADERLESS = "no leader"
    THROTTLED = "throttle time"
    GAP = "gap beyond the hole limit"
    BAD_BATCH = "batch that does not fit its CRC"
    OTHER_OFFSET = "acknowledged at another offset"
    OTHER_CONTENT = "other records than the source's"
    OTHER_WRITER = "a batch of another producer"
    NOT_ALIGNED = "log end before the start"


class Action(Enum):
    REFRESH = "refresh"
    LOOK = "look"
    READ_TAIL = "read the tail"
    SETTLE = "settle, then read the tail"
    BACK_OFF = "back off"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Reaction:
    """A row: the action, the name that a person sees, and the remedy once the partition has stopped."""

    action: Action
    ref: str = ""
    remedy: Remedy = Remedy.AGAIN

    def cause(self, code: int) -> str:
        """Return the name under which a retry is counted: the row's name, else the broker's."""
        return self.ref or row(code).name

    def text(self, code: int, what: str) -> str:
        """Return the row's name, the event and the broker's error, as status reports them."""
        name = f"{row(code).name} ({code})"
        return f"{self.ref}: {what} with {name}" if self.ref else name


_REFRESH, _TAIL, _SETTLE = Reaction(Action.REFRESH), Reaction(Action.READ_TAIL), Reaction(Action.SETTLE)
_F, _P, _M = Asked.FETCH, Asked.PRODUCE, Asked.MARKERS

Key = tuple[Asked, Code | Found]


def _rows(asked: Asked, reaction: Reaction, *seen: Code | Found) -> dict[Key, Reaction]:
    return dict.fromkeys(((asked, each) for each in seen), reaction)


REACTIONS: Mapping[Key, Reaction] = {
    # Reading the source.
    **_rows(
        _F, _REFRESH,
        Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER, Code.REPLICA_NOT_AVAILABLE, Code.KAFKA_STORAGE_ERROR,
        Code.LISTENER_NOT_FOUND, Code.FENCED_LEADER_EPOCH, Code.UNKNOWN_LEADER_EPOCH,
    ),
    **_rows(
        _F, Reaction(Action.LOOK),
        Code.OFFSET_OUT_OF_RANGE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID,
    ),
    **_rows(
        _F, Reaction(Action.BACK_OFF, "source-error"),
        Code.UNKNOWN_SERVER_ERROR, Code.CORRUPT_MESSAGE, Code.REQUEST_TIMED_OUT, Code.NETWORK_EXCEPTION,
        Code.OFFSET_NOT_AVAILABLE,
    ),
    (_F, Code.TOPIC_AUTHORIZATION_FAILED): Reaction(Action.BACK_OFF, "source-denied"),
    (_F, Found.GONE): Reaction(Action.BACK_OFF, "source-topic-gone"),
    (_F, Found.LEADERLESS): Reaction(Action.BACK_OFF, "source-leaderless"),
    (_F, Found.THROTTLED): Reaction(Action.BACK_OFF, "source-throttled"),
    (_F, Found.NO_BATCH): Reaction(Action.BACK_OFF, WITHOUT_BATCH),
    (_F, Found.RANGE_DELETED): Reaction(Action.STOP, "source-range-lost", Remedy.ACCEPT_LOSS),
    (_F, Found.CUT): Reaction(Action.STOP, "source-truncated", Remedy.ACCEPT_LOSS),
    (_F, Found.RECREATED): Reaction(Action.STOP, "topic-recreated", Remedy.ANEW),
    (_F, Found.GAP): Reaction(Action.STOP, "large-gap"),
    (_F, Found.BAD_BATCH): Reaction(Action.STOP, "corrupt-source-batch"),
    # Writing to the target.
    **_rows(
        _P, _REFRESH,
        Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE, Code.LISTENER_NOT_FOUND, Code.FENCED_LEADER_EPOCH, Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID,
    ),
    **_rows(
        _P, _TAIL,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.DUPLICATE_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID,
        Code.INVALID_PRODUCER_EPOCH,
    ),
    **_rows(
        _P, _SETTLE,
        Code.REQUEST_TIMED_OUT, Code.NETWORK_EXCEPTION, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ),
    (_P, Found.NO_ANSWER): _SETTLE,
    (_P, Code.UNKNOWN_SERVER_ERROR): Reaction(Action.SETTLE, "target-error"),
    (_P, Code.NOT_ENOUGH_REPLICAS): Reaction(Action.BACK_OFF, "target-few-replicas"),
    (_P, Code.KAFKA_STORAGE_ERROR): Reaction(Action.BACK_OFF, "target-storage"),
    (_P, Code.LOG_DIR_NOT_FOUND): Reaction(Action.BACK_OFF, "target-storage"),
    (_P, Code.THROTTLING_QUOTA_EXCEEDED): Reaction(Action.BACK_OFF, "target-throttled"),
    (_P, Found.THROTTLED): Reaction(Action.BACK_OFF, "target-throttled"),
    (_P, Code.TOPIC_AUTHORIZATION_FAILED): Reaction(Action.BACK_OFF, "target-denied"),
    (_P, Code.CLUSTER_AUTHORIZATION_FAILED): Reaction(Action.BACK_OFF, "target-denied"),
    (_P, Found.GONE): Reaction(Action.BACK_OFF, "target-topic-gone"),
    (_P, Found.LEADERLESS): Reaction(Action.BACK_OFF, "target-leaderless"),
    **_rows(
        _P, Reaction(Action.STOP, "target-refused"),
        Code.CORRUPT_MESSAGE, Code.MESSAGE_TOO_LARGE, Code.INVALID_TOPIC_EXCEPTION, Code.RECORD_LIST_TOO_LARGE,
        Code.INVALID_TIMESTAMP, Code.INVALID_CONFIG, Code.INVALID_REQUEST, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        Code.POLICY_VIOLATION, Code.PRODUCER_FENCED, Code.UNSUPPORTED_COMPRESSION_TYPE,
        Code.INVALID_RECORD,
    ),
    (_P, Found.CUT): Reaction(Action.READ_TAIL, "target-truncated"),
    (_P, Found.OTHER_OFFSET): Reaction(Action.STOP, "diverged", Remedy.ANEW),
    (_P, Found.OTHER_CONTENT): Reaction(Action.STOP, "diverged", Remedy.ANEW),
    (_P, Found.OTHER_WRITER): Reaction(Action.STOP, "foreign-writer", Remedy.ANEW),
    (_P, Found.RECREATED): Reaction(Action.STOP, "topic-recreated", Remedy.ANEW),
    (_P, Found.NOT_ALIGNED): Reaction(Action.STOP, "not-aligned", Remedy.ANEW),
    # Filling holes on the target. Markers are not compare-and-set (W5): whatever the answer, the log end decides.
    **_rows(
        _M, _SETTLE,
        Code.UNKNOWN_SERVER_ERROR, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT, Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Code.CONCURRENT_TRANSACTIONS,
    ),
    (_M, Code.NOT_ENOUGH_REPLICAS): Reaction(Action.SETTLE, "target-few-replicas"),
    (_M, Code.KAFKA_STORAGE_ERROR): Reaction(Action.SETTLE, "target-storage"),
    **_rows(
        _M, Reaction(Action.SETTLE, "target-denied"),
        Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    **_rows(
        _M, _TAIL,
        Code.TRANSACTION_COORDINATOR_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED,
        Code.INVALID_PRODUCER_ID_MAPPING,
    ),
    (_M, Found.NO_ANSWER): _SETTLE,
}  # fmt: skip

_UNKNOWN: Mapping[Asked, Reaction] = {
    Asked.FETCH: Reaction(Action.STOP, "source-refused"),
    Asked.PRODUCE: Reaction(Action.STOP, "target-refused"),
    Asked.MARKERS: Reaction(Action.STOP, "hole-refused"),
}
_REMEDIES = {reaction.ref: reaction.remedy for reaction in REACTIONS.values() if reaction.action is Action.STOP}


def reaction_to(asked: Asked, seen: int | Found) -> Reaction:
    """Return the row for an error code or a finding."""
    if not isinstance(seen, Found):
        try:
            seen = Code(seen)
        except ValueError:
            return _UNKNOWN[asked]
    return REACTIONS.get((asked, seen), _UNKNOWN[asked])


def remedy_of(problem: str) -> Remedy:
    """Return the remedy for a problem (`ref: what`); no row: an unreadable batch (`records`), safe to read again."""
    return _REMEDIES.get(problem.partition(":")[0], Remedy.AGAIN)


def pause_s(tries: int, *, named: bool) -> float:
    """Return the pause of a partition after `tries` failed tries; a named trouble waits for a person, so longer."""
    first, most = (0.25, 5.0) if named else (0.05, 1.0)
    return float(min(first * 2 ** min(tries - 1, 16), most)) if tries > 0 else 0.0
