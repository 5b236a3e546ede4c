"""The first `kmigrate.toml` before it is written: clusters, router and defaults, and the files of new secrets.

A password is never part of the text: the text names an environment variable or a file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit

from kmigrate.cli.guide.files import write_files
from kmigrate.config.clusters import CLUSTER_KEYS, cluster_settings
from kmigrate.config.raw_value import RawValue, resolve
from kmigrate.config.secret_text import SecretText, shown
from kmigrate.errors import Failed, Refused, UsageError
from kmigrate.model.settings import ClusterSettings

__all__ = ["SECRET_KEYS", "ClusterDraft", "ConfigDraft", "Value", "exists", "given_key", "write_draft"]

Value = str | dict[str, str]
"""A value as the file has it: a text, `{ env = … }` or `{ file = … }`."""

SECRET_KEYS = ("sasl.password", "ssl.key.password")
_HEAD = "Written by kmigrate init. docs/configuration.md lists all keys; kmigrate doctor checks this file."
_ORIGIN = "kmigrate init"


@dataclass
class ClusterDraft:
    """A cluster's section: the keys as the file has them, and secrets that get files of their own."""

    name: str
    keys: dict[str, Value] = field(default_factory=dict)
    secrets: dict[str, SecretText] = field(default_factory=dict)
    """Secrets by key, which `secret_file` will hold."""

    def secret_file(self, key: str) -> str:
        """Return the path of a new secret's file, relative to the configuration file."""
        return f"secrets/{self.name}.{key}"

    def table(self) -> dict[str, Value]:
        return {**self.keys, **{key: {"file": self.secret_file(key)} for key in self.secrets}}

    def settings(self, folder: Path, env: Mapping[str, str]) -> ClusterSettings:
        """Return the settings as `load` will read them; raise UsageError for a wrong value."""
        raw = {
            key: resolve(RawValue(f"[clusters.{self.name}] {key}", value, _ORIGIN), env, folder)
            for key, value in self.keys.items()
        }
        for key, secret in self.secrets.items():
            raw[key] = RawValue(f"[clusters.{self.name}] {key}", secret, _ORIGIN, text=True)
        return cluster_settings(self.name, raw, {}, _ORIGIN, folder)

    def check(self, folder: Path) -> None:
        """Raise UsageError for a value that `load` would refuse; a variable with a secret may be set later."""
        named = [value["env"] for value in self.keys.values() if isinstance(value, dict) and "env" in value]
        self.settings(folder, {**dict.fromkeys(named, "set later"), **os.environ})


@dataclass
class ConfigDraft:
    """The whole file."""

    source: ClusterDraft
    target: ClusterDraft
    router: Mapping[str, str | int] = field(default_factory=dict)
    link: str = ""

    @property
    def clusters(self) -> tuple[ClusterDraft, ClusterDraft]:
        return self.source, self.target

    def text(self, *, hide: bool = False) -> str:
        """Return the file's text; with `hide` as a terminal may show the text, without user names."""
        document = tomlkit.document()
        document.add(tomlkit.comment(_HEAD))
        document.add(tomlkit.nl())
        clusters = tomlkit.table(is_super_table=True)
        for cluster, comment in zip(self.clusters, ("copied from", "copied to"), strict=True):
            table = tomlkit.table()
            table.comment(comment)
            for key, value in cluster.table().items():
                table.add(key, _inline(shown(key, value) if hide and isinstance(value, str) else value))
            clusters.add(cluster.name, table)
        document.add("clusters", clusters)
        document.add("router", _section("clients get this address as bootstrap.servers", self.router))
        document.add("defaults", _section("", {"target": self.target.name, "link": self.link}))
        return tomlkit.dumps(document)

    def secret_files(self) -> dict[str, SecretText]:
        """Return the files of new secrets by their path, relative to the configuration file."""
        return {each.secret_file(key): secret for each in self.clusters for key, secret in each.secrets.items()}


def _inline(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _section(comment: str, values: Mapping[str, str | int]) -> Any:
    table = tomlkit.table()
    if comment:
        table.comment(comment)
    for key, value in values.items():
        table.add(key, value)
    return table


def given_key(text: str, flag: str) -> tuple[str, Value]:
    """Return key and value of `KEY=VALUE`; a secret's value is env:VARIABLE or file:PATH."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key or not value:
        raise _bad_flag(flag, f"{key or text!r} has no value", "KEY=VALUE, as security.protocol=SASL_SSL")
    if key not in CLUSTER_KEYS:
        raise _bad_flag(flag, f"there is no key {key!r}", ", ".join(CLUSTER_KEYS))
    if key not in SECRET_KEYS:
        return key, value
    kind, colon, name = value.partition(":")
    if kind not in ("env", "file") or not colon or not name:
        raise _bad_flag(flag, f"{key} is given in plain text", f"{key}=env:VARIABLE or {key}=file:PATH")
    return key, {kind: name}


def _bad_flag(flag: str, what: str, expected: str) -> UsageError:
    return UsageError(
        "bad-setting",
        f"{flag}: {what}",
        still_true="nothing was contacted or changed",
        next_step=f"expected: {expected}",
    )


def write_draft(draft: ConfigDraft, file: Path, *, overwrite: bool) -> list[Path]:
    """Write the file and the files of new secrets, all or none, and return the paths; keep existing files."""
    secrets = {file.parent / name: f"{secret!s}\n" for name, secret in draft.secret_files().items()}
    try:
        write_files({**secrets, file: draft.text()}, private=secrets, overwrite=overwrite)
    except FileExistsError as error:
        raise exists(Path(error.filename2 or error.filename), file) from None
    except OSError as error:
        raise _unwritten(error, file) from error
    return [*secrets, file]


def exists(found: Path, config: Path) -> Refused:
    """Return the refusal to replace a file: the configuration file, or the file of a secret."""
    flag = f"--config {shlex.quote(str(config))}"
    other = (
        f"kmigrate init --config OTHER writes another file; kmigrate doctor {flag} checks the file"
        if found == config
        else "another name of the cluster (--source-name, --target-name) gives the secret another file"
    )
    return Refused(
        "file-exists",
        f"{found} exists",
        still_true="the file is as it was, and nothing was written",
        next_step=f"kmigrate init --overwrite {flag} replaces the file; {other}",
    )


def _unwritten(error: OSError, file: Path) -> Failed:
    return Failed(
        "config-not-written",
        f"{error.filename or file} cannot be written: {error.strerror}",
        still_true="no configuration was written",
        next_step="kmigrate init --config FILE writes to another place",
    )
