"""A verb's intents, written one after the other; each is decided on the state as it is when it is written.

The guards of a verb look for seconds, and others write meanwhile: the mirror what it found in the source's configs, a
person another intent. So a decision says again what it needs of the record: it changes what stands then, or says that
nothing is left to do (None), or refuses. It is never made on a record of before, and never dropped in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from kmigrate.errors import Interrupted, KmigrateError, Refused
from kmigrate.state.log import Decide, StateLog

__all__ = ["changed_meanwhile", "telling", "write_each"]


async def write_each(log: StateLog, writes: Iterable[tuple[str, Decide]], done: list[str] | None = None) -> None:
    """Write intents, each with the change that it makes in words; an error says which of them were written before.

    `done` is for a verb that does something else in between: what it has written so far, and the words of these.
    """
    done = [] if done is None else done
    with telling(done):
        for change, decide in writes:
            await log.append(decide)
            done.append(change)


@contextmanager
def telling(done: Sequence[str]) -> Iterator[None]:
    """Have whatever ends a verb half way, Ctrl-C too, say what was done before; nobody else knows it."""
    try:
        yield
    except KmigrateError as error:
        if done:
            holds = error.still_true if not error.still_true.startswith("nothing was changed") else ""
            error.still_true = "; ".join(filter(None, (_told(done), holds)))
        raise
    except asyncio.CancelledError:
        if not done:
            raise
        raise Interrupted(
            "interrupted",
            "stopped half way",
            still_true=f"{_told(done)}; what was being written just then may be written, too",
            next_step="repeat it: what is done already is left as it is",
        ) from None


def _told(done: Iterable[str]) -> str:
    return f"done before that, and not taken back: {'; '.join(dict.fromkeys(done))}"


def changed_meanwhile(what: str) -> Refused:
    """Of a decision that goes with nothing but the record that was judged."""
    return Refused(
        "changed-meanwhile",
        f"{what} changed while it was looked at",
        still_true="nothing was changed by this call",
        next_step="repeat it",
    )
