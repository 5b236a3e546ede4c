"""The changes that a verb would make and the findings of its guards, as one value that `--plan` prints.

The real run writes these intents in order. Guards take seconds, and the mirror or a person may write meanwhile. So each
decision judges the present record: changes it, returns None if nothing is left to do, or refuses. No intent is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from kmigrate.errors import Interrupted, KmigrateError, Refused
from kmigrate.state.log import Decide, StateLog

__all__ = ["Finding", "Level", "Plan", "changed_meanwhile", "ok", "refuse", "telling", "warn", "write_each"]

Level = Literal["ok", "warn", "refuse"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one guard."""

    level: Level
    ref: str
    what: str
    next_step: str = ""

    def as_json(self) -> dict[str, str]:
        return {"level": self.level, "ref": self.ref, "what": self.what, "next": self.next_step}


def ok(ref: str, what: str, next_step: str = "") -> Finding:
    """Return a finding that nothing is in the way."""
    return Finding("ok", ref, what, next_step)


def warn(ref: str, what: str, next_step: str = "") -> Finding:
    """Return a finding that a person should read before a yes."""
    return Finding("warn", ref, what, next_step)


def refuse(ref: str, what: str, next_step: str = "") -> Finding:
    """Return a finding that refuses the verb."""
    return Finding("refuse", ref, what, next_step)


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes and findings of a verb; `applied` is true once the changes are made."""

    verb: str
    changes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    applied: bool = False

    @property
    def warnings(self) -> list[str]:
        """The warnings that a person should read before a yes, with what to do about them."""
        return [f.what + (f" ({f.next_step})" if f.next_step else "") for f in self.findings if f.level == "warn"]

    def refuse(self, still_true: str = "nothing was changed") -> None:
        """Raise the refusal that the findings demand: the JSON has all findings, the text has a few of each kind."""
        against = [f for f in self.findings if f.level == "refuse"]
        if not against:
            return
        of_kind = {ref: [f for f in against if f.ref == ref] for ref in dict.fromkeys(f.ref for f in against)}
        refused = Refused(
            against[0].ref,
            "; ".join(part for found in of_kind.values() for part in _few(f.what for f in found)),
            still_true=still_true,
            next_step="; ".join(part for found in of_kind.values() for part in _few(f.next_step for f in found)),
        )
        refused.findings = [f.as_json() for f in self.findings]
        raise refused

    def done(self) -> Plan:
        return replace(self, applied=True)

    def as_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "applied": self.applied,
            "changes": list(self.changes),
            "findings": [f.as_json() for f in self.findings],
        }

    @staticmethod
    def of(verb: str, changes: Iterable[str], findings: Iterable[Finding] = ()) -> Plan:
        return Plan(verb, tuple(changes), tuple(findings))


_FEW = 5
"""Maximum number of findings of a kind in a text: a person who gets a hundred sentences in a row reads none."""


def _few(sentences: Iterable[str]) -> list[str]:
    each = [*dict.fromkeys(filter(None, sentences))]
    return each if len(each) <= _FEW + 1 else [*each[:_FEW], f"and {len(each) - _FEW} more of the kind"]


async def write_each(log: StateLog, writes: Iterable[tuple[str, Decide]], done: list[str] | None = None) -> None:
    """Write intents, each with the change in words, which `done` collects; an error names the changes made before."""
    done = [] if done is None else done
    with telling(done):
        for change, decide in writes:
            await log.append(decide)
            done.append(change)


@contextmanager
def telling(done: Sequence[str]) -> Iterator[None]:
    """Have any error that ends a verb half way, Ctrl-C included, name what was done before; nobody else knows."""
    try:
        yield
    except KmigrateError as error:
        if done:
            still_true = error.still_true if not error.still_true.startswith("nothing was changed") else ""
            error.still_true = "; ".join(filter(None, (_done_before(done), still_true)))
        raise
    except asyncio.CancelledError:
        if not done:
            raise
        raise Interrupted(
            "interrupted",
            "stopped half way",
            still_true=f"{_done_before(done)}; what was being written just then may be written, too",
            next_step="repeat it: what is done already is left as it is",
        ) from None


def _done_before(done: Iterable[str]) -> str:
    return f"done before that, and not taken back: {'; '.join(dict.fromkeys(done))}"


def changed_meanwhile(what: str) -> Refused:
    """Return the refusal of a decision that holds only for the record that was judged."""
    return Refused(
        "changed-meanwhile",
        f"{what} changed while it was looked at",
        still_true="nothing was changed by this call",
        next_step="repeat it",
    )
