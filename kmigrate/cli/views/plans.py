"""A plan for a person: the changes done or planned, and the guards' findings."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType

from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.workflow.base.plan import Finding, Plan

__all__ = ["findings_view", "plan_answer", "plan_view"]

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "refuse": ("✗", "bold red")}


def plan_answer(plan: Plan) -> Answer:
    """Return the answer of a verb whose result is its plan."""
    return Answer(plan.as_json(), plan_view(plan))


def plan_view(plan: Plan) -> RenderableType:
    """Return a line per change and a line per finding."""
    rows: list[RenderableType] = []
    if plan.changes:
        rows.append(Text(f"{plan.verb}: {'done' if plan.applied else 'would'}", style="bold"))
        rows += [Text.assemble(("  • ", "dim"), change) for change in plan.changes]
    elif not plan.findings:
        rows.append(Text(f"{plan.verb}: nothing to do"))
    return Group(*rows, findings_view(plan.findings))


def findings_view(findings: Iterable[Finding]) -> RenderableType:
    rows: list[RenderableType] = []
    for finding in findings:
        mark, style = _MARKS[finding.level]
        rows.append(Text.assemble((f"{mark} ", style), finding.what))
        if finding.next_step and finding.level != "ok":
            rows.append(Text(f"    next: {finding.next_step}", style="dim"))
    return Group(*rows)
