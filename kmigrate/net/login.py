"""Logs in to a broker with SaslHandshake v1 and SaslAuthenticate v2; the same requests renew a session (KIP-368).

Each login reads the credentials (of a file, or a command's output) and forgets them; no message contains them.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kmigrate.errors import AuthenticationFailed
from kmigrate.model.security import Bearer, Login
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.sasl import OAuthBearer, Plain, SaslMechanism, Scram

__all__ = ["current_password", "current_token", "log_in"]

Ask = Callable[[Any], Awaitable[Any]]
"""Sends a kio request on the connection and returns the response."""

_COMMAND_SECONDS = 8.0
_MAX_STEPS = 4


async def log_in(ask: Ask, sasl: Login | Bearer, address: str) -> float:
    """Authenticate; return the seconds after which the broker wants a new login, 0 for never."""
    mechanism = await _mechanism(sasl)
    await _shake_hands(ask, mechanism.name, address)
    authenticate = entity(ApiKey.SASL_AUTHENTICATE, 2, "request")
    message: bytes | None = mechanism.first()
    for _ in range(_MAX_STEPS):
        answer = await ask(authenticate(auth_bytes=message))
        code = code_of(answer.error_code)
        if code:
            raise AuthenticationFailed(
                "authentication-failed",
                f"{address} refused {_who(sasl)}: {answer.error_message or f'error {code}'}",
                still_true="nothing was read or changed",
                next_step=_credentials(sasl),
            )
        # Hashing a salted password takes milliseconds; a router's other clients must not wait for that.
        message = await asyncio.to_thread(mechanism.step, answer.auth_bytes)
        if message is None:
            return float(answer.session_lifetime.total_seconds())
    raise AuthenticationFailed("sasl-violation", f"{address} never comes to an end of {mechanism.name}")


async def _shake_hands(ask: Ask, name: str, address: str) -> None:
    answer = await ask(entity(ApiKey.SASL_HANDSHAKE, 1, "request")(mechanism=name))
    code = code_of(answer.error_code)
    if code == Code.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            "sasl-not-offered",
            f"{address} takes no SASL login on this listener",
            still_true="no credentials were sent; nothing was read or changed",
            next_step="check security.protocol and the listener's port",
        )
    if code:
        offered = ", ".join(sorted(str(each) for each in answer.mechanisms)) or "none"
        known = code == Code.UNSUPPORTED_SASL_MECHANISM
        raise AuthenticationFailed(
            "sasl-mechanism-refused" if known else "authentication-failed",
            f"{address} does not offer {name}; it offers {offered}" if known else f"{address}: error {code}",
            still_true="no credentials were sent; nothing was read or changed",
            next_step="set sasl.mechanism to one that the broker offers",
        )


async def _mechanism(sasl: Login | Bearer) -> SaslMechanism:
    if isinstance(sasl, Bearer):
        return OAuthBearer(await asyncio.to_thread(current_token, sasl))  # a command may take long
    password = current_password(sasl)
    if sasl.mechanism == "PLAIN":
        return Plain(str(sasl.username), password)
    return Scram(sasl.mechanism, str(sasl.username), password, secrets.token_urlsafe(24))


def current_password(sasl: Login) -> str:
    """Return the current password, read from the file if there is a file."""
    return _text(sasl.password_file) if sasl.password_file else str(sasl.password)


def current_token(sasl: Bearer) -> str:
    """Return the current token; block while a command makes the token."""
    if sasl.token:
        return sasl.token
    return _output(sasl.token_command) if sasl.token_command else _text(sasl.token_file).strip()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _no_credentials(f"{path} cannot be read: {why}") from error


def _output(command: tuple[str, ...]) -> str:
    """Return the output of the command; its error output stays hidden, because it may quote secrets."""
    called = f"the token command {command[0]}"
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS, check=False
        )
    except OSError as error:
        raise _no_credentials(f"{called} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise _no_credentials(f"{called} took more than {_COMMAND_SECONDS:g} s") from None
    if ended.returncode:
        raise _no_credentials(f"{called} ended with exit code {ended.returncode}")
    return ended.stdout.decode("ascii", "replace").strip()


def _no_credentials(what: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        "credentials-unreadable",
        what,
        still_true="nothing was contacted or changed",
        next_step="see docs/security.md",
    )


def _who(sasl: Login | Bearer) -> str:
    return f"the {sasl.mechanism} login" if isinstance(sasl, Login) else "the token"


def _credentials(sasl: Login | Bearer) -> str:
    if isinstance(sasl, Login):
        return "check sasl.username, sasl.password and sasl.mechanism of this cluster"
    return "check what sasl.oauthbearer.token.file or .command gives: the token may have expired"
