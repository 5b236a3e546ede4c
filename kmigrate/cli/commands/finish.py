"""`kmigrate link finish`: lets clients leave the routers, and waits until the last client has left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import AcceptMisplaced, LinkName, NoWait, PlanOnly, Timeout, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.waiting import interruptible
from kmigrate.cli.commands.link import DeliveryTimeout, app, delivery_seconds
from kmigrate.cli.views.plans import plan_answer, plan_view
from kmigrate.cli.views.routers import clients_table, ending
from kmigrate.model.routes import finished
from kmigrate.workflow import verbs
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads, host_and_port

__all__ = ["app", "finish"]


@command(app, "finish")
async def finish(
    call: Call,
    name: LinkName = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", help="Bootstrap addresses of the clients (else of the routers)."),
    ] = None,
    delivery_timeout: DeliveryTimeout = None,
    clients_known: Annotated[
        bool,
        typer.Option("--clients-known", help="The target knows the credentials that routers check themselves."),
    ] = False,
    accept_misplaced_members: AcceptMisplaced = False,
    accept_late: Annotated[
        bool,
        typer.Option("--accept-late", help="Go on although the target lacks late records of the source."),
    ] = False,
    accept_restarts: Annotated[
        bool,
        typer.Option(
            "--accept-restarts", help="Producers of topics that were rolled back are restarted right after the finish."
        ),
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Have routers advertise their own addresses again.")] = False,
    timeout: Timeout = 600.0,
    no_wait: NoWait = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Let clients leave the routers, with no restart.

    Routers name the target's own addresses in metadata, and end connections in turn; waits until no client is left.
    Prints whether the clients' bootstrap addresses will still answer without routers.
    """
    given = [each.strip() for each in (bootstrap or "").split(",") if each.strip()]
    for address in given:
        host_and_port(address)
    async with call.connections() as connections:
        link = verbs.resolve_link(connections.log.state, call.link(name)).name
        if undo:
            question = f"Let routers keep the clients of link {link} again?"
            return plan_answer(await call.carry_out(partial(verbs.undo_finish, connections, link), plan, yes, question))
        seconds = delivery_seconds(call, delivery_timeout)
        asked: tuple[Bootstrap, ...] = ()

        async def look() -> verbs.Proposal:
            nonlocal asked
            proposal = await verbs.finish_link(
                connections,
                link,
                given,
                seconds,
                clients_known=clients_known,
                accept_misplaced=accept_misplaced_members,
                accept_late=accept_late,
                accept_restarts=accept_restarts,
            )
            asked = proposal.bootstraps
            return proposal

        question = f"Let the clients of link {link} leave the routers? They need no restart"
        made = await call.carry_out(look, plan, yes, question)
        fields: dict[str, Any] = {"bootstraps": [dataclasses.asdict(each) for each in asked]}
        if plan:
            return Answer({**made.as_json(), **fields}, plan_view(made))
        if no_wait:
            return plan_answer(made)
        keep = f"to keep the clients that are left: kmigrate link finish {link} --undo"
        with interruptible("clients to leave", "routers go on letting them leave", keep), _watched(call) as say:
            await verbs.wait_left(connections, link, timeout, say)
        left = verbs.left_behind(connections, 0)
        gone = finished(connections.log.state)
        may_stop = gone and bool(asked) and all(each.leads is Leads.TARGET for each in asked)
        fields |= {
            "told_real_addresses": gone,
            "on_brokers": left.on_brokers,
            "clients": [dataclasses.asdict(each) for each in left.clients],
            "routers_may_stop": may_stop,
        }
        parts = [plan_view(made), *([clients_table(left.clients)] if left.clients else [])]
        return Answer({**made.as_json(), **fields}, Group(*parts, ending(asked, gone=gone, may_stop=may_stop)))


@contextmanager
def _watched(call: Call) -> Iterator[verbs.SayLeft]:
    """Yield a function that shows how many connections are left, and the first clients among these."""
    with call.out.waiting("waiting for clients to leave") as waiting:

        def say(left: verbs.Left) -> None:
            clients = f": {'; '.join(left.named[:3])}" if left.named else ""
            silent = f"; router {', '.join(left.silent)} is silent" if left.silent else ""
            waiting.say(f"{left.on_brokers} connections left{clients}{silent}")

        yield say
