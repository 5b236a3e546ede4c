"""How one router is run, as one frozen value built at the composition root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kmigrate.model.door import OPEN_DOOR, Door

__all__ = ["RouterSettings"]


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """A router's name, listeners and bounds.

    With `node_port_base` n, target broker b listens on n + b. With 0 it listens on `port` + 1 + b where that is free,
    so that a router that is started again is found where it was; with `port` 0, too, on any free port.
    """

    name: str = "router"
    host: str = "127.0.0.1"
    port: int = 0
    node_port_base: int = 0
    stand_in_ports: int = 0
    """The first of a hundred ports for the listeners that are kept for clients of other routers; 0: `port` + 100,
    or any free one with `port` 0 or where all are taken."""
    shares_ports: bool = False
    """Whether other processes of this host listen on the same ports: then none may be any other one."""
    advertised_host: str = ""
    """What clients are told to connect to; empty: `host`."""
    node_id_offset: int = 1_000_000
    """Router node id = target node id + this, so no socket of a client can be taken for another's (D1)."""
    hold_limit_s: float = 5.0
    """Longest time a request is held at a fence; never more than 5 s or a quarter of its own timeout (B6)."""
    group_hold_s: float = 1.0
    """How long a request of a held group waits before it is told to come again (code 14)."""
    max_frame: int = 128 * 1024 * 1024
    max_connections: int = 10_000
    max_per_address: int = 0
    """Connections of one host; 0 for any number."""
    max_before_login: int = 1_000
    """Connections in their handshakes, or before their login, beside the `max_connections` (`limits`)."""
    max_buffered: int = 1 << 30
    """Bytes that are kept for all clients together (`limits`)."""
    read_ahead: int = 128 << 20
    """Bytes of answers that are asked ahead of all clients together (`read_ahead`); less than 8 MiB: none is."""
    max_idle_s: float = 600.0
    """How long a connection may be without a request, as long as brokers let it (`connections.max.idle.ms`)."""
    max_pending: int = 100
    """Requests of one client connection that may wait for an answer before reading from it pauses."""
    max_pending_bytes: int = 64 * 1024 * 1024
    presence_interval_ms: int = 500
    door: Door = OPEN_DOOR
    read_door: Callable[[], Door] | None = None
    """Reads the clients' table again; raises what is wrong with it. None where there is no table."""
    max_login_frame: int = 512 * 1024
    """Longest request before a login is accepted: Kafka's own bound (`sasl.server.max.receive.size`)."""
    login_s: float = 20.0
    """How long a client may take until it is logged in."""
    leave_per_s: float = 10.0
    """How many connections a second are ended once the links are finished."""
    drain_s: float = 3.0
    """How long `close` waits for answers that are under way."""

    replaces: str | None = None
    """The registered instance that this router may replace, '' for none; None for any instance."""

    stood_still_s: float = 10.0
    """A process that did nothing for so long tells no client of what a source answered meanwhile: it may have been
    taken for dead."""

    @property
    def told_host(self) -> str:
        return self.advertised_host or self.host
