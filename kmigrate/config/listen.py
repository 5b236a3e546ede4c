"""`HOST:PORT` of something that listens: loopback where no host is given, because what listens tells of the estate."""

from __future__ import annotations

__all__ = ["listen_address"]

_LOOPBACK = "127.0.0.1"


def listen_address(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port`, `[v6]:port`, `:port` or `port`; None where it is none of them."""
    host, _, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare and bare == host:
        return None  # an IPv6 address without brackets: where does its port begin?
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535 or any(c.isspace() for c in bare):
        return None
    return bare or _LOOPBACK, int(port)
