"""The settings of one router, as a frozen value built at the composition root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kmigrate.model.listener_access import OPEN_ACCESS, ListenerAccess

__all__ = ["RouterSettings"]


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """A router's name, listeners and limits.

    With `node_port_base` n, target broker b listens on n + b. With 0, broker b listens on `port` + 1 + b if that port
    is free, so that clients find a restarted router at the same addresses; with `port` 0, too, on any free port. If an
    id exceeds the ports, brokers are counted through their sorted ids (`process.ports`). With `node_ports`, each target
    broker has the port of that table.
    """

    name: str = "router"
    host: str = "127.0.0.1"
    port: int = 0
    node_port_base: int = 0
    node_ports: Mapping[int, int] = field(default_factory=dict)
    """Ports of all target brokers by node id; empty: the ports are counted."""
    fallback_ports: int = 0
    """First of a hundred ports for the listeners kept for clients of other routers; 0: `port` + 100. If `port` is 0 or
    all hundred are taken: any free port."""
    shares_ports: bool = False
    """True if other processes of this host listen on the same ports; then no listener may move to another port."""
    advertised_host: str = ""
    """Host that clients are told to connect to; empty: `host`."""
    node_id_offset: int = 1_000_000
    """Difference between a router's node id and the target's, so that clients mix up no connections (D1)."""
    hold_limit_s: float = 5.0
    """Longest time a request is held at a fence; never more than 5 s or a quarter of its own timeout (B6)."""
    group_hold_s: float = 1.0
    """Time for which a request of a held group waits before the client is told to retry (code 14)."""
    join_hold_s: float = 20.0
    """Longest wait of a JoinGroup of a held group; sarama waits 30 s for any answer, and the target's rebalance follows
    the wait."""
    max_frame: int = 128 * 1024 * 1024
    max_connections: int = 10_000
    max_per_address: int = 0
    """Maximum connections of one host; 0 for any number."""
    max_before_login: int = 1_000
    """Maximum connections in the handshake or before the login, beside the `max_connections` (`limits`)."""
    max_buffered: int = 1 << 30
    """Maximum bytes kept for all clients together (`limits`)."""
    read_ahead: int = 128 << 20
    """Maximum bytes of answers read ahead for all clients together (`read_ahead`); below 8 MiB none are."""
    max_idle_s: float = 600.0
    """Time that a connection may be idle, the same as brokers allow (`connections.max.idle.ms`)."""
    max_pending: int = 100
    """Maximum requests of a client connection that wait for an answer before reading pauses."""
    max_pending_bytes: int = 64 * 1024 * 1024
    presence_interval_ms: int = 500
    access: ListenerAccess = OPEN_ACCESS
    read_access: Callable[[], ListenerAccess] | None = None
    """Reads the table of clients again, and raises an error if the table is invalid; None without a table."""
    max_login_frame: int = 512 * 1024
    """Longest request before a login is accepted: Kafka's own limit (`sasl.server.max.receive.size`)."""
    login_s: float = 20.0
    """Time in which a client must log in."""
    leave_per_s: float = 10.0
    """Number of connections per second that are closed once the links are finished."""
    drain_s: float = 3.0
    """Time for which `close` waits for answers in flight."""

    replaces: str | None = None
    """The registered instance that this router may replace, '' for none; None for any instance."""

    stood_still_s: float = 10.0
    """Length of a pause of the process after which clients get no source answers from that pause; by then other
    processes may have declared the process dead."""

    @property
    def told_host(self) -> str:
        return self.advertised_host or self.host
