"""`kmigrate link`: the connection of a source to a target."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated

import typer

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.completion import clusters
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import Link, LinkName, PlanOnly, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.values import byte_rate
from kmigrate.cli.views.plans import plan_answer, plan_view
from kmigrate.cli.views.tables import facts, links_table
from kmigrate.config.link_settings import altered, contradictions, new_link_settings
from kmigrate.errors import Refused
from kmigrate.model.records import LinkRecord
from kmigrate.workflow import verbs
from kmigrate.workflow.base.plan import Plan, warn

__all__ = ["alter", "app", "check", "create", "delete", "delivery_seconds", "list_links", "show", "throttle"]

app = typer.Typer(name="link", help="Links: one source cluster to one target cluster.", no_args_is_help=True)

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the link.")]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Setting of the link (may be repeated; keys: docs/configuration.md)."
    ),
]
DeliveryTimeout = Annotated[
    float | None,
    typer.Option("--delivery-timeout", min=0.0, help="Seconds (else [finish] delivery_timeout_s)."),
]


@command(app, "create", target=False)
async def create(
    call: Call,
    name: Name = None,
    source: Annotated[str | None, typer.Option("--source", help="Source cluster.", autocompletion=clusters)] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Target cluster (else [defaults] target).", autocompletion=clusters)
    ] = None,
    set_: Setting = None,
    plan: PlanOnly = False,
) -> Answer:
    """Store a link in the target's state log; the source is not contacted.

    The link gets the settings of --set, else those of [mirror] and [promote] in kmigrate.toml.
    """
    settings = altered(new_link_settings(call.settings), set_ or ())
    clusters = call.settings.clusters
    name = call.required(name, "NAME", "name of the link")
    verbs.check_link_name(name)
    source = call.required(source, "--source", "the cluster to copy from", iter(sorted(clusters)))
    target = call.required(
        target or call.settings.defaults.target,
        "--target",
        "the cluster to copy to",
        (each for each in sorted(clusters) if each != source),
    )
    _refuse_one_cluster(call, source, target)
    try:
        async with call.connections(target, create=not plan) as connections:
            look = partial(verbs.create_link, connections, name, source, settings)
            return plan_answer(await call.carry_out(look, plan))
    except Refused as refused:
        if not plan or refused.ref != "no-state-log":
            raise
    store = verbs.stored_link(name, source, target, settings)
    made = [f"create the state log on cluster {target}", store]
    return plan_answer(Plan.of("link create", made))


def _refuse_one_cluster(call: Call, source: str, target: str) -> None:
    """Refuse a link from a cluster to itself, before the state log is created: a refusal changes nothing."""
    if call.settings.cluster(source).overlaps(call.settings.cluster(target)):
        raise Refused(
            "source-is-target",
            f"source {source} and target {target} are the same cluster",
            still_true="nothing was contacted or changed",
            next_step="name two different clusters of kmigrate.toml",
        )


@command(app, "list")
async def list_links(call: Call) -> Answer:
    """List the links of a target."""
    async with call.connections() as connections:
        links = connections.log.state.links()
        return Answer({"links": [_as_json(link) for link in links]}, links_table(links))


@command(app, "show")
async def show(call: Call, name: LinkName = None) -> Answer:
    """Show one link."""
    async with call.connections() as connections:
        link = verbs.resolve_link(connections.log.state, name)
        state = connections.log.state
        topics, groups = state.topics(link.name, forgotten=True), state.groups(link.name, forgotten=True)
        view = facts(
            [
                ("link", link.name),
                ("source", f"{link.source.name} ({link.source.bootstrap})"),
                ("source id", link.source.cluster_id or "not contacted yet"),
                ("target", f"{link.target.name} ({link.target.bootstrap})"),
                ("target id", link.target.cluster_id),
                ("throttle", f"{link.throttle:,} bytes/s" if link.throttle else "off"),
                *((each.name, link.settings.text(each.name)) for each in dataclasses.fields(link.settings)),
                ("topics", ", ".join(f"{t.topic} ({t.phase})" for t in topics) or "none"),
                ("groups", ", ".join(f"{g.group} ({g.phase})" for g in groups) or "none"),
                *([("finished", "yes: clients leave the routers")] if link.finished_ms else []),
                *([("being deleted", f"yes: kmigrate link delete {link.name} ends it")] if link.deleting_ms else []),
                *([("topics to come", ", ".join(map(str, link.topic_patterns)))] if link.topic_patterns else []),
                *([("groups to come", ", ".join(map(str, link.group_patterns)))] if link.group_patterns else []),
            ]
        )
        phases = {"topics": {t.topic: t.phase for t in topics}, "groups": {g.group: g.phase for g in groups}}
        return Answer({**_as_json(link), **phases}, view)


@command(app, "check")
async def check(call: Call, name: LinkName = None) -> Answer:
    """Contact both clusters of a link and show all obstacles; changes nothing."""
    async with call.connections() as connections:
        plan = await verbs.check_link(connections, name, raises=call.settings.mirror.raise_producer_expiration)
        link = verbs.resolve_link(connections.log.state, name)
        differs = [
            warn("link-settings-differ", f"link {link.name}: {text}; the link's setting counts", _alter(link.name, key))
            for key, text in contradictions(call.settings, link.settings).items()
        ]
        plan = dataclasses.replace(plan, findings=(*plan.findings, *differs))
        bad = any(f.level == "refuse" for f in plan.findings)
        return Answer(plan.as_json(), plan_view(plan), Exit.REFUSED if bad else Exit.OK)


def _alter(link: str, key: str) -> str:
    return f"take the key out of the file, or: kmigrate link alter {link} --set {key}=VALUE"


@command(app, "alter")
async def alter(call: Call, name: LinkName = None, set_: Setting = None, plan: PlanOnly = False) -> Answer:
    """Change settings of a link; running processes follow at once.

    A promote that is under way keeps the limits under which it was asked for.
    """
    given = call.required_list(set_, "--set", "the settings to change, each as KEY=VALUE")
    altered(new_link_settings(call.settings), given)
    async with call.connections() as connections:
        look = partial(verbs.alter_link, connections, call.link(name), lambda before: altered(before, given))
        return plan_answer(await call.carry_out(look, plan))


@command(app, "throttle")
async def throttle(
    call: Call,
    rate: Annotated[
        str | None, typer.Argument(metavar="RATE", help="Bytes a second: 500kB, 10MB, 1GiB, a number; or off.")
    ] = None,
    link: Link = None,
    plan: PlanOnly = False,
) -> Answer:
    """Limit how fast a link's mirror reads; a running mirror follows at once.

    Topics in a promote are not held back.
    """
    bytes_s = byte_rate(call.required(rate, "RATE", "bytes a second, or off"))
    async with call.connections() as connections:
        look = partial(verbs.throttle_link, connections, call.link(link), bytes_s)
        return plan_answer(await call.carry_out(look, plan))


@command(app, "delete")
async def delete(
    call: Call,
    name: LinkName = None,
    delivery_timeout: DeliveryTimeout = None,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Forget a link whose topics and groups are all promoted; never deletes a topic.

    While a router runs, the command refuses until no producer can repeat a write from before the last promote.
    """
    name = call.required(name, "NAME", "the link to delete")
    seconds = delivery_seconds(call, delivery_timeout)
    async with call.connections() as connections:
        look = partial(verbs.delete_link, connections, name, seconds)

        def question(plan: Plan) -> str:
            return f"Forget link {name}? ({len(plan.changes)} records of the state log)"

        return plan_answer(await call.carry_out(look, plan, yes, question))


def delivery_seconds(call: Call, given: float | None) -> float:
    """Return `--delivery-timeout`, else the configured value."""
    return call.settings.finish.delivery_timeout_s if given is None else given


def _as_json(link: LinkRecord) -> dict[str, object]:
    """Return what a link is, without what only the mirror needs of its record."""
    names = ("name", "uuid", "source", "target", "created_ms", "throttle", "finished_ms", "deleting_ms")
    fields = dataclasses.asdict(link)
    return {name: fields[name] for name in (*names, "settings", "topic_patterns", "group_patterns")}
