"""The shape of every verb: the verb looks and proposes, a person may say no, and the proposal is carried out.

A look reads the state log and the clusters that its guards need, and changes nothing. The look raises a refusal, or
returns a proposal: changes in words, findings of the guards, and the writes. `--plan` ends at the proposal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from kmigrate.model.nearest import looks_like_expression, name_hint
from kmigrate.model.records import GroupRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.state.log import Decide, StateLog
from kmigrate.workflow.base.plan import Finding, Plan, refuse, write_each

__all__ = ["Judged", "Noun", "Proposal", "Write", "by_regex", "not_mirrored", "owned", "propose", "refuse_if"]

Write = tuple[str, Decide]
"""A change in words, and the decision that writes the change."""
R = TypeVar("R", TopicRecord, GroupRecord)
Noun = Literal["topic", "group"]


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
    """Return the proposal of ordered writes, or raise the refusal; `changes` replaces the words of the writes."""
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
    """A verb's changes to topics or groups: each record is judged at the look, and as it stands then at its write."""

    verb: str
    noun: Noun
    link: str
    find: Callable[[State, str, str], R | None]
    """Function that returns the record of a link's topic or group."""
    guard: Callable[[R], Finding | None]
    """Function that returns why a record must not, or need not, be changed."""
    change: Callable[[R], R]

    @staticmethod
    def topics(
        verb: str,
        link: str,
        guard: Callable[[TopicRecord], Finding | None],
        change: Callable[[TopicRecord], TopicRecord],
    ) -> Judged[TopicRecord]:
        return Judged(verb, "topic", link, State.topic, guard, change)

    @staticmethod
    def groups(
        verb: str,
        link: str,
        guard: Callable[[GroupRecord], Finding | None],
        change: Callable[[GroupRecord], GroupRecord],
    ) -> Judged[GroupRecord]:
        return Judged(verb, "group", link, State.group, guard, change)

    def look(self, state: State, names: Iterable[str]) -> tuple[dict[str, R], list[Finding]]:
        """Return the records to change, by name, and the findings about the other records."""
        judged = {name: self._judge(state, name) for name in dict.fromkeys(names)}
        records = {name: each for name, each in judged.items() if not isinstance(each, Finding)}
        return records, [each for each in judged.values() if isinstance(each, Finding)]

    def write(self, name: str) -> Decide:
        """Return the decision that changes a record, refuses, or does nothing where nothing is left to do."""

        def decide(state: State) -> R | None:
            judged = self._judge(state, name)
            if isinstance(judged, Finding):
                refuse_if(self.verb, judged)
                return None
            changed = self.change(judged)
            return None if changed == judged else changed

        return decide

    def _judge(self, state: State, name: str) -> R | Finding:
        record = self.find(state, self.link, name)
        return not_mirrored(self.noun, self.link, name, state) if record is None else self.guard(record) or record


def not_mirrored(noun: Noun, link: str, name: str, state: State) -> Finding:
    """Return the refusal of a topic or group that the link does not mirror, with the name that was meant."""
    names = [each.topic for each in state.topics(link)] if noun == "topic" else [g.group for g in state.groups(link)]
    what = f"{noun} {name} is not mirrored by link {link}{name_hint(name, names)}"
    if looks_like_expression(name):
        return refuse("not-mirrored", what, f"name each {noun}, or mirror by expression: {by_regex(noun, link, name)}")
    return refuse("not-mirrored", what, advised(f"{noun} mirror", link, name))


def by_regex(noun: Noun, link: str, expression: str) -> str:
    """Return the command that mirrors by an expression."""
    return advised(f"{noun} mirror --regex", link, expression)


def owned(noun: Noun, name: str, owner: TopicRecord | GroupRecord) -> Finding:
    """Return the refusal to another link that wants the topic or group of this record."""
    if not owner.forgotten_ms:
        what = f"{noun} {name} belongs to link {owner.link}"
        return refuse(f"{noun}-owned", what, f"a {noun} of the target has one source: leave it to that link")
    return refuse(
        "being-forgotten",
        f"link {owner.link} is forgetting {noun} {name}: what was for its mirror is not all put back yet",
        f"{advised(f'{noun} forget', owner.link, name)}, then repeat",
    )
