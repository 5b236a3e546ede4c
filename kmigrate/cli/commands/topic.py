"""`kmigrate topic`: mirrored topics."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import (
    Conf,
    Exclude,
    Link,
    Master,
    NewTopics,
    NoWait,
    OffsetsMode,
    PlanOnly,
    Regex,
    StartAt,
    Timeout,
    Topic,
    Topics,
    Yes,
)
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.values import byte_rate, offset_range, start_position
from kmigrate.cli.base.waiting import interruptible, need_mirror, watched
from kmigrate.cli.commands.bulk import BulkOptions, copy_by_spark, look_at_bulk
from kmigrate.cli.commands.link import DeliveryTimeout, delivery_seconds
from kmigrate.cli.commands.patterns import add_patterns, check_names
from kmigrate.cli.commands.target_configs import creation_configs, default_findings
from kmigrate.cli.views.plans import plan_answer, plan_view
from kmigrate.cli.views.snapshots import topic_detail
from kmigrate.cli.views.tables import facts, phase_text, topics_table
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import NOT_COPIED_YET, TopicPhase
from kmigrate.model.nearest import name_hint
from kmigrate.model.record_json import encode_record
from kmigrate.model.records import CopyEngine, TopicRecord
from kmigrate.model.words import advised
from kmigrate.verify.compare import MASTER
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.control_markers import CopyTimes, copy_times
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.status.snapshot import snapshot

__all__ = ["app", "forget", "list_topics", "mirror", "pause", "resume", "show"]

app = typer.Typer(name="topic", help="Mirrored topics.", no_args_is_help=True)

_AT_LEAST_MIRRORING = frozenset(TopicPhase) - NOT_COPIED_YET


@command(app, "mirror")
async def mirror(
    call: Call,
    topics: NewTopics = None,
    from_: StartAt = "earliest",
    offsets: OffsetsMode = "auto",
    recreate: Annotated[
        bool, typer.Option("--recreate", help="Delete an empty topic that groups read on the target; create a new one.")
    ] = False,
    regex: Regex = False,
    exclude: Exclude = None,
    link: Link = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="daemon|spark|auto", help="Engine (else daemon, or the present engine)."),
    ] = None,
    master: Master = MASTER,
    conf: Conf = None,
    throttle: Annotated[
        str, typer.Option("--throttle", metavar="RATE", help="Maximum bytes per second of all Spark tasks together.")
    ] = "off",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Spark goes on copying until a topic's promote or its hand-over.")
    ] = False,
    timeout: Timeout = 120.0,
    no_wait: NoWait = False,
    plan: PlanOnly = False,
) -> Answer:
    """Mirror topics, and wait until each topic is being mirrored.

    auto: identical offsets where possible, else the target's own offsets with an exact map; mapped can also copy behind
    data that the target topic holds already. With --engine spark Spark's tasks copy what there is, and hand over to the
    mirror processes when little is left; auto takes Spark where Spark pays, and says why. A repeated call goes on where
    the first call stopped; --engine daemon hands over at once.
    """
    options = BulkOptions.given(
        engine or "daemon", master, conf, byte_rate(throttle), continuous=continuous, no_wait=no_wait
    )
    topics = call.required_list(topics, "TOPIC", "the topics to mirror")
    left_out = check_names(topics, exclude, regex=regex)
    start = start_position(from_)
    verbs.check_offsets_mode(offsets)
    async with call.connections() as connections:
        name = verbs.resolve_link(connections.log.state, call.link(link)).name
        configs_of = creation_configs(connections, name)
        choices: dict[str, Any] = {"configs_of": configs_of, "recreate": recreate}
        proposal: verbs.Proposal
        if regex:
            proposal = matching = await verbs.mirror_matching_topics(
                connections, name, topics, left_out, start, offsets, **choices
            )
            topics = list(matching.names)
        else:
            proposal = await verbs.mirror_topics(connections, name, topics, start, offsets, **choices)
        if plan:
            made = proposal.plan
            record = verbs.resolve_link(connections.log.state, name)
            access = await verbs.access_findings(connections, record, topics)
            defaults = await default_findings(connections, record, topics)
            defaults += await verbs.memory_findings(connections, raises=call.settings.mirror.raise_producer_expiration)
            known = [r.topic for r in _records(connections, name, topics) if r is not None]
            engined = await _engine(connections, name, known, engine, plan=True)
            changes = (*made.changes, *engined)
            made = dataclasses.replace(made, changes=changes, findings=(*made.findings, *access, *defaults))
            if options.engine == "daemon":
                return plan_answer(made)
            bulk = await look_at_bulk(connections, record, topics, options, start=start, offsets=offsets)
            return Answer({**made.as_json(), "bulk": bulk.as_json()}, Group(plan_view(made), bulk.view()))
        made = await proposal.carry_out()
        engined = await _engine(connections, name, topics, engine)
        made = dataclasses.replace(made, changes=(*made.changes, *engined))
        if no_wait:
            return plan_answer(made)
        way_on = advised("wait 'topics mirroring'", name, *topics)
        with interruptible(f"{', '.join(topics)} to be mirroring", "the mirror goes on with it", way_on):
            if any(r is None or r.phase not in _AT_LEAST_MIRRORING for r in _records(connections, name, topics)):
                await need_mirror(call, connections, name, timeout)
            with watched(call, connections, name, "topic", topics) as say:
                records = await verbs.wait_topics(connections, name, topics, set(_AT_LEAST_MIRRORING), timeout, say)
        copying = [record.topic for record in records if record.phase is TopicPhase.MIRRORING]
        if options.engine != "daemon" and copying:
            return await _mirror_by(call, connections, name, copying, options, made)
        json = {**made.as_json(), "topics": [encode_record(record) for record in records]}
        return Answer(json, Group(plan_view(made), topics_table(records)))


async def _engine(
    connections: Connections, link: str, topics: list[str], engine: str | None, *, plan: bool = False
) -> tuple[str, ...]:
    """Record the engine that was asked for by name, and return the sentences about changes."""
    if engine not in ("daemon", "spark"):
        return ()
    proposal = await verbs.set_engine(connections, link, topics, CopyEngine(engine))
    return (proposal.plan if plan else await proposal.carry_out()).changes


async def _mirror_by(
    call: Call, connections: Connections, name: str, topics: list[str], options: BulkOptions, made: Plan
) -> Answer:
    """Copy mirrored topics by Spark, or report why `auto` leaves the copy to the mirror processes."""
    link = verbs.resolve_link(connections.log.state, name)
    bulk = await look_at_bulk(connections, link, topics, options, start="earliest", offsets="auto")
    fields, view, code = {"bulk": bulk.as_json()}, bulk.view(), Exit.OK
    if bulk.choice.engine is CopyEngine.SPARK:
        copied, view, code = await copy_by_spark(call, connections, link, topics, bulk, options)
        fields = {"bulk": copied}
    records = [record for record in _records(connections, name, topics) if record is not None]
    json = {**made.as_json(), **fields, "topics": [encode_record(record) for record in records]}
    return Answer(json, Group(plan_view(made), view, topics_table(records)), code)


def _records(connections: Connections, link: str, topics: list[str]) -> list[TopicRecord | None]:
    return [connections.log.state.topic(link, topic) for topic in topics]


@command(app, "pause")
async def pause(call: Call, topics: Topics = None, link: Link = None, plan: PlanOnly = False) -> Answer:
    """Pause topics; a running mirror follows at once."""
    topics = call.required_list(topics, "TOPIC", "the topics to pause")
    async with call.connections() as connections:
        look = partial(verbs.pause_topics, connections, call.link(link), topics)
        return plan_answer(await call.carry_out(look, plan))


@command(app, "resume")
async def resume(
    call: Call,
    topics: Topics = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this stopped partition.")] = None,
    accept_loss: Annotated[
        str | None, typer.Option("--accept-loss", metavar="FROM..TO", help="Give up exactly the offsets named as lost.")
    ] = None,
    link: Link = None,
    plan: PlanOnly = False,
) -> Answer:
    """Let paused topics and stopped partitions go on where that is safe.

    An accepted loss becomes a hole on the target, so that later offsets stay identical; the state log keeps the loss.
    """
    topics = call.required_list(topics, "TOPIC", "the topics to resume")
    lost = None if accept_loss is None else offset_range(accept_loss)
    verbs.check_loss(topics, partition, lost)
    async with call.connections() as connections:
        choices: dict[str, Any] = {"partition": partition, "accept_loss": lost, "who": call.who}
        look = partial(verbs.resume_topics, connections, call.link(link), topics, **choices)
        return plan_answer(await call.carry_out(look, plan))


@command(app, "forget")
async def forget(
    call: Call,
    topics: Topics = None,
    delivery_timeout: DeliveryTimeout = None,
    link: Link = None,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Stop mirroring topics, and take these topics out of their link; deletes no topic.

    Meant for topics that were deleted on the source, or mirrored by mistake. A topic that lives on the source can be
    forgotten once its copy is deleted, or while there is no router: otherwise clients would be led to the copy.
    """
    topics = call.required_list(topics, "TOPIC", "the topics to forget")
    seconds = delivery_seconds(call, delivery_timeout)
    async with call.connections() as connections:
        look = partial(verbs.forget_topics, connections, call.link(link), topics, seconds)
        question = f"Forget {', '.join(topics)}? It is copied no longer, and not promoted"
        return plan_answer(await call.carry_out(look, plan, yes, question))


