"""`kmigrate rollback`: promoted topics go back to the source."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import LagThreshold, Link, NoWait, PlanOnly, Timeout, Topics, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.waiting import CONTROLLER_GOES_ON, interruptible, need_controller, need_mirror, watched
from kmigrate.cli.commands.promote import Holds, flip_json, longest_holds, report_line
from kmigrate.cli.commands.target_lost import report_target_lost
from kmigrate.cli.views.plans import plan_answer, plan_view
from kmigrate.cli.views.tables import phase_text, table
from kmigrate.model.record_json import encode_record
from kmigrate.model.records import RollbackTerms, TopicRecord
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms
from kmigrate.workflow import verbs

__all__ = ["app", "rollback"]

app = typer.Typer()


@command(app, "rollback")
async def rollback(
    call: Call,
    topics: Topics = None,
    link: Link = None,
    lag_threshold: LagThreshold = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take back a rollback that waits for its fence: topics stay promoted.")
    ] = False,
    target_lost: Annotated[
        bool,
        typer.Option("--target-lost", help="The target is gone: report what the source holds, and change nothing."),
    ] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="With --target-lost: the source (else the only other cluster).")
    ] = None,
    routers_stopped: Annotated[
        bool,
        typer.Option(
            "--routers-stopped", help="With --target-lost: no router runs, whatever takes connections at its address."
        ),
    ] = False,
    release_groups: Annotated[
        bool,
        typer.Option(
            "--release-groups", help="With --target-lost: let members into the promoted groups at the source."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="With --target-lost: write the JSON to a file, too.")
    ] = None,
    timeout: Timeout = 300.0,
    no_wait: NoWait = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Switch promoted topics back to the source.

    Fence, drain, barrier, flip: writes through the router are held for some milliseconds and then go to the source.
    The topics are mirrored again afterwards, and can be promoted again. Needs the way back that the promote opened.
    Groups whose offsets are committed in the topics' transactions go back with the topics.
    With --target-lost, where no broker of the target answers and all routers are stopped: says up to which offset the
    source is complete, what is missing, and what to do.
    """
    if target_lost:
        return await report_target_lost(
            call, topics or (), link, source, out, routers_stopped=routers_stopped, release=release_groups
        )
    topics = call.required_list(topics, "TOPIC", "the topics to roll back")
    async with call.connections() as connections:
        record = verbs.resolve_link(connections.log.state, call.link(link))
        name = record.name
        if cancel:
            look = partial(verbs.cancel_rollback, connections, name, topics, who=call.who)
            return plan_answer(await call.carry_out(look, plan))
        terms = RollbackTerms(
            now_ms(),
            record.settings.lag_threshold if lag_threshold is None else lag_threshold,
            record.settings.pending_timeout_s,
            record.settings.fence_timeout_s,
        )
        look = partial(verbs.roll_back_topics, connections, name, topics, terms, who=call.who)
        question = f"Roll {', '.join(topics)} back? New writes go to the source afterwards"
        made = await call.carry_out(look, plan, yes, question)
        if plan or no_wait:
            return plan_answer(made)
        again, back = advised("rollback", name, *topics), advised("rollback --cancel", name, *topics)
        way_on = f"to wait again: {again}; to take it back while it waits: {back}"
        with interruptible(f"the rollback of {', '.join(topics)}", CONTROLLER_GOES_ON, way_on):
            if made.changes:
                await need_mirror(call, connections, name, timeout)
                await need_controller(call, connections, timeout)
            groups = [record.group for record in verbs.coupled_groups(connections.log.state, name, topics)]
            with watched(call, connections, name, "topic", topics) as say:
                records = await verbs.wait_rolled_back(connections, name, topics, timeout, say)
            with watched(call, connections, name, "group", groups) as say:
                opened = await verbs.wait_groups_rolled_back(connections, name, groups, timeout, say)
        holds = await longest_holds(connections, records)
        json = {
            **made.as_json(),
            "topics": [flip_json(record, record.rolled_back_ms, holds[record.key]) for record in records],
            "groups": [encode_record(record) for record in opened],
        }
        return Answer(json, Group(plan_view(made), _view(records, holds)))


def _view(records: list[TopicRecord], holds: Holds) -> RenderableType:
    made = table("topic", "phase", "fence to flip", "longest hold", "resumed at")
    for record in records:
        held = holds[record.key]
        made.add_row(
            record.topic,
            phase_text(record.phase),
            f"{record.rolled_back_ms - record.fenced_ms} ms",
            f"{max(held.values()):.1f} ms" if held else "nothing was held",
            ", ".join(f"{p}:{offset:,}" for p, offset in sorted(record.resumed.items())),
        )
    return Group(made, report_line(records))
