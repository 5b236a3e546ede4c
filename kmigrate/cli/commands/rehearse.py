"""`kmigrate rehearse`: a promote and its rollback on shadow topics, with a copy of the real traffic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import Link, NewTopics, PlanOnly, PrintAcls, Timeout, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.waiting import interruptible
from kmigrate.cli.views.acls import ClusterAcls, acls_answer
from kmigrate.cli.views.plans import findings_view, plan_answer, plan_view
from kmigrate.cli.views.rehearsals import rehearsal_view
from kmigrate.model.grants import REHEARSAL_GRANTS
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Plan, warn
from kmigrate.workflow.base.rights import Wanted
from kmigrate.workflow.rehearsal.cleaning import clean
from kmigrate.workflow.rehearsal.outcome import Rehearsed
from kmigrate.workflow.rehearsal.plan import RehearsalPlan, plan_rehearsal
from kmigrate.workflow.rehearsal.run import REMOVED, RehearsalTerms
from kmigrate.workflow.rehearsal.run import rehearse as carry_out
from kmigrate.workflow.rehearsal.running import dead_rehearsals, running_rehearsals

__all__ = ["app", "rehearse"]

app = typer.Typer()


@command(app, "rehearse")
async def rehearse(
    call: Call,
    topics: NewTopics = None,
    link: Link = None,
    traffic: Annotated[
        float, typer.Option("--traffic", min=0.0, help="Seconds of traffic before and after each switch.")
    ] = 5.0,
    clean_up: Annotated[
        bool, typer.Option("--clean", help="Remove what killed rehearsals have left, and rehearse nothing.")
    ] = False,
    timeout: Timeout = 120.0,
    print_acls: PrintAcls = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Rehearse a promote and its rollback on shadow topics, with a copy of the real traffic.

    The shadow topics have the partitions and configs of the real topics. The running mirrors, routers and controllers
    mirror, promote and roll back the shadow topics. Both clusters are compared, and everything is removed. The real
    topics and groups are only read. The call also names what the promote of the real topics would meet now. The exit
    code is 3 if the real promote would be refused, and 4 if a record of the shadow topics differs. With --print-acls
    the call prints only the rights that a rehearsal needs beside the usual rights.
    """
    if print_acls:
        async with call.connections() as connections:
            return await _rights(connections, call.link(link))
    if clean_up:
        async with call.connections() as connections:
            return plan_answer(await _clean(call, connections, plan=plan))
    topics = call.required_list(topics, "TOPIC", "the topics to rehearse")
    async with call.connections() as connections:
        name = call.link(link)
        with call.out.waiting("looking at the topics"):
            planned = await plan_rehearsal(connections, name, topics, call.who)
        if plan:
            return _answer(planned, None)
        question = f"Make shadows of {', '.join(topics)} on both clusters, and copy their traffic?"
        await call.confirm(yes, question, planned.plan.warnings)
        await _clean(call, connections, plan=False)
        terms = RehearsalTerms(traffic, timeout, min(timeout, call.settings.defaults.process_wait_s), call.who)
        with interruptible("the rehearsal", REMOVED, "repeat the rehearsal"), call.out.waiting("rehearsing") as waiting:
            rehearsed = await carry_out(connections, planned, terms, waiting.say)
        return _answer(planned, rehearsed)


async def _rights(connections: Connections, link: str | None) -> Answer:
    """Return the rights of a rehearsal at both clusters of a link."""
    record = verbs.resolve_link(connections.log.state, link)
    source, _ = await connections.source(record)
    clusters = {"source": source.settings, "target": connections.target.settings}
    rights = {side: tuple(grant for grant in REHEARSAL_GRANTS if grant.side == side) for side in clusters}
    return acls_answer([ClusterAcls(cluster, Wanted(side), rights[side]) for side, cluster in clusters.items()])


async def _clean(call: Call, connections: Connections, *, plan: bool) -> Plan:
    """Remove the rehearsals that nobody runs any more."""
    dead = dead_rehearsals(connections.log)
    found = [
        warn("rehearsal-runs", f"rehearsal {name} is still running: nothing of it is removed", "wait for its end")
        for name in running_rehearsals(connections.log)
    ]
    for link in () if plan else dead:
        with call.out.waiting(f"removing rehearsal {link.name}"):
            await clean(connections, link)
    looked = Plan.of("rehearse", [f"remove rehearsal {link.name}" for link in dead], found)
    return looked if plan else looked.done()


def _answer(planned: RehearsalPlan, rehearsed: Rehearsed | None) -> Answer:
    plan = planned.plan if rehearsed is None else planned.plan.done()
    json = {
        **plan.as_json(),
        "real": [each.as_json() for each in planned.real],
        "rehearsal": asdict(rehearsed) | {"equal": rehearsed.equal} if rehearsed is not None else None,
    }
    views = [plan_view(plan), *([rehearsal_view(rehearsed)] if rehearsed is not None else [])]
    view = Group(*views, findings_view(planned.real))
    refused = any(each.level == "refuse" for each in planned.real)
    if rehearsed is not None and not rehearsed.equal:
        return Answer(json, view, Exit.PARITY_MISMATCH)
    return Answer(json, view, Exit.REFUSED if refused else Exit.OK)
