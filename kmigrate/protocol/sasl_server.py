"""The server side of SASL: the contents of a client's messages, and SCRAM with a step machine of its own. Pure.

    PLAIN         first message → name and password
    OAUTHBEARER   first message → token
    SCRAM         first message → server's nonce, salt, rounds; second message → the server's proof, or a refusal

The grammar is as strict as Kafka's own: router and broker must read the same name out of a login that a broker judges.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass

from kmigrate.protocol.sasl import HASHES

__all__ = ["ScramKeys", "ScramServer", "bearer_token", "plain_login", "scram_name"]

_SCRAM_FIRST = re.compile(r"n,(?:a=([^,]*))?,(n=((?:[^=,\0]|=2C|=3D)+),r=([\x21-\x2b\x2d-\x7e]+)(,.*)?)", re.DOTALL)
_SCRAM_FINAL = re.compile(r"(c=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)),p=([A-Za-z0-9+/=]+)")
_BEARER = re.compile(
    r"n,[^,]*,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?auth=[Bb]earer +([A-Za-z0-9\-._~+/]+=*)\x01.*", re.DOTALL
)


def plain_login(message: bytes) -> tuple[str, str] | None:
    """Return name and password of PLAIN's only message; None if invalid, or to act as another user."""
    parts = message.split(b"\0")
    if len(parts) != 3:
        return None
    try:
        acting, name, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        return None
    if not name or not password or acting not in ("", name):
        return None
    return name, password


def bearer_token(message: bytes) -> str | None:
    """Return the token of OAUTHBEARER's first message."""
    found = _BEARER.fullmatch(message.decode("latin-1"))
    return found[1] if found else None


def scram_name(message: bytes) -> str | None:
    """Return the name in SCRAM's first message; None also for a delegation token, whose id is no user's name."""
    found = _first(message)
    return _name(found) if found is not None and not found[5] else None


def _first(message: bytes) -> re.Match[str] | None:
    try:
        found = _SCRAM_FIRST.fullmatch(message.decode())
    except UnicodeDecodeError:
        return None
    return found if found is not None and found[1] in (None, "", found[3]) else None


def _name(found: re.Match[str]) -> str:
    return found[3].replace("=2C", ",").replace("=3D", "=")


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """A server's record of a password: enough to check a proof and to give a proof, not to log in elsewhere."""

    salt: bytes
    rounds: int
    stored: bytes
    server: bytes

    @classmethod
    def derive(cls, mechanism: str, password: str, salt: bytes, rounds: int) -> ScramKeys:
        kind = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(kind, password.encode(), salt, rounds)
        client = hmac.new(salted, b"Client Key", kind).digest()
        return cls(salt, rounds, hashlib.new(kind, client).digest(), hmac.new(salted, b"Server Key", kind).digest())


class ScramServer:
    """A single login by SCRAM; never used twice."""

    def __init__(self, mechanism: str, keys_of: Callable[[str], ScramKeys | None], nonce: str) -> None:
        self.name = ""
        self.accepted = False
        self._kind = HASHES[mechanism]
        self._keys_of = keys_of
        self._nonce = nonce
        self._keys: ScramKeys | None = None
        self._said = ""

    def step(self, message: bytes) -> bytes | None:
        """Return the response to the client's message; None refuses the login."""
        return self._challenge(message) if self._keys is None else self._judge(message, self._keys)

    def _challenge(self, message: bytes) -> bytes | None:
        found = _first(message)
        if found is None or found[5]:
            return None
        self.name = _name(found)
        self._keys = self._keys_of(self.name)
        if self._keys is None:
            return None
        self._nonce = found[4] + self._nonce
        salt = base64.b64encode(self._keys.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._keys.rounds}"
        self._said = f"{found[2]},{answer}"
        return answer.encode()

    def _judge(self, message: bytes, keys: ScramKeys) -> bytes | None:
        found = _SCRAM_FINAL.fullmatch(message.decode("latin-1"))
        if found is None or found[2] not in ("biws", base64.b64encode(f"n,a={self.name},".encode()).decode()):
            return None
        if found[3] != self._nonce:
            return None
        signed = f"{self._said},{found[1]}".encode()
        try:
            proof = base64.b64decode(found[4], validate=True)
        except (binascii.Error, ValueError):
            return None
        signature = hmac.new(keys.stored, signed, self._kind).digest()
        if len(proof) != len(signature):
            return None
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._kind, key).digest(), keys.stored):
            return None
        self.accepted = True
        return b"v=" + base64.b64encode(hmac.new(keys.server, signed, self._kind).digest())
