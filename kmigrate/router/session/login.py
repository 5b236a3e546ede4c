"""Handles a client's login: relays it to the target, or judges by the router's table (`model.listener_access`).

    arrived → ApiVersions, SaslHandshake, SaslAuthenticate, one at a time; anything else closes the connection
            → accepted → everything, until the session ends; the same requests renew the session (KIP-368)

Relayed messages are not changed in either direction. The router reads the name, and the password or token needed at the
source, and believes both only once the target has accepted them.

After SaslHandshake version 0, a client sends SASL messages without Kafka's headers. The router gives each such message
the header of a SaslAuthenticate request, and takes the answer's header off. A refusal has no words then: the
connection ends, as at brokers.
"""

from __future__ import annotations

import hmac
import secrets
from functools import lru_cache
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.model.listener_access import MECHANISMS, ListenerAccess
from kmigrate.model.security import Bearer, Login
from kmigrate.protocol.api import ApiKey, Message, blank, build_answer, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import SIZE, RequestHead
from kmigrate.protocol.sasl import MIN_ITERATIONS
from kmigrate.protocol.sasl_server import ScramKeys, ScramServer, bearer_token, plain_login, scram_name
from kmigrate.router.shared.conversation import Conversation, Future
from kmigrate.router.shared.state import Buffer, ClientLink, SharedState
from kmigrate.router.wire.apis import Treatment, treated

__all__ = ["ClientLogin", "LoginAnswer"]


_LOGIN = treated(Treatment.SASL)
_BEFORE_LOGIN = _LOGIN | {ApiKey.API_VERSIONS}
_WRAPPED_VERSION = 1
"""SaslAuthenticate version that stands for messages without headers; the first whose answer has a session lifetime."""
_HANDSHAKE_WITH_HEADERS = 1
"""First version of SaslHandshake after which messages have Kafka's headers."""
_VERSION = slice(6, 8)
"""Position of the version in a request."""
_SALT_SEED = secrets.token_bytes(32)
_A_MOMENT_S = 1.0
_REFUSAL_S = 0.1
"""Delay of a refusal, as at brokers (`connection.failed.authentication.delay.ms`): guessing takes time."""
_REFUSED = "Authentication failed: Invalid username or password"
"""Kafka's own sentence, which clients and people know."""


class LoginAnswer(NamedTuple):
    """The answer to a login request."""

    frame: Buffer | None
    """The answer's bytes; None for a refusal of a message without headers."""
    failure: str = ""
    """Reason why the connection is closed after the answer; '' where the connection goes on."""


