"""The settings of a link: defaults from the sections of the configuration, and the values of `--set KEY=VALUE`.

A key of a section whose metadata say `of_link` has the same name, type and bounds as a setting of a link.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from kmigrate.config.load import SECTIONS, typed
from kmigrate.config.raw_value import RawValue, bad_value
from kmigrate.config.settings import Settings
from kmigrate.errors import UsageError
from kmigrate.model.link_settings import DefaultsFrom, LinkSettings
from kmigrate.model.nearest import nearest

__all__ = ["KEYS", "altered", "contradictions", "new_link_settings"]

KEYS: Mapping[str, str] = {
    each.name: section
    for section, kind in SECTIONS.items()
    for each in dataclasses.fields(kind)
    if each.metadata.get("of_link")
}
"""The section of each setting."""


def new_link_settings(settings: Settings) -> LinkSettings:
    """Return the settings of a link that is created without further words."""
    return _made(LinkSettings(), {key: getattr(getattr(settings, section), key) for key, section in KEYS.items()})


def altered(before: LinkSettings, given: Sequence[str]) -> LinkSettings:
    """Return the settings with the values of `--set`; each value of a list has a `--set` of its own."""
    values: dict[str, list[str]] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or key not in KEYS:
            raise UsageError(
                "unknown-link-setting",
                f"--set {each}: " + (f"no setting {key}{nearest(key, KEYS)}" if equals else "no KEY=VALUE"),
                still_true="nothing was contacted or changed",
                next_step=f"expected: KEY=VALUE, with one of these keys: {', '.join(sorted(KEYS))}",
            )
        values.setdefault(key, []).append(value)
    return _made(before, {key: _value(key, texts) for key, texts in values.items()})


def contradictions(settings: Settings, link: LinkSettings) -> dict[str, str]:
    """Return the keys that the configuration names with other values than the link has: both values, for a person."""
    ours = new_link_settings(settings)
    named = [key for key in ours.differing(link) if f"[{KEYS[key]}] {key}" in settings.origins]
    return {key: f"[{KEYS[key]}] {key} is {ours.text(key)}, and the link has {link.text(key)}" for key in named}


def _value(key: str, texts: Sequence[str]) -> Any:
    kind = SECTIONS[KEYS[key]]
    of = typing.get_type_hints(kind)[key]
    about = next(each.metadata for each in dataclasses.fields(kind) if each.name == key)
    if typing.get_origin(of) is tuple:
        return typed(RawValue(key, [text for text in texts if text], "--set"), of, about)
    if len(texts) > 1:
        raise bad_value(RawValue(key, texts[1], "--set"), "one value", "given twice")
    return typed(RawValue(key, texts[0], "--set", text=True), of, about)


def _made(before: LinkSettings, values: Mapping[str, Any]) -> LinkSettings:
    made = dataclasses.replace(before, **values)
    return dataclasses.replace(made, use_defaults_from=DefaultsFrom(made.use_defaults_from))
