"""Carries out what a verb proposes, as the command line does without a question."""

from __future__ import annotations

from collections.abc import Awaitable

from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.verbs import Proposal


async def run_verb(look: Awaitable[Proposal], *, plan: bool = False) -> Plan:
    """Return the plan of a verb: carried out, or with `plan` as the verb proposes it."""
    proposal = await look
    return proposal.plan if plan else await proposal.carry_out()
