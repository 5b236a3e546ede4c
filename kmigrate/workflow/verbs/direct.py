"""Findings of a promote's plan about direct writers."""

from __future__ import annotations

from collections.abc import Sequence

from kmigrate.workflow.base.plan import Finding, Level, warn
from kmigrate.workflow.promote.direct_writers import Straggler

__all__ = ["direct_findings"]

_MOST = 20
"""Maximum number of direct writers that are named; those in the way come first."""
_NEXT = "restart that producer with the router's address; where its writes may be lost: --accept-direct-writers"


def direct_findings(found: Sequence[Straggler], *, accepted: bool) -> list[Finding]:
    """Name the direct writers of one topic: recent writers refuse the promote, unless a person accepts them.

    A writer that has been silent for long enough is named, too: that writer may come back.
    """
    lately = [each for each in found if each.in_the_way]
    gone = sorted((each for each in found if not each.in_the_way), key=lambda each: each.silent_ms)
    level: Level = "warn" if accepted else "refuse"
    ref = "direct-writers-accepted" if accepted else "direct-writers"
    named = [Finding(level, ref, each.reason, "" if accepted else _NEXT) for each in lately[:_MOST]]
    if len(lately) > _MOST:
        named.append(Finding(level, ref, f"{len(lately) - _MOST} more direct writers of {lately[0].topic}", _NEXT))
    room = max(0, _MOST - len(lately))
    seen = "make sure that this producer has the router's address by now"
    named += [warn("direct-writers-seen", each.text, seen) for each in gone[:room]]
    if len(gone) > room:
        what = f"{len(gone) - room} more direct writers of {gone[0].topic} have been seen during the link"
        named.append(warn("direct-writers-seen", what, f"kmigrate topic show {gone[0].topic}"))
    return named