class ClientLogin:
    """The login state of a client connection: what the client may send so far, and the client's identity."""

    def __init__(self, shared: SharedState, client: ClientLink) -> None:
        self._shared = shared
        self._client = client
        self.accepted = not shared.access.asks
        self.bare = False
        """True while the client's next frame is a SASL message without Kafka's header."""
        self._ends = float("inf")
        self._mechanism = ""
        self._claim: tuple[str | None, Login | Bearer | None] | None = None
        """Name and credential of the login under way; None before the login's first message."""
        self._scram: ScramServer | None = None
        self._mapped_as = ""
        self._delay: tuple[float, Future[None]] | None = None
        """Time until which a refusal waits, and the future that ends the wait."""

    @property
    def _access(self) -> ListenerAccess:
        """The present rules of access: a later message of a login may meet a newer table."""
        return self._shared.access

    def admit(self, head: RequestHead, *, alone: bool) -> None:
        """Refuse a request that may not come yet, or no more; `alone`: nothing of this client waits for an answer."""
        key = head.api_key
        if not self.accepted:
            if key not in _BEFORE_LOGIN:
                raise ProtocolViolation("not-logged-in", f"a client sent api {key} before it was logged in")
            if not alone:
                raise ProtocolViolation("not-logged-in", "a client did not wait for the answers of its login")
        elif key not in _LOGIN and self._client.now() > self._ends:
            raise ProtocolViolation("session-ended", "a client did not renew its session in time")

    @property
    def lasts(self) -> bool:
        """True if the client's session goes on for at least a moment."""
        return self._client.now() + _A_MOMENT_S < self._ends

    # messages without headers

    def wrapped(self, frame: bytearray, client_id: str) -> bytearray:
        """Return a SaslAuthenticate request with a message that has no header."""
        kind = entity(ApiKey.SASL_AUTHENTICATE, _WRAPPED_VERSION, "request")
        return bytearray(frame_request(blank(kind, auth_bytes=bytes(frame[SIZE.size :])), 0, client_id))

    def _unwrapped(self, head: RequestHead, answer: LoginAnswer) -> LoginAnswer:
        """Return an answer as the client expects the answer: without header if the client's message had none."""
        if not self.bare or answer.frame is None or head.api_key == ApiKey.SASL_HANDSHAKE:
            return answer
        said = read_answer(head, bytearray(answer.frame))
        if code_of(said.error_code):
            return LoginAnswer(None, answer.failure or "its login was refused")
        self.bare = not self.accepted
        return LoginAnswer(SIZE.pack(len(said.auth_bytes)) + bytes(said.auth_bytes))

    # relayed

    def begins_again(self, head: RequestHead) -> bool:
        """Return whether a request is the first request of a renewal that goes to the target."""
        return head.api_key == ApiKey.SASL_HANDSHAKE and self.accepted and self._access.asks and not self._access.mapped

    def relays(self, head: RequestHead, request: Message) -> bool:
        """Return whether a login request goes to the target; name and credential are read on the way."""
        if self._access.mapped or not self._access.asks:
            return False
        if head.api_key == ApiKey.SASL_HANDSHAKE:
            self._mechanism, self._claim = str(request.mechanism), None
            return self._can_shake(head) and self._mechanism in self._access.mechanisms
        if self._claim is None:
            self._claim = _claimed(self._mechanism, bytes(request.auth_bytes))
        return True

    def as_relayed(self, head: RequestHead, frame: bytearray) -> bytearray:
        """Return a login request as the target gets the request: every handshake announces messages with headers."""
        if head.api_key != ApiKey.SASL_HANDSHAKE or head.version >= _HANDSHAKE_WITH_HEADERS:
            return frame
        newer = bytearray(frame)
        newer[_VERSION] = _HANDSHAKE_WITH_HEADERS.to_bytes(2, "big")
        return newer

    def relayed(self, head: RequestHead, frame: bytearray) -> LoginAnswer:
        """Note the result in the target's answer to a relayed request; return the answer for the client."""
        answer = read_answer(head, frame)
        if code_of(answer.error_code):
            self._note_failed(self._mechanism)
        if head.api_key == ApiKey.SASL_HANDSHAKE:
            self.bare = head.version < _HANDSHAKE_WITH_HEADERS and not code_of(answer.error_code)
        elif self._claim is not None:
            self._note_result(head, answer)
        return self._unwrapped(head, LoginAnswer(frame))

    def _note_result(self, head: RequestHead, answer: Message) -> None:
        """Believe the client's name and credential if the target's answer ends the login."""
        if code_of(answer.error_code):
            self._claim = None
            self._shared.backend.say(f"{head.client_id or 'a client'}: the target refused its {self._mechanism} login")
        elif _complete(self._mechanism, bytes(answer.auth_bytes)):
            lifetime = answer.session_lifetime.total_seconds() if hasattr(answer, "session_lifetime") else 0.0
            self._ends = self._client.now() + lifetime if lifetime else float("inf")
            (name, own), self._claim = self._claim or (None, None), None
            self.accepted = True
            self._client.identified(self._access.named(name, own))

    # judged here

    def answer(self, head: RequestHead, request: Message) -> Conversation[LoginAnswer]:
        """Answer a login request that is not relayed; refuse as a broker does: a moment later."""
        if head.api_key == ApiKey.SASL_HANDSHAKE:
            shaken = self._shake_hands(head, str(request.mechanism))
            if shaken.failure:
                self._note_failed(str(request.mechanism))
            return shaken
        error, failure, message, mechanism = Code.SASL_AUTHENTICATION_FAILED, _REFUSED, None, self._mechanism
        if self._mechanism:
            judge = self._plain if self._mechanism == "PLAIN" else self._scram_step
            name, message = judge(bytes(request.auth_bytes))
            if message is not None:
                failure = (yield from self._accept(name)) if name else ""
        else:
            error, failure = Code.ILLEGAL_SASL_STATE, "the router expects SaslHandshake first"
        if not failure:
            return self._unwrapped(head, LoginAnswer(build_answer(head, auth_bytes=message)))
        self._note_failed(mechanism)
        when = self._client.now() + _REFUSAL_S
        self._delay = when, Future()
        self._client.wake_at(when)
        yield from self._delay[1]
        refused = LoginAnswer(build_answer(head, error_code=error, error_message=failure), failure)
        return self._unwrapped(head, refused)

    def _note_failed(self, mechanism: str) -> None:
        """Count a refused login; a client may name any mechanism, and a metric may not have any label."""
        self._shared.failed_logins[mechanism if mechanism in MECHANISMS else "other"] += 1

    def advance(self) -> None:
        """Go on with a refusal once the delay is over."""
        if self._delay is not None and self._client.now() >= self._delay[0]:
            (_, over), self._delay = self._delay, None
            over.set(None)

    def _shake_hands(self, head: RequestHead, mechanism: str) -> LoginAnswer:
        access = self._access
        self._mechanism, self._scram = "", None
        error, why = Code.NONE, ""
        if not access.asks:
            error, why = Code.ILLEGAL_SASL_STATE, "its login is not asked for"
        elif not self._can_shake(head):
            error, why = Code.ILLEGAL_SASL_STATE, "a session is renewed by SaslHandshake version 1"
        elif mechanism not in access.mechanisms:
            error, why = Code.UNSUPPORTED_SASL_MECHANISM, f"it asks for {mechanism!r}, which is not offered"
            if mechanism == "GSSAPI":
                why = "it logs in by Kerberos: its tickets are for a broker's host name, and no router can use them"
        else:
            self._mechanism, self.bare = mechanism, head.version < _HANDSHAKE_WITH_HEADERS
        return LoginAnswer(build_answer(head, error_code=error, mechanisms=access.mechanisms), why)

    def _can_shake(self, head: RequestHead) -> bool:
        """Return whether a handshake of this version may come: version 0 begins no renewal (KIP-368)."""
        return head.version >= _HANDSHAKE_WITH_HEADERS or not self.accepted

    def _plain(self, message: bytes) -> tuple[str, bytes | None]:
        """Return the client's proven name and the router's message; '' and None for a wrong password."""
        found = plain_login(message)
        entry = self._access.clients.get(found[0]) if found is not None else None
        known = entry.password if entry is not None else ""
        if found is None or not known or not hmac.compare_digest(found[1].encode(), known.encode()):
            return "", None
        return found[0], b""

    def _scram_step(self, message: bytes) -> tuple[str, bytes | None]:
        """Return the client's name, '' while the name is not proven, and the router's message, None for a refusal."""
        if self._scram is None:
            self._scram = ScramServer(self._mechanism, self._keys_of, secrets.token_urlsafe(24))
        challenge = self._scram.step(message)
        return (self._scram.name if self._scram.accepted else ""), challenge

    def _keys_of(self, name: str) -> ScramKeys | None:
        entry = self._access.clients.get(name)
        return _scram_keys(self._mechanism, name, entry.password) if entry is not None and entry.password else None

    def _accept(self, name: str) -> Conversation[str]:
        """Admit a client of the table once the target takes the credential mapped to it; return why not, or ''."""
        self._mechanism, self._scram = "", None
        if self.accepted:
            return "" if name == self._mapped_as else "a session is renewed under its own name"
        # the warning about a credential that the target refuses is due even if the client is gone
        failure = yield from self._shared.conversations.start(self._log_in(name))
        if not failure:
            self.accepted, self._mapped_as = True, name
        return failure

    def _log_in(self, name: str) -> Conversation[str]:
        """Log in to the target for a client; return why that failed, or ''."""
        problem = yield from self._client.log_in(self._access.named(name))
        if not problem:
            return ""
        why = f"the router cannot log in to the target for {name}"
        self._shared.backend.warn(f"{why}: {problem}")
        return why


def _claimed(mechanism: str, message: bytes) -> tuple[str | None, Login | Bearer | None]:
    """Return the name in a login's first message, and the credential if valid at other clusters; None: unreadable."""
    if mechanism == "PLAIN":
        found = plain_login(message)
        return (found[0], Login("PLAIN", *found)) if found is not None else (None, None)
    if mechanism == "OAUTHBEARER":
        token = bearer_token(message)
        return None, Bearer(token=token) if token is not None else None
    return scram_name(message), None


def _complete(mechanism: str, said: bytes) -> bool:
    """Return whether a broker's message without an error ends the login; a bearer's refusal begins as a challenge."""
    if mechanism.startswith("SCRAM"):
        return said.startswith(b"v=")
    return not said if mechanism == "OAUTHBEARER" else True


@lru_cache(maxsize=4096)
def _scram_keys(mechanism: str, name: str, password: str) -> ScramKeys:
    """Derive keys once per name and password: not every login shall cost the milliseconds that make guessing hard."""
    salt = hmac.new(_SALT_SEED, name.encode(), "sha256").digest()[:16]
    return ScramKeys.derive(mechanism, password, salt, MIN_ITERATIONS)
