"""The shape of every verb: the verb looks and proposes, a person may say no, and the proposal is carried out.

A look reads the state log and the clusters that its guards need, and changes nothing. The proposal has the changes in
words, the findings of the guards, and the writes. `--plan` ends at the proposal. A proposal with a refusal is never
returned: the look raises the refusal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from kmigrate.model.record_json import Record
from kmigrate.model.state import State
from kmigrate.state.log import Decide, StateLog
from kmigrate.workflow.base.plan import Finding, Plan
from kmigrate.workflow.base.writes import write_each

__all__ = ["Judged", "Proposal", "Write", "propose", "refuse_if"]

Write = tuple[str, Decide]
"""A change in words, and the decision that writes the change."""
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The plan of a verb, and the function that carries the plan out; the function returns further findings."""

    plan: Plan
    act: Callable[[], Awaitable[Iterable[Finding]]]

    async def carry_out(self) -> Plan:
        plan, found = self.plan, await self.act()
        return replace(plan, findings=(*plan.findings, *(each for each in found if each not in plan.findings))).done()


def propose(
    log: StateLog,
    verb: str,
    findings: Iterable[Finding],
    writes: Sequence[Write] = (),
    changes: Iterable[str] | None = None,
) -> Proposal:
    """Return the proposal of ordered writes, or raise the refusal that the findings demand.

    `changes` are the changes in words where the words of the writes do not say all.
    """
    plan = Plan.of(verb, (words for words, _ in writes) if changes is None else changes, findings)
    plan.refuse()

    async def act() -> Iterable[Finding]:
        await write_each(log, writes)
        return ()

    return Proposal(plan, act)


def refuse_if(verb: str, *against: Finding | None) -> None:
    """Raise the refusal that the findings demand; a decision calls this function at the moment of its write."""
    Plan.of(verb, [], filter(None, against)).refuse()


@dataclass(frozen=True, slots=True)
class Judged(Generic[R]):
    """The changes of a verb to single records: each record is judged at the look, and again at its write.

    Others may have changed the record since the look, so the write changes the record as it stands then.
    """

    verb: str
    find: Callable[[State, str], R | None]
    """Function that returns a record by the name of its topic or group."""
    guard: Callable[[str, R | None], Finding | None]
    """Function that returns why a record must not, or need not, be changed."""
    change: Callable[[R], R]

    def look(self, state: State, names: Iterable[str]) -> tuple[dict[str, R], list[Finding]]:
        """Return the records to change, by name, and the findings about the other records."""
        found: list[Finding] = []
        records: dict[str, R] = {}
        for name in dict.fromkeys(names):
            record = self.find(state, name)
            against = self.guard(name, record)
            if against is not None:
                found.append(against)
            elif record is not None:
                records[name] = record
        return records, found

    def write(self, name: str) -> Decide:
        """Return the decision that changes a record, refuses, or does nothing where nothing is left to do."""

        def decide(state: State) -> R | None:
            record = self.find(state, name)
            against = self.guard(name, record)
            refuse_if(self.verb, against)
            changed = record if record is None or against is not None else self.change(record)
            return None if changed == record else changed

        return decide
