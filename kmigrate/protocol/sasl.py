"""SASL mechanisms as step machines: a challenge in, a response out, no socket and no randomness.

    first() → bytes ── SaslAuthenticate ──→ step(challenge) → bytes … → step(challenge) → None: done

| mechanism | checks here |
|---|---|
| PLAIN (RFC 4616) | the broker says nothing more |
| SCRAM-SHA-256, -512 (RFC 5802, 7677) | our nonce comes back, a sane iteration count, the broker knows the password |
| OAUTHBEARER (RFC 7628) | a refusal is answered with the single byte that the RFC demands |

Names and passwords are sent as UTF-8 without SASLprep, as Kafka's clients and brokers do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from typing import Protocol

from kmigrate.errors import AuthenticationFailed

__all__ = ["HASHES", "MIN_ITERATIONS", "OAuthBearer", "Plain", "SaslMechanism", "Scram", "expiry_of"]

MIN_ITERATIONS = 4096
"""Fewest SCRAM iterations (RFC 7677, Kafka): with fewer, a false broker could guess the password from our proof."""
_MAX_ITERATIONS = 1_000_000
"""Most SCRAM iterations: a false broker must not keep us busy. Kafka itself stores at most 16384."""
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslMechanism(Protocol):
    """A single login from the first message to the end; never used twice."""

    @property
    def name(self) -> str: ...

    def first(self) -> bytes:
        """Return the first message."""

    def step(self, challenge: bytes) -> bytes | None:
        """Return the response to the broker's challenge; None if the challenge was the last."""


class Plain:
    """A login by name and password, readable to anybody with access to the connection."""

    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise _violation("PLAIN cannot carry a name or password that holds a zero byte")
        self._first = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        return self._first

    def step(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise _violation("the broker went on after PLAIN's only message")
        return None


class Scram:
    """A login by a password that both sides prove to know and neither side sends."""

    def __init__(self, name: str, username: str, password: str, nonce: str) -> None:
        self.name = name
        self._hash = HASHES[name]
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={_escaped(username)},r={nonce}"
        self._signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self._signature is None:
            return self._prove(challenge)
        self._check(challenge)
        return None

    def _prove(self, challenge: bytes) -> bytes:
        fields = _fields(challenge)
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        if "m" in fields:
            raise _violation("the broker asks for a SCRAM extension that we do not know")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise _violation("the broker's SCRAM nonce does not continue ours")
        if not iterations.isascii() or not iterations.isdigit() or len(iterations) > 9:
            raise _violation("the broker's SCRAM iteration count is no number")
        rounds = int(iterations)
        if not MIN_ITERATIONS <= rounds <= _MAX_ITERATIONS:
            raise _violation(f"the broker asks for {rounds} SCRAM iterations ({MIN_ITERATIONS} to {_MAX_ITERATIONS})")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _binary(fields.get("s", "")), rounds)
        final = f"c=biws,r={nonce}"
        signed = f"{self._bare},{challenge.decode()},{final}".encode()
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, signed), strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _check(self, challenge: bytes) -> None:
        fields = _fields(challenge)
        if "e" in fields:
            raise AuthenticationFailed(
                "authentication-failed",
                f"the broker refused the SCRAM proof: {fields['e']}",
                still_true="nothing was read or changed",
                next_step="check sasl.username and sasl.password of this cluster",
            )
        if self._signature is None or not hmac.compare_digest(_binary(fields.get("v", "")), self._signature):
            raise AuthenticationFailed(
                "broker-not-authentic",
                "the broker cannot prove that it knows the password: it is not the broker it seems to be",
                still_true="the password was not sent; nothing was read or changed",
                next_step="check the bootstrap address, and who answers there",
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


class OAuthBearer:
    """A login by a token that somebody else issued; the bearer of the token is the user that the token names."""

    name = "OAUTHBEARER"

    def __init__(self, token: str) -> None:
        if not token or not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
            raise _violation("the token is empty or holds characters that no token has")
        self._token = token
        self._refused = False

    def first(self) -> bytes:
        return b"n,,\x01auth=Bearer " + self._token.encode() + b"\x01\x01"

    def step(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        if self._refused:
            raise _violation("the broker refused the token and then went on")
        self._refused = True  # The broker sends the refusal after this byte.
        return b"\x01"


def expiry_of(token: str) -> float | None:
    """Return the expiry of a JSON Web Token in seconds since the epoch; None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return None


def _escaped(username: str) -> str:
    return username.replace("=", "=3D").replace(",", "=2C")


def _fields(message: bytes) -> dict[str, str]:
    """Return the fields of `a=…,b=…` by letter."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise _violation("the broker's SCRAM message is no UTF-8") from None
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _binary(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise _violation("the broker's SCRAM message lacks a salt or a signature")
    return found


def _violation(what: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        "sasl-violation",
        what,
        still_true="nothing was read or changed",
        next_step="check sasl.mechanism and the credentials of this cluster, and who answers at its address",
    )
