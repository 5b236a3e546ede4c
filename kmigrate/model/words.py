"""Names as a shell takes them, so that a call which we advise can be made word for word.

A group's name may hold anything: spaces, quotes, a dollar sign; and names may begin with a dash. A link's name is one
word (`check_link_name`), and is always said: there may be a second link by the time that the call is made.
"""

from __future__ import annotations

import shlex

__all__ = ["advised", "as_words", "delete_unneeded"]


def as_words(*names: str) -> str:
    """The names as the last words of a call."""
    words = " ".join(map(shlex.quote, names))
    return f"-- {words}" if any(name.startswith("-") for name in names) else words


def advised(verb: str, link: str, *names: str) -> str:
    """The call of a verb (with its flags) on names of a link."""
    return f"kmigrate {verb} --link {link} {as_words(*names)}"


def delete_unneeded(topic: str) -> str:
    """Return the advice to delete a topic of the target, with the condition that nobody needs the topic's records."""
    return f"if no client and no other link needs topic {topic} on the target, delete the topic there"
