"""Quotes names for a shell, so that a person can run an advised command word for word.

A group's name may hold anything: spaces, quotes, a dollar sign. Names may begin with a dash. A link's name is a single
word (`check_link_name`). Advice always names the link: there may be a second link by the time the command is run.
"""

from __future__ import annotations

import shlex
import unicodedata

__all__ = ["advised", "as_words", "delete_unneeded", "is_harmless", "one_line", "quoted"]

_ACTING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories on which terminals or browsers act: controls, breaks, reordering, zero width, half surrogates."""


def is_harmless(character: str) -> bool:
    """Return whether a character is only shown, wherever a text with the character appears."""
    return unicodedata.category(character) not in _ACTING


def one_line(text: str) -> str:
    """Return a text as one line that can be shown anywhere: Python's escape replaces a character that acts."""
    if text.isprintable():
        return text
    return "".join(each if is_harmless(each) else each.encode("unicode_escape").decode() for each in text)


def as_words(*names: str) -> str:
    """Return the names as the last words of a command."""
    words = " ".join(map(quoted, names))
    return f"-- {words}" if any(name.startswith("-") for name in names) else words


def quoted(name: str) -> str:
    """Return a name quoted for a shell, on one line; escapes replace characters that cannot be shown."""
    if all(map(is_harmless, name)):
        return shlex.quote(name)
    escaped = one_line(name.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{escaped}'"


def advised(verb: str, link: str, *names: str) -> str:
    """Return the command of a verb (with its flags) for names of a link."""
    return f"kmigrate {verb} --link {link} {as_words(*names)}"


def delete_unneeded(topic: str) -> str:
    """Return the advice to delete a topic of the target, with the condition that nobody needs the topic's records."""
    return f"if no client and no other link needs topic {topic} on the target, delete the topic there"
