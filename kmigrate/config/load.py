"""Reads the configuration: file < environment < flags, each value with its origin, every mistake named.

A variable `KMIGRATE_<SECTION>__<KEY>` overrides a key (`KMIGRATE_ROUTER__PORT`,
`KMIGRATE_CLUSTERS__SOURCE__SASL_PASSWORD`): dots and dashes become underscores. Variables without `__` are not ours.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli

from kmigrate.config.clusters import CLUSTER_KEYS, cluster_settings
from kmigrate.config.java_names import toml_line
from kmigrate.config.listen import listen_address
from kmigrate.config.raw_value import RawValue, bad_value, is_file, located, resolve
from kmigrate.config.secret_text import SecretText, shown
from kmigrate.config.settings import (
    Defaults,
    FinishSection,
    HooksSection,
    HttpSection,
    LogSection,
    MetricsSection,
    MirrorSection,
    PromoteSection,
    RouterSection,
    Settings,
)
from kmigrate.errors import UsageError
from kmigrate.model.backtracking import slow_part
from kmigrate.model.nearest import nearest
from kmigrate.model.words import as_words
from kmigrate.workflow.playbook.places import Places

__all__ = ["DEFAULT_FILE", "SECTIONS", "flat", "load", "typed"]

DEFAULT_FILE = "kmigrate.toml"
SECTIONS: Mapping[str, type[Any]] = {
    "router": RouterSection,
    "mirror": MirrorSection,
    "promote": PromoteSection,
    "finish": FinishSection,
    "metrics": MetricsSection,
    "http": HttpSection,
    "log": LogSection,
    "hooks": HooksSection,
    "defaults": Defaults,
}
_ALL = ("clusters", *SECTIONS)
_PREFIX = "KMIGRATE_"
_OF_PLAYBOOKS = "KMIGRATE_VAR_"
"""Prefix of the values of a playbook's variables."""

_S = TypeVar("_S")


