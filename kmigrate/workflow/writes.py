"""A verb's intents, written one after the other; each is decided on the state as it is when it is written.

The guards of a verb look for seconds, and others write meanwhile: the mirror what it found in the source's configs, a
person another intent. So a decision says again what it needs of the record: it changes what stands then, or says that
nothing is left to do (None), or refuses. It is never made on a record of before, and never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

from kmigrate.errors import Refused
from kmigrate.state.log import Decide, StateLog

__all__ = ["changed_meanwhile", "write_each"]


async def write_each(log: StateLog, writes: Iterable[tuple[str, Decide]], done: list[str] | None = None) -> None:
    """Write intents, each with the change that it makes in words; a refusal says which of them were written before.

    `done` is for a verb that does something else in between: what it has written so far, and the words of these.
    """
    done = [] if done is None else done
    for change, decide in writes:
        try:
            await log.append(decide)
        except Refused as refused:
            if not done:
                raise
            raise Refused(
                refused.ref,
                refused.what,
                still_true=f"done before that, and not taken back: {'; '.join(dict.fromkeys(done))}",
                next_step=refused.next_step,
            ) from refused
        done.append(change)


def changed_meanwhile(what: str) -> Refused:
    """Of a decision that goes with nothing but the record that was judged."""
    return Refused(
        "changed-meanwhile",
        f"{what} changed while it was looked at",
        still_true="nothing was changed by this call",
        next_step="repeat it",
    )
