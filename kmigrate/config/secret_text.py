"""Values from an environment variable or a file: usable as text by librdkafka, never shown.

No password is in `kmigrate.toml`, the state log or any output; `repr`, formatting and containers show `(hidden)`.
"""

from __future__ import annotations

__all__ = ["HIDDEN", "FileText", "HiddenMap", "SecretText", "shown"]

HIDDEN = "(hidden)"
_TELLING = ("password", "secret", "token", "jaas", "key.pem", "username", "oauthbearer.config")
"""Parts of librdkafka's names with secret values, which are hidden even if the file has them as plain text."""


class SecretText(str):
    """Text that only an explicit `str()` shows (librdkafka's binding calls `str()`)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN


class FileText(SecretText):
    """A hidden value that knows its file, so that a login can read the file again."""

    __slots__ = ("path",)

    path: str


class HiddenMap(dict[str, str]):
    """Settings of the admin client; `repr` prints harmless values only."""

    def __repr__(self) -> str:
        return repr({key: shown(key, value) for key, value in self.items()})


def shown(key: str, value: object) -> object:
    """Return the value as any output may show it."""
    if isinstance(value, SecretText) or any(word in key.lower() for word in _TELLING):
        return HIDDEN
    return value
