"""`kmigrate group`: consumer groups and their handover."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.console import Group as Stack

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Exclude, Group, Groups, Link, NewGroups, NoWait, PlanOnly, Regex, Timeout, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.waiting import CONTROLLER_GOES_ON, interruptible, need_controller, need_copy, watched
from kmigrate.cli.commands.patterns import add_patterns, check_names
from kmigrate.cli.views.group_detail import group_detail_view
from kmigrate.cli.views.plans import plan_answer, plan_view
from kmigrate.cli.views.snapshots import group_rows
from kmigrate.cli.views.tables import groups_table
from kmigrate.errors import Refused
from kmigrate.model.nearest import name_hint
from kmigrate.model.record_json import encode_record
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms
from kmigrate.workflow import verbs
from kmigrate.workflow.status.group_detail import group_detail
from kmigrate.workflow.status.snapshot import group_status

__all__ = ["app", "forget", "list_groups", "mirror", "promote", "rollback", "show"]

app = typer.Typer(name="group", help="Mirrored consumer groups.", no_args_is_help=True)


@command(app, "mirror")
async def mirror(
    call: Call,
    groups: NewGroups = None,
    regex: Regex = False,
    exclude: Exclude = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="auto|follow|hold",
            help="Members at a router: follow (stay in the source's group), hold (wait for the promote), or auto.",
        ),
    ] = "auto",
    auto: Annotated[
        bool | None,
        typer.Option(
            "--auto/--no-auto",
            help="Let the controller promote the group once its last member has left the source for a router.",
            show_default=False,
        ),
    ] = None,
    link: Link = None,
    plan: PlanOnly = False,
) -> Answer:
    """Register groups. Nothing is written on the target yet.

    A group follows where the offsets of all its topics are identical: members on both clusters share the group's
    partitions. Otherwise members that have moved wait for the promote. With --regex, groups that match later hold; with
    --auto the controller promotes these groups, too. For groups that are mirrored already, --mode, --auto and --no-auto
    change the group.
    """
    groups = call.required_list(groups, "GROUP", "the groups to mirror")
    left_out = check_names(groups, exclude, regex=regex)
    async with call.connections() as connections:
        look = (
            partial(verbs.mirror_matching_groups, connections, call.link(link), groups, left_out, mode=mode, auto=auto)
            if regex
            else partial(verbs.mirror_groups, connections, call.link(link), groups, mode=mode, auto=auto)
        )
        return plan_answer(await call.carry_out(look, plan))


add_patterns(app, "group")


@command(app, "promote")
async def promote(
    call: Call,
    groups: Groups = None,
    link: Link = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for the copy, and then for the promote.", min=0.0)
    ] = 300.0,
    no_wait: NoWait = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Carry the committed offsets over and let the groups read from the target.

    Where the copy is not there yet, the call first waits until the target holds what the groups have read
    (lag_threshold records of the link's settings may be missing). Until then nothing is written, and members read on.
    """
    groups = call.required_list(groups, "GROUP", "the groups to promote")
    async with call.connections() as connections:
        at = verbs.resolve_link(connections.log.state, call.link(link))
        name = at.name

        async def look(waits: bool) -> verbs.Proposal:
            with call.out.waiting("looking for members on the source"):
                return await verbs.promote_groups(connections, name, groups, waits=waits, who=call.who)

        proposal = await look(not no_wait)
        if plan:
            return plan_answer(proposal.plan)
        if proposal.plan.changes:
            question = f"Promote {', '.join(groups)}? Their members read from the target afterwards"
            await call.confirm(yes, question, proposal.plan.warnings)
            if not no_wait:
                await need_copy(call, connections, at, groups, timeout, at.settings.lag_threshold)
            proposal = await look(False)
        made = await proposal.carry_out()
        if no_wait:
            return plan_answer(made)
        way_on = advised("wait 'groups promoted'", name, *groups)
        with interruptible(f"the promote of group {', '.join(groups)}", CONTROLLER_GOES_ON, way_on):
            if made.changes:
                await need_controller(call, connections, timeout)
            with watched(call, connections, name, "group", groups) as say:
                records = await verbs.wait_groups(connections, name, groups, timeout, say)
        json = {**made.as_json(), "groups": [encode_record(record) for record in records]}
        return Answer(json, Stack(plan_view(made), groups_table(records)))


@command(app, "rollback")
async def rollback(
    call: Call,
    groups: Groups = None,
    link: Link = None,
    timeout: Timeout = 300.0,
    no_wait: NoWait = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Give promoted groups back to the source, with the committed offsets of the target.

    The members at routers join anew, as at a rebalance. A group that followed follows again and reads on at once. The
    members of a group that held wait at the routers for the next promote: restart them with the source's address.
    """
    groups = call.required_list(groups, "GROUP", "the groups to roll back")
    async with call.connections() as connections:
        name = verbs.resolve_link(connections.log.state, call.link(link)).name
        look = partial(verbs.roll_back_groups, connections, name, groups, who=call.who)
        question = f"Roll {', '.join(groups)} back? Their committed offsets are the source's afterwards"
        made = await call.carry_out(look, plan, yes, question)
        if plan or no_wait:
            return plan_answer(made)
        way_on = f"to wait again: {advised('group rollback', name, *groups)}"
        with interruptible(f"the rollback of group {', '.join(groups)}", CONTROLLER_GOES_ON, way_on):
            if made.changes:
                await need_controller(call, connections, timeout)
            with watched(call, connections, name, "group", groups) as say:
                records = await verbs.wait_groups_rolled_back(connections, name, groups, timeout, say)
        json = {**made.as_json(), "groups": [encode_record(record) for record in records]}
        return Answer(json, Stack(plan_view(made), groups_table(records)))


@command(app, "forget")
async def forget(
    call: Call, groups: Groups = None, link: Link = None, plan: PlanOnly = False, yes: Yes = False
) -> Answer:
    """Take groups out of their link without a promote: committed offsets stay on the source.

    Meant for groups that are gone on the source, or that shall stay there. Refused while members are at a router.
    """
    groups = call.required_list(groups, "GROUP", "the groups to forget")
    async with call.connections() as connections:
        look = partial(verbs.forget_groups, connections, call.link(link), groups)
        question = f"Forget {', '.join(groups)}? No committed offset is carried over to the target"
        return plan_answer(await call.carry_out(look, plan, yes, question))


@command(app, "list")
async def list_groups(call: Call, link: Link = None) -> Answer:
    """List the mirrored groups and their phases."""
    async with call.connections() as connections:
        name = None if link is None else verbs.resolve_link(connections.log.state, link).name
        records = connections.log.state.groups(name, forgotten=True)
        return Answer({"groups": [encode_record(record) for record in records]}, groups_table(records))


@command(app, "show")
async def show(call: Call, group: Group = None) -> Answer:
    """Show one mirrored group: each member with its partitions, and the lag of each partition."""
    group = call.required(group, "GROUP", "the group to show")
    async with call.connections() as connections:
        state = connections.log.state
        record = state.group_owner(group)
        link = None if record is None else state.link(record.link)
        if record is None or link is None:
            raise Refused(
                "not-mirrored",
                f"group {group} is not mirrored{name_hint(group, (each.group for each in state.groups()))}",
                still_true="nothing was changed",
                next_step="kmigrate group list shows which are, and by which link",
            )
        with call.out.waiting("asking both clusters"):
            status = await group_status(connections, link, record)
            detail = await group_detail(connections, link, record)
        view = Stack(group_rows((status,), now_ms()), group_detail_view(detail))
        return Answer({"groups": [{**asdict(status), **detail.as_json()}]}, view)
