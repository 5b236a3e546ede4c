"""TLS of our connections to brokers and of our listeners: the contexts, and a name for each kind of failure.

A certificate renewed on the disk serves the next connection: changed files are read again, for a listener by
`ServerTls.renew`. Unusable files, such as half-written files, change nothing.

asyncio's own TLS servers report a connection only after its handshake, which may take long. So TLS listeners are plain
(`Arrivals`): a new connection is judged by its host before the handshake costs anything, and then goes to TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from kmigrate.errors import AuthenticationFailed, UsageError
from kmigrate.model.listener_access import ListenerTls
from kmigrate.model.security import Tls
from kmigrate.net.certificate_expiry import expiry_of
from kmigrate.net.stamps import Stamps, stamps_of
from kmigrate.net.tasks import TaskOwner

__all__ = ["Arrivals", "ServerTls", "client_context", "named_failure", "subject_of"]

_log = logging.getLogger("kmigrate.net")
_MOST_CONTEXTS = 1024
_EXPIRED, _NOT_YET = 10, 9
_HOST, _ADDRESS = 62, 64
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
"""OpenSSL's verify codes (`man verify`)."""


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return a context for TLS ≥ 1.2 that verifies the broker's certificate, and with `check_host` its host name."""
    stamps, known = stamps_of((tls.ca_file, tls.cert_file, tls.key_file)), _contexts.get(tls)
    if known is not None and known.stamps == stamps:
        return known.context
    try:
        made = _client_context(tls)
    except UsageError as broken:
        if known is None:
            raise
        known.stamps = stamps  # logged once; only a further change can help
        _log.warning("what was in use before stays so: %s", broken.what)
        return known.context
    if known is not None:
        _log.warning("read again: %s", ", ".join(file for file in (tls.ca_file, tls.cert_file, tls.key_file) if file))
    elif len(_contexts) >= _MOST_CONTEXTS:
        del _contexts[next(iter(_contexts))]
    _contexts[tls] = _Made(stamps, made)
    return made


@dataclass(slots=True)
class _Made:
    """A context with the stamps of its files, or the stamps of newer files that are unusable."""

    stamps: Stamps
    context: ssl.SSLContext


_contexts: dict[Tls, _Made] = {}
"""A router opens thousands of connections with the same settings."""


def _client_context(tls: Tls) -> ssl.SSLContext:
    reading = tls.ca_file
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = tls.check_host
        if tls.cert_file:
            reading = f"{tls.cert_file} with {tls.key_file or tls.cert_file}"
            # Always a callable: otherwise OpenSSL would ask a terminal for the password of an encrypted key.
            context.load_cert_chain(tls.cert_file, tls.key_file or None, lambda: tls.key_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = error.strerror if isinstance(error, OSError) and error.strerror else "unusable"
        raise UsageError(
            "tls-file-unusable",
            f"{reading or 'the authorities of this machine'}: {why}",
            still_true="nothing was contacted or changed",
            next_step="expected: PEM files in ssl.ca.location, ssl.certificate.location and ssl.key.location, "
            "and the key's password in ssl.key.password where it has one",
        ) from error
    return context


class ServerTls:
    """TLS of a listener: its certificate, and the authority of client certificates if they are demanded."""

    def __init__(self, tls: ListenerTls) -> None:
        self._tls = tls
        self._stamps: Stamps = ()
        self.expires_at = 0.0
        """Time at which the newest certificate expires, in seconds since the epoch; 0 where unknown."""
        self._current = self._blank()
        """The context of the newest files; never loaded again, because a context keeps old authorities."""
        self.renew()

    def _blank(self) -> ssl.SSLContext:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._tls.client_ca:
            made.verify_mode = ssl.CERT_REQUIRED
            made.num_tickets = 0  # TLS 1.3
            made.options |= ssl.OP_NO_TICKET  # TLS 1.2
        return made

    def for_connection(self) -> ssl.SSLContext:
        """Return the context for the handshake of a connection, with the newest files.

        A resumed session shows no certificate, so for two hours an expired certificate or a removed authority would
        count. OpenSSL keeps ticket keys and TLS 1.2 sessions in the context, and Python cannot switch these off. So a
        listener that asks for certificates has a context per connection, in which no client finds a session.
        """
        if not self._tls.client_ca:
            return self._current
        made, current = self._blank(), self._current

        def begun(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = current

        made.sni_callback = begun  # called for each handshake, with a host name or without
        return made

    def renew(self) -> bool:
        """Read the files for all later connections if the files have changed; return whether they have changed."""
        tls = self._tls
        stamps = stamps_of((tls.cert_file, tls.key_file, tls.client_ca))
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        made = self._blank()
        self._load(made)
        self.expires_at = expiry_of(made, tls.cert_file)
        self._current = made
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        tls = self._tls
        reading = f"{tls.cert_file} with {tls.key_file}"
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, lambda: tls.key_password)
            if tls.client_ca:
                reading = tls.client_ca
                context.load_verify_locations(tls.client_ca)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "unusable"
            raise UsageError(
                "tls-file-unusable",
                f"{reading}: {why}",
                still_true="connections that are open stay so",
                next_step="expected: PEM files in certificate, key and client_ca of [router], and the key's password "
                "in key_password where it has one",
            ) from error


_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "userId": "UID",
}


