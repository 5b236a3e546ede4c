"""Writes the intents of a verb in order, each decided on the state of the moment of the write.

The guards of a verb take seconds, and others write meanwhile: the mirror writes what the source's configs are, and a
person may write another intent. So each decision checks again what the intent needs of the record. The decision changes
the current record, returns None if nothing is left to do, or refuses. No decision rests on an older record, and no
intent is dropped in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from kmigrate.errors import Interrupted, KmigrateError, Refused
from kmigrate.state.log import Decide, StateLog

__all__ = ["changed_meanwhile", "telling", "write_each"]


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
