"""Common options that stand before the verb: `kmigrate --config FILE status` means `kmigrate status --config FILE`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["behind_verb"]

_WITH_VALUE = frozenset({"--config", "--target"})
_ALONE = frozenset({"--json", "--debug"})


def behind_verb(words: Sequence[str]) -> list[str]:
    """Return the words of a call with leading common options moved behind the verb and its names.

    The last word of a call that a shell completes may be an option without its value, so nothing is put behind that.
    """
    first = 0
    while first < len(words):
        option, sign, _ = words[first].partition("=")
        if option in _WITH_VALUE:
            first += 1 if sign else 2
        elif option in _ALONE:
            first += 1
        else:
            break
    leading, rest = words[:first], list(words[first:])
    if not rest:
        return list(words)
    end = next((place for place, word in enumerate(rest) if word.startswith("-")), len(rest))
    return [*rest[:end], *leading, *rest[end:]]
