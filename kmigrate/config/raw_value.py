"""A value from a file, an environment variable or a flag, and the error for a wrong value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmigrate.config.secret_text import FileText, SecretText, shown
from kmigrate.errors import UsageError

__all__ = ["RawValue", "bad_value", "is_file", "located", "resolve"]


@dataclass(frozen=True, slots=True)
class RawValue:
    """A raw value, the key as a person writes the key, and the value's origin."""

    key: str
    value: Any
    origin: str
    text: bool = False
    """True if the value can only be text (environment, flag), so that '9092' may mean a number."""
    line: int = 0
    """The line of the key in its file, from 1; 0 for a value that stands in no file."""

    @property
    def place(self) -> str:
        """The origin and the line, for a person."""
        return f"{self.origin}, line {self.line}" if self.line else self.origin


def bad_value(given: RawValue, expected: str, why: str = "") -> UsageError:
    """Return the error for a wrong value: the place, the key, the value, and what is expected."""
    found = why or f"found {shown(given.key, given.value)!r}"
    return UsageError(
        "bad-config-value",
        f"{given.place}: {given.key}: {found}",
        still_true="nothing was contacted or changed",
        next_step=f"expected: {expected}",
    )


def located(folder: Path, name: str) -> Path:
    """Return a path relative to the configuration file; a path with an unknown home directory stays unexpanded."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:
        return folder / name


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False also for errors that `Path.is_file` raises."""
    try:
        return path.is_file()
    except OSError:
        return False


def resolve(given: RawValue, env: Mapping[str, str], folder: Path) -> RawValue:
    """Replace a value of the form `{ env = "VAR" }` or `{ file = "path" }` by the secret that the value names."""
    if not isinstance(given.value, dict):
        return given
    forms = 'a value, { env = "VARIABLE" } or { file = "path" }'
    if len(given.value) != 1 or not isinstance(next(iter(given.value.values())), str):
        raise bad_value(given, forms, f"found a table with the keys {sorted(given.value)}")
    ((kind, name),) = given.value.items()
    if kind == "env":
        if name not in env:
            raise bad_value(given, f"the environment variable {name} to be set", f"{name} is not set")
        return RawValue(given.key, SecretText(env[name]), f"{given.origin} (environment {name})", True, given.line)
    if kind == "file":
        path = located(folder, name)
        try:
            secret = FileText(path.read_text(encoding="utf-8").rstrip("\r\n"))
        except (OSError, ValueError) as error:  # a NUL in the name raises ValueError, too
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise bad_value(given, "a readable file", f"{path} cannot be read: {reason}") from error
        secret.path = str(path)
        return RawValue(given.key, secret, f"{given.origin} (file {path})", True, given.line)
    raise bad_value(given, forms, f"found a table with the key {kind!r}")