def subject_of(certificate: Mapping[str, Any]) -> str:
    """Return a certificate's subject in Kafka's notation: the last part first, `CN=orders,O=Example` (RFC 2253)."""
    parts = (
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in pairs)
        for pairs in reversed(certificate.get("subject", ()))
    )
    return ",".join(parts)


def _escaped(value: str) -> str:
    """Escape a value as in RFC 2253, so that no value can look like a further part."""
    plain = "".join(f"\\{c}" if c in ',+"\\<>;' else c for c in value)
    return f"\\{plain}" if plain.startswith(("#", " ")) else plain


def named_failure(error: BaseException | None, address: str) -> AuthenticationFailed | None:
    """Return the cause of a TLS error, on the broker's side or ours; None for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrusted(error, address)
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return None  # a connection may close for many reasons
    reason = error.reason or ""
    if "ALERT" in reason:
        return _failed(
            "tls-refused",
            f"{address} refused our side of TLS: {_plain(reason)}",
            "check ssl.certificate.location and ssl.key.location: the listener may demand a certificate, or not "
            "accept this one (expired, or signed by an authority it does not know)",
        )
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return _failed(
            "tls-not-spoken", f"{address} does not answer with TLS", "check security.protocol and the listener's port"
        )
    return _failed("tls-failed", f"{address}: TLS failed: {_plain(reason) or error}", "check the listener's TLS")


def _distrusted(error: ssl.SSLCertVerificationError, address: str) -> AuthenticationFailed:
    code, why = error.verify_code, error.verify_message
    if code in (_EXPIRED, _NOT_YET):
        what = "has expired" if code == _EXPIRED else "is not valid yet"
        return _failed(
            "certificate-expired",
            f"the certificate of {address} {what}",
            "renew it on the broker, or check this machine's clock",
        )
    if code in (_HOST, _ADDRESS):
        return _failed(
            "wrong-host-name",
            f"the certificate of {address} is for another host: {why}",
            'use the name that it holds, or, where the network is trusted, "ssl.endpoint.identification.algorithm" '
            '= "none"',
        )
    if code in _UNKNOWN_AUTHORITY:
        return _failed(
            "unknown-authority",
            f"the certificate of {address} is signed by an authority that is not trusted here: {why}",
            "give the authority's certificate (PEM) in ssl.ca.location",
        )
    return _failed("certificate-refused", f"the certificate of {address} is refused: {why}", "see the broker's TLS")


def _failed(ref: str, what: str, next_step: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        ref, what, still_true="no credentials were sent; nothing was read or changed", next_step=next_step
    )


def _plain(reason: str) -> str:
    return reason.lower().replace("_", " ")


_CLOSE_NOTIFY_S = 3.0
"""Seconds that a closed connection waits for the peer's close_notify: a silent peer must not keep its socket."""


class Arrivals:
    """All connections of a process's listeners that are in their handshake."""

    def __init__(
        self,
        tls: ServerTls,
        handshake_s: float,
        arrives: Callable[[str, Callable[[], None]], bool],
        over: Callable[[Callable[[], None]], None],
        fails: Callable[[str], None],
    ) -> None:
        self._tls = tls
        self._handshake_s = handshake_s
        self._arrives = arrives
        """Returns whether a host's connection may go on; gets the function that ends the connection's handshake."""
        self._over = over
        """Called when a handshake is over, with the function that ends that handshake."""
        self._fails = fails
        """Called with the host of each handshake that failed."""
        self._tasks = TaskOwner(lambda error: _log.error("a handshake: %r", error))

    def protocol(self, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection; `make` makes the protocol behind the handshake."""
        return _Arrival(lambda raw, host: self._take(raw, host, make))

    def _take(self, raw: socket.socket, host: str, make: Callable[[], asyncio.BaseProtocol]) -> None:
        task: asyncio.Task[None]

        def end() -> None:
            # Not before the task's first step: a task cancelled there does nothing at all, and keeps its socket.
            asyncio.get_running_loop().call_soon(task.cancel)

        if self._arrives(host, end):
            task = self._tasks.start(self._shake_hands(raw, host, make, end))
        else:
            raw.close()

    async def _shake_hands(
        self, raw: socket.socket, host: str, make: Callable[[], asyncio.BaseProtocol], end: Callable[[], None]
    ) -> None:
        made = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make,
                raw,
                ssl=self._tls.for_connection(),
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=_CLOSE_NOTIFY_S,
            )
            made = True
        except OSError:
            pass  # nobody hears of that connection
        finally:
            self._over(end)
            if not made:
                self._fails(host)

    async def close(self) -> None:
        """End all handshakes."""
        await self._tasks.close()


class _Arrival(asyncio.Protocol):
    """A connection that reads nothing, because its socket is taken away at once."""

    def __init__(self, take: Callable[[socket.socket, str], None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        came = cast("asyncio.Transport", transport)
        name, shown = came.get_extra_info("peername"), came.get_extra_info("socket")
        try:
            raw = socket.socket(fileno=os.dup(shown.fileno()))
        except OSError:  # no file descriptor is left, or the connection is gone
            came.abort()
            return
        came.abort()
        raw.setblocking(False)
        self._take(raw, name[0] if name else "?")