def load(path: Path | None, env: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Settings:
    """Return settings: `path` (`--config`), else KMIGRATE_CONFIG, else `./kmigrate.toml`; flags by `section.key`."""
    file = _choose(path, env)
    folder = file.parent if file else Path()
    raw = _Raw(env, folder)
    if file:
        raw.take_file(_File(str(file), _text(file)))
    raw.take_environment()
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        raw.sections[section][name] = RawValue(f"[{section}] {name}", value, "a flag", text=True)
    place = str(file) if file else "the environment"
    settings = Settings(
        path=file,
        clusters={
            name: cluster_settings(name, keys, raw.admin.get(name, {}), place, folder)
            for name, keys in raw.clusters.items()
        },
        router=_section(RouterSection, raw.sections["router"]),
        mirror=_section(MirrorSection, raw.sections["mirror"]),
        promote=_section(PromoteSection, raw.sections["promote"]),
        finish=_section(FinishSection, raw.sections["finish"]),
        metrics=_section(MetricsSection, raw.sections["metrics"]),
        http=_section(HttpSection, raw.sections["http"]),
        log=_section(LogSection, raw.sections["log"]),
        hooks=_section(HooksSection, raw.sections["hooks"]),
        defaults=_section(Defaults, raw.sections["defaults"]),
        origins=raw.origins(),
    )
    target = raw.sections["defaults"].get("target")
    if target is not None and settings.defaults.target not in settings.clusters:
        raise bad_value(target, f"one of the configured clusters: {', '.join(sorted(settings.clusters)) or 'none'}")
    for section, address in (("metrics", settings.metrics.listen), ("http", settings.http.listen)):
        listen = raw.sections[section].get("listen")
        if listen is not None and address and listen_address(address) is None:
            raise bad_value(listen, "host:port, or a port from 0 (any free one) to 65535")
    return settings


def _choose(path: Path | None, env: Mapping[str, str]) -> Path | None:
    for given, origin in ((path, "--config"), (env.get("KMIGRATE_CONFIG"), "KMIGRATE_CONFIG")):
        if given:
            file = located(Path(), str(given))
            if not is_file(file):
                raise UsageError(
                    "no-config-file",
                    f"{origin} names {file}, and there is no such file",
                    still_true="nothing was contacted or changed",
                    next_step=f"expected: the path of a kmigrate.toml; kmigrate init --config {as_words(str(file))} "
                    "writes the file",
                )
            return file
    here = Path(DEFAULT_FILE)
    return here if here.is_file() else None


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(
            "config-unreadable",
            f"{file} cannot be read: {error.strerror}",
            still_true="nothing was contacted or changed",
            next_step="give this user the right to read it, or name another file with --config",
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            "config-syntax",
            f"{file}: not UTF-8 text (byte {error.start})",
            still_true="nothing was contacted or changed",
            next_step="save it as UTF-8",
        ) from error


def _tables(name: str, text: str) -> dict[str, Any]:
    try:
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers and tables beyond what Python reads
        raise UsageError(
            "config-syntax",
            f"{name}: {error}",
            still_true="nothing was contacted or changed",
            next_step="expected: TOML, with names that hold dots or dashes in quotes (docs/configuration.md)"
            + _java(text),
        ) from error


_PROPERTY = re.compile(r"^[a-z]+(?:\.[a-z]+)+[ \t]*=[ \t]*[^\s\"'\[{].*$", re.MULTILINE)
"""A line as properties files of Java clients have it: the value of a dotted name stands without quotes."""


def _java(text: str) -> str:
    """Return the way from a properties file of a Java client to TOML, if the text has such lines."""
    found = _PROPERTY.search(text)
    if found is None:
        return ""
    key, _, value = (part.strip() for part in found[0].partition("="))
    return f"; a line of a Java client's properties becomes, under [clusters.NAME]: {toml_line(key, value)}"


class _File:
    """The tables of a configuration file, and the line of each key."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.tables = _tables(name, text)
        self._places = Places(text.replace("\r\n", "\n"))

    def value(self, shown: str, value: Any, table: tuple[str, ...], key: str = "") -> RawValue:
        """Return the value of a key, or of a whole table; a key's name may stand without quotes around its dots."""
        paths = ((*table, key), (*table, *key.split("."))) if key else (table,)
        return RawValue(shown, value, self.name, line=max(self._places.of(path).line for path in paths))


class _Raw:
    """The values of all sources by section and key, before any check of their types."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self.env, self.folder = env, folder
        self.sections: dict[str, dict[str, RawValue]] = {name: {} for name in SECTIONS}
        self.clusters: dict[str, dict[str, RawValue]] = {}
        self.admin: dict[str, dict[str, RawValue]] = {}

    def take_file(self, file: _File) -> None:
        for section, table in file.tables.items():
            given = file.value(section, table, (section,))
            if section not in _ALL:
                raise _unknown_section(section, given.place)
            if not isinstance(table, dict):
                raise bad_value(given, f"a table, written [{section}]")
            if section == "clusters":
                for name, keys in table.items():
                    self._take_cluster(name, keys, file)
            else:
                for key, value in table.items():
                    self._put(section, key, file.value(f"[{section}] {key}", value, (section,), key))

    def _take_cluster(self, name: str, table: Any, file: _File) -> None:
        at = ("clusters", name)
        if not isinstance(table, dict):
            raise bad_value(file.value(f"clusters.{name}", table, at), f"a table, written [clusters.{name}]")
        keys = self.clusters.setdefault(name, {})
        for key, value in flat(table, ("admin",)):
            if key != "admin":
                keys[key] = self._resolved(file.value(f"[clusters.{name}] {key}", value, at, key))
                continue
            if not isinstance(value, dict):
                given = file.value(f"[clusters.{name}] admin", value, at, key)
                raise bad_value(given, f"a table [clusters.{name}.admin]")
            admin = self.admin.setdefault(name, {})
            for sub, one in flat(value, ()):
                admin[sub] = self._resolved(file.value(f"[clusters.{name}.admin] {sub}", one, (*at, key), sub))

    def take_environment(self) -> None:
        for variable in sorted(self.env):
            if not variable.startswith(_PREFIX) or variable.startswith(_OF_PLAYBOOKS) or "__" not in variable:
                continue
            parts = variable.removeprefix(_PREFIX).lower().split("__")
            given = RawValue("", SecretText(self.env[variable]), f"environment {variable}", text=True)
            if parts[0] == "clusters" and len(parts) in (3, 4) and all(parts):
                self._put_cluster(parts[1:], given)
            elif parts[0] in SECTIONS and len(parts) == 2:
                plain = dataclasses.replace(given, value=self.env[variable], key=f"[{parts[0]}] {parts[1]}")
                self._put(parts[0], parts[1], plain)
            else:
                raise UsageError(
                    "unknown-config-key",
                    f"{given.origin}: names no section and key{nearest(parts[0], _ALL)}",
                    still_true="nothing was contacted or changed",
                    next_step="expected: KMIGRATE_<SECTION>__<KEY>, or KMIGRATE_CLUSTERS__<NAME>__[ADMIN__]<KEY>",
                )

    def _put_cluster(self, parts: list[str], given: RawValue) -> None:
        name = next((known for known in self.clusters if _plain(known) == parts[0]), parts[0])
        keys = self.clusters.setdefault(name, {})
        key = _matching(parts[-1], CLUSTER_KEYS)
        if len(parts) == 2:
            named = dataclasses.replace(given, key=f"[clusters.{name}] {key}", value=str(given.value))
            keys[key] = named
        elif parts[1] == "admin":
            admin = self.admin.setdefault(name, {})
            key = _matching(parts[-1], admin)
            admin[key] = dataclasses.replace(given, key=f"[clusters.{name}.admin] {key}")
        else:
            raise bad_value(dataclasses.replace(given, key=f"[clusters.{name}]"), "ADMIN between name and key")

    def _put(self, section: str, key: str, given: RawValue) -> None:
        known = {f.name: f for f in dataclasses.fields(SECTIONS[section])}
        if key not in known:
            raise UsageError(
                "unknown-config-key",
                f"{given.place}: {given.key}: no such key{_of_another_section(section, key) or nearest(key, known)}",
                still_true="nothing was contacted or changed",
                next_step=f"expected in [{section}]: {', '.join(sorted(known))}",
            )
        is_table = known[key].metadata.get("by_node") and isinstance(given.value, dict)
        secret = is_table and set(given.value) <= {"env", "file"}
        self.sections[section][key] = given if is_table and not secret else self._resolved(given)

    def _resolved(self, given: RawValue) -> RawValue:
        return resolve(given, self.env, self.folder)

    def origins(self) -> dict[str, str]:
        """Return the origin of every given key, by the name that a person uses."""
        tables: list[dict[str, RawValue]] = [*self.sections.values(), *self.clusters.values(), *self.admin.values()]
        return {given.key: given.origin for table in tables for given in table.values()}


def _unknown_section(section: str, place: str) -> UsageError:
    of_cluster = section in {key.partition(".")[0] for key in CLUSTER_KEYS} or section in CLUSTER_KEYS
    hint = ": keys of a cluster stand under [clusters.NAME]" if of_cluster else nearest(section, _ALL)
    return UsageError(
        "unknown-config-section",
        f"{place}: no such section [{section}]{hint}",
        still_true="nothing was contacted or changed",
        next_step="expected: [clusters.NAME], " + ", ".join(f"[{name}]" for name in SECTIONS),
    )


def flat(table: Mapping[str, Any], keep: Iterable[str], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield keys with their dots: TOML reads an unquoted `bootstrap.servers = …` as a table in a table."""
    for key, value in table.items():
        nested = isinstance(value, dict) and key not in keep and not set(value) <= {"env", "file"}
        if nested and value:
            yield from flat(value, (), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _of_another_section(section: str, key: str) -> str:
    """Return the section of a key that stands in a wrong section, '' for a key that no section has."""
    for other, kind in SECTIONS.items():
        if other != section and key in {f.name for f in dataclasses.fields(kind)}:
            return f": the key belongs in [{other}]"
    of_cluster = key in {each.partition(".")[0] for each in CLUSTER_KEYS} or key in CLUSTER_KEYS
    return ": keys of clients stand under [clusters.NAME]" if of_cluster else ""


def _plain(name: str) -> str:
    return name.lower().replace(".", "_").replace("-", "_")


def _matching(word: str, known: Iterable[str]) -> str:
    """Return the known key that a variable's underscores stand for, otherwise librdkafka's spelling with dots."""
    return next((key for key in known if _plain(key) == word), word.replace("_", "."))


def _section(kind: type[_S], given: Mapping[str, RawValue]) -> _S:
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(typing.cast("Any", kind))}
    return kind(**{key: _value(one, hints[key], fields[key].metadata) for key, one in given.items()})


def _value(given: RawValue, kind: type[Any], about: Mapping[str, Any]) -> Any:
    if not about.get("by_node"):
        return typed(given, kind, about)
    is_table = isinstance(given.value, dict) or (given.text and "=" in str(given.value))
    return _ports_by_node(given, about) if is_table else typed(given, int, about)


def _switch(given: RawValue, expected: str) -> bool:
    value = {"true": True, "false": False}.get(str(given.value).lower()) if given.text else given.value
    if not isinstance(value, bool):
        raise bad_value(given, expected)
    return value


def _texts(given: RawValue, about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a list of texts; a variable separates the texts by commas."""
    value = [part.strip() for part in str(given.value).split(",") if part.strip()] if given.text else given.value
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise bad_value(given, about["expected"])
    if about.get("regex"):
        for each in value:
            try:
                re.compile(each)
            except re.error as error:
                raise bad_value(given, about["expected"], f"{each!r} is no regular expression: {error}") from error
            if why := slow_part(each):
                raise bad_value(given, about["expected"], f"{each!r} may take for ever with a long name: {why}")
    return tuple(value)


def _ports_by_node(given: RawValue, about: Mapping[str, Any]) -> dict[int, int]:
    """Return a table of ports by node id; a variable has such a table as `1=9101,2=9102`."""
    table = given.value
    if given.text:
        table = {node.strip(): port.strip() for node, _, port in (one.partition("=") for one in str(table).split(","))}
    ports: dict[int, int] = {}
    for node, port in table.items():
        number = int(port) if given.text and re.fullmatch(r"[0-9]{1,5}", port) else port
        is_port = isinstance(number, int) and not isinstance(number, bool) and 0 < number <= about["high"]
        if not re.fullmatch(r"[0-9]{1,10}", node) or not is_port:
            raise bad_value(given, about["expected"], f"{node!r} = {port!r} is no node id with a port")
        if number in ports.values() or int(node) in ports:
            raise bad_value(given, about["expected"], f"{node} = {port}: the node id or the port stands there twice")
        ports[int(node)] = number
    return ports


def _quotes(given: RawValue, kind: type[Any]) -> str:
    """Return how to write a value whose quotes are missing, or too many; '' for any other value."""
    value = given.value
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return f'; a text stands in quotes: "{shown(given.key, value)}"'
    if kind in (int, float) and isinstance(value, str) and re.fullmatch(r"\d+(?:\.\d+)?", value):
        return f"; a number stands without quotes: {shown(given.key, value)}"
    return ""


def typed(given: RawValue, kind: type[Any], about: Mapping[str, Any]) -> Any:
    """Return the value of a key as the key's type, or raise the error that says what is expected."""
    value, expected = given.value, about["expected"]
    if kind is bool:
        return _switch(given, expected)
    if about.get("hidden") and isinstance(value, str):
        return SecretText(value)
    if typing.get_origin(kind) is tuple:
        return _texts(given, about)
    if given.text and kind in (int, float):
        try:
            value = kind(value)
        except ValueError:
            raise bad_value(given, expected) from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise bad_value(given, expected + _quotes(given, kind))
    low, high = about["low"], about["high"]
    if low is not None and not low <= value <= high:
        raise bad_value(given, f"{expected} ({low} to {high})")
    choices = about.get("choices")
    if choices and value not in choices:
        raise bad_value(given, f"{expected} (one of: {', '.join(choices)})")
    return value