add_patterns(app, "topic")


@command(app, "list")
async def list_topics(call: Call, link: Link = None) -> Answer:
    """List the mirrored topics and their phases."""
    async with call.connections() as connections:
        name = None if link is None else verbs.resolve_link(connections.log.state, link).name
        records = connections.log.state.topics(name, forgotten=True)
        return Answer({"topics": [encode_record(record) for record in records]}, topics_table(records))


@command(app, "show")
async def show(call: Call, topic: Topic = None) -> Answer:
    """Show one mirrored topic, partition by partition."""
    topic = call.required(topic, "TOPIC", "the topic to show")
    async with call.connections() as connections:
        record = connections.log.state.topic_owner(topic)
        if record is None:
            raise Refused(
                "not-mirrored",
                f"topic {topic} is not mirrored{name_hint(topic, (r.topic for r in connections.log.state.topics()))}",
                still_true="nothing was changed",
                next_step="kmigrate topic list shows which are, and by which link",
            )
        shot = await snapshot(connections)
        status = next(each for each in shot.topics if (each.link, each.topic) == (record.link, topic))
        live: dict[str, Any] = next(t for t in shot.as_json()["topics"] if t["topic"] == topic)
        link = connections.log.state.link(record.link)
        marked = (
            await copy_times(connections.target, connections.target_admin, link, [record]) if link is not None else None
        )
        times = next(iter(marked or []), None)
        view = Group(_facts(record, times), topic_detail(status, shot.at_ms))
        markers = {
            "control_markers": None if marked is None else bool(marked),
            "copy_times": times.as_json() if times is not None else None,
        }
        return Answer({**encode_record(record), **markers, "status": live}, view)


def _facts(record: TopicRecord, times: CopyTimes | None) -> Any:
    return facts(
        [
            ("topic", record.topic),
            ("link", record.link),
            ("phase", phase_text(record.phase)),
            ("from", record.start),
            ("offsets asked", record.offsets),
            *([("paused", "yes")] if record.paused else []),
            *([("reason", record.hindrance)] if record.hindrance else []),
            *([("control markers", f"yes: without a router {times.look_ups()}; {times.retention()}")] if times else []),
            *([("fence to flip", f"{record.promoted_ms - record.fenced_ms} ms")] if record.promoted_ms else []),
            *_way_back(record),
        ]
    )


def _way_back(record: TopicRecord) -> list[tuple[str, str]]:
    """Return what a topic's record says about rollbacks: the way back, its end, and the rollbacks before."""
    way, found = record.way_back, []
    if way is not None:
        until = f"ended: {way.ended}" if way.ended else f"open: {advised('rollback', record.link, record.topic)}"
        found.append(("way back", until))
    if way is not None and way.reason:
        found.append(("last rollback", f"given up: {way.reason}"))
    if record.generation:
        found.append(("rolled back", f"{record.generation} time{'' if record.generation == 1 else 's'}"))
    return found
