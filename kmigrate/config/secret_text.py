"""Values that came from an environment variable or a file: usable as text, never shown.

They exist so that a password can reach librdkafka without ever standing in `kmigrate.toml`, in the state log
or in any output: `repr`, formatting and containers show `(hidden)`.
"""

from __future__ import annotations

__all__ = ["HIDDEN", "FileText", "HiddenMap", "SecretText", "shown"]

HIDDEN = "(hidden)"
_TELLING = ("password", "secret", "token", "jaas", "key.pem", "username", "oauthbearer.config")
"""Parts of librdkafka's names whose values are hidden even where they stand in the file as plain text."""


class SecretText(str):
    """Text that shows itself only to those who ask for `str()` on purpose (librdkafka's binding does)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN


class FileText(SecretText):
    """Such a value that knows its file, so that a login may read it again."""

    __slots__ = ("path",)

    path: str


class HiddenMap(dict[str, str]):
    """Settings of the admin client, of which only harmless values are printed."""

    def __repr__(self) -> str:
        return repr({key: shown(key, value) for key, value in self.items()})


def shown(key: str, value: object) -> object:
    """The value as any output may show it."""
    if isinstance(value, SecretText) or any(word in key.lower() for word in _TELLING):
        return HIDDEN
    return value
