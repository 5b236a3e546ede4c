"""Names as a shell takes them, so that a call which we advise can be made word for word.

A group's name may hold anything: spaces, quotes, a dollar sign; and names may begin with a dash. A link's name is one
word (`check_link_name`), and is always said: there may be a second link by the time that the call is made.
"""

from __future__ import annotations

import shlex
import unicodedata

__all__ = ["advised", "as_words", "delete_unneeded", "is_harmless", "one_line"]

_ACTING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of what a terminal or a browser acts on instead of showing: control characters, line breaks,
characters that turn the order of a line or have no width, halves of surrogate pairs."""


def is_harmless(character: str) -> bool:
    """Return whether a character is only shown, wherever the character is told."""
    return unicodedata.category(character) not in _ACTING


def one_line(text: str) -> str:
    """Return a text as one line that can be shown anywhere: a character that acts is told by its escape in Python."""
    if text.isprintable():
        return text
    return "".join(each if is_harmless(each) else each.encode("unicode_escape").decode() for each in text)


def as_words(*names: str) -> str:
    """The names as the last words of a call."""
    words = " ".join(map(_quoted, names))
    return f"-- {words}" if any(name.startswith("-") for name in names) else words


def _quoted(name: str) -> str:
    """Return a name as a shell takes it: by escapes where the characters themselves cannot be shown, in one line."""
    if all(map(is_harmless, name)):
        return shlex.quote(name)
    escaped = one_line(name.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{escaped}'"


def advised(verb: str, link: str, *names: str) -> str:
    """The call of a verb (with its flags) on names of a link."""
    return f"kmigrate {verb} --link {link} {as_words(*names)}"


def delete_unneeded(topic: str) -> str:
    """Return the advice to delete a topic of the target, with the condition that nobody needs the topic's records."""
    return f"if no client and no other link needs topic {topic} on the target, delete the topic there"
