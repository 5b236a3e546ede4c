"""`HOST:PORT` of a listener; the default host is loopback, because a listener's pages describe the estate."""

from __future__ import annotations

from kmigrate.model.digits import whole_number

__all__ = ["listen_address"]

_LOOPBACK = "127.0.0.1"


def listen_address(text: str) -> tuple[str, int] | None:
    """Return host and port of `host:port`, `[v6]:port`, `:port` or `port`; None for any other text."""
    host, _, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare and bare == host:
        return None  # an IPv6 address without brackets: the start of the port is ambiguous
    number = whole_number(port)
    if number is None or number > 65535 or any(c.isspace() for c in bare):
        return None
    return bare or _LOOPBACK, number
