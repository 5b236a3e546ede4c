"""Declarations of a router's metrics, each with the function that reads the value. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kmigrate.observe.registry import Kind, Metric, Registry, Sample, Value
from kmigrate.protocol.api import API_NAMES
from kmigrate.router.shared.limits import Ended
from kmigrate.router.shared.read_ahead import Fate
from kmigrate.router.shared.state import SharedState

__all__ = ["METRICS", "show_router"]

_Found = Iterable[tuple[tuple[str, ...], Value]]
_Row = tuple[Metric, Callable[[SharedState], _Found]]


def _row(name: str, kind: Kind, about: str, read: Callable[[SharedState], _Found], *labels: str) -> _Row:
    return Metric(f"kmigrate_router_{name}", kind, about, ("router", *labels)), read


_ROWS: tuple[_Row, ...] = (
    _row(
        "requests_total",
        Kind.COUNTER,
        "Requests of clients, by API.",
        lambda shared: [((API_NAMES[key],), count) for key, count in shared.requests.items()],
        "api",
    ),
    _row(
        "answer_seconds",
        Kind.HISTOGRAM,
        "Time from a request's arrival to its answer, by API; a Fetch may wait for records as long as its client asks.",
        lambda shared: shared.served.latencies(),
        "api",
    ),
    _row(
        "errors_total",
        Kind.COUNTER,
        "Errors in answers to clients, by API and Kafka's name of the error; of Produce and Fetch, partitions.",
        lambda shared: shared.served.errors(),
        "api",
        "error",
    ),
    _row(
        "held_requests_total",
        Kind.COUNTER,
        "Requests that had to wait before the router carried them out, by API.",
        lambda shared: shared.served.holds(),
        "api",
    ),
    _row(
        "held_seconds_total",
        Kind.COUNTER,
        "Seconds for which these requests waited, by API.",
        lambda shared: shared.served.held_seconds(),
        "api",
    ),
    _row(
        "kept_out_requests_total",
        Kind.COUNTER,
        "Requests that the router does not take; each ended the connection of its client, and status names the client.",
        lambda shared: [((), shared.kept_out.requests)],
    ),
    _row(
        "forwarded_batches_total",
        Kind.COUNTER,
        "Batches that went to a source.",
        lambda shared: [((), shared.forwards.total)],
    ),
    _row(
        "forwarded_bytes_total",
        Kind.COUNTER,
        "Bytes of the Produce requests that they went in.",
        lambda shared: [((), shared.forwards.bytes)],
    ),
    _row(
        "forwards_in_flight",
        Kind.GAUGE,
        "Batches whose fate is not known yet, on their way to a source, or to the target for a topic with a way back; "
        "and transactions open at a source.",
        lambda shared: [
            ((route.link, topic), shared.forwards.in_flight.get(route.key, 0))
            for topic, route in shared.table.topics.items()
        ],
        "link",
        "topic",
    ),
    _row(
        "open_transactions",
        Kind.GAUGE,
        "Clients' transactions that are open at a source.",
        lambda shared: [
            ((link,), sum(each == link for each, _ in shared.open_at_source.entries)) for link in shared.table.mirroring
        ],
        "link",
    ),
    _row(
        "withheld_topics",
        Kind.GAUGE,
        "Topics that a group's members here are assigned and must not read, so that nobody does; status names them.",
        lambda shared: [
            ((route.link, group), len(shared.followers.withheld_topics(group, shared.ids)))
            for group, route in shared.table.followed.items()
        ],
        "link",
        "group",
    ),
    _row(
        "refused_commits_total",
        Kind.COUNTER,
        "Commits of groups that follow that were refused: they went back, and their client was not told the position.",
        lambda shared: [((), shared.pending_positions.refused)],
    ),
    _row(
        "waiting_connections",
        Kind.GAUGE,
        "Connections whose next request waits, at a fence or for an answer about its producer.",
        lambda shared: [((), len(shared.waiting))],
    ),
    _row(
        "buffered_bytes",
        Kind.GAUGE,
        "Memory kept for clients: half requests, requests and answers that wait, answers that are not read.",
        lambda shared: [((), shared.limits.buffered)],
    ),
    _row(
        "read_ahead_answers_total",
        Kind.COUNTER,
        "Answers that were asked for before their clients did: used by them, or dropped.",
        lambda shared: [((fate.value,), shared.room_ahead.fates[fate]) for fate in Fate],
        "fate",
    ),
    _row(
        "failed_logins_total",
        Kind.COUNTER,
        "Refused logins of clients: by SASL mechanism, by certificate (not in the table of clients), or other.",
        lambda shared: [((by,), count) for by, count in shared.failed_logins.items()],
        "by",
    ),
    _row(
        "clients_without_credential",
        Kind.GAUGE,
        "Clients whose requests are refused: the router cannot log in to the source for them. status names them.",
        lambda shared: [((link,), shared.missing_credentials.counts().get(link, 0)) for link in shared.table.mirroring],
        "link",
    ),
    _row(
        "certificate_expires_timestamp_seconds",
        Kind.GAUGE,
        "Time at which the listeners' certificate expires, in seconds since the epoch.",
        lambda shared: [((), at) for at in (shared.certificate_expires_at(),) if at],
    ),
    _row(
        "ended_connections_total",
        Kind.COUNTER,
        "Connections that were closed for a limit, by which.",
        lambda shared: [((reason.value,), shared.limits.ended[reason]) for reason in Ended],
        "limit",
    ),
    _row(
        "refused_own_topic_requests_total",
        Kind.COUNTER,
        "Requests of clients that named kmigrate's own topics and were refused, by API.",
        lambda shared: [((API_NAMES[key],), count) for key, count in shared.own_refused.items() if count],
        "api",
    ),
    _row(
        "log_problem",
        Kind.GAUGE,
        "1 while the router cannot read the state log and goes on with its last routing table, 0 else.",
        lambda shared: [((), int(bool(shared.log_problem)))],
    ),
    _row(
        "hold_seconds",
        Kind.GAUGE,
        "Longest time that a Produce request was held at the topic's last fence.",
        lambda shared: [
            ((route.link, topic, str(partition)), held / 1000)
            for topic, route in shared.table.topics.items()
            for partition, held in shared.forwards.holds_ms().get(route.key, {}).items()
        ],
        "link",
        "topic",
        "partition",
    ),
)
_CONNECTIONS = Metric("kmigrate_router_connections", Kind.GAUGE, "Connections of clients.", ("router",))

_TABLE_EPOCH = Metric(
    "kmigrate_router_table_epoch",
    Kind.GAUGE,
    "Offset of the newest state record that this router acts on, in the state log of the target with this cluster id.",
    ("router", "target"),
)

METRICS: tuple[Metric, ...] = (_CONNECTIONS, _TABLE_EPOCH, *(metric for metric, _ in _ROWS))


def show_router(
    registry: Registry, shared: SharedState, connections: Callable[[], int], target: Callable[[], str]
) -> None:
    """Add a router to the registry of the process; `target` returns the cluster id of the target."""
    name = shared.settings.name
    registry.add(_TABLE_EPOCH, lambda: [((name, target()), shared.table.epoch)])
    registry.add(_CONNECTIONS, lambda: [((name,), connections())])
    for metric, read in _ROWS:
        registry.add(metric, _reader(name, shared, read))


def _reader(name: str, shared: SharedState, read: Callable[[SharedState], _Found]) -> Callable[[], Iterable[Sample]]:
    return lambda: [((name, *labels), value) for labels, value in sorted(read(shared))]
