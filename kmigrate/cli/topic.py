"""`kmigrate topic`: what is mirrored."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group

from kmigrate.cli.call import Call, command
from kmigrate.cli.link import plan_answer
from kmigrate.cli.options import Link, NoWait, PlanOnly, Timeout, Topics
from kmigrate.cli.output import Answer
from kmigrate.cli.times import start_position
from kmigrate.cli.views.plans import plan_view
from kmigrate.cli.views.snapshots import topic_detail
from kmigrate.cli.views.tables import facts, phase_text, topics_table
from kmigrate.cli.waiting import need_mirror, watched_topics
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TopicRecord, encode_record
from kmigrate.workflow import verbs
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.status import snapshot

__all__ = ["app", "mirror"]

app = typer.Typer(name="topic", help="Mirrored topics.", no_args_is_help=True)

_AT_LEAST_MIRRORING = frozenset(TopicPhase) - {TopicPhase.INITIALISING, TopicPhase.ALIGNING}


@command(app, "mirror")
async def mirror(
    call: Call,
    topics: Topics = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="earliest|latest|TIME", help="Where to start; TIME: ISO-8601 or epoch ms.")
    ] = "earliest",
    offsets: Annotated[
        str, typer.Option("--offsets", metavar="auto|identical|mapped", help="Offsets on the target.")
    ] = "auto",
    link: Link = None,
    timeout: Timeout = 120.0,
    no_wait: NoWait = False,
    plan: PlanOnly = False,
) -> Answer:
    """Mirror topics, and wait until each is being mirrored.

    auto: identical offsets where they can be had, else the target's own with an exact map; mapped also goes behind
    data that the target topic holds already.
    """
    topics = call.required_list(topics, "TOPIC", "the topics to mirror")
    start = start_position(from_)
    verbs.check_offsets_mode(offsets)
    async with call.estate() as estate:
        name = verbs.resolve_link(estate.log.state, call.link(link)).name
        made = await verbs.mirror_topics(estate, name, topics, start, offsets, plan=plan)
        if plan or no_wait:
            return plan_answer(made)
        if any(r is None or r.phase not in _AT_LEAST_MIRRORING for r in _records(estate, name, topics)):
            await need_mirror(estate, name, timeout)
        with watched_topics(call, name, topics) as say:
            records = await verbs.wait_topics(estate, name, topics, set(_AT_LEAST_MIRRORING), timeout, say)
        json = {**made.as_json(), "topics": [encode_record(record) for record in records]}
        return Answer(json, Group(plan_view(made), topics_table(records)))


def _records(estate: Estate, link: str, topics: list[str]) -> list[TopicRecord | None]:
    return [estate.log.state.topic(link, topic) for topic in topics]


@command(app, "list")
async def list_topics(call: Call, link: Link = None) -> Answer:
    """List the mirrored topics and their phases."""
    async with call.estate() as estate:
        name = None if link is None else verbs.resolve_link(estate.log.state, link).name
        records = estate.log.state.topics(name)
        return Answer({"topics": [encode_record(record) for record in records]}, topics_table(records))


@command(app, "show")
async def show(
    call: Call, topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Topic name.")] = None
) -> Answer:
    """Show one mirrored topic, partition by partition."""
    topic = call.required(topic, "TOPIC", "the topic to show")
    async with call.estate() as estate:
        record = estate.log.state.topic_owner(topic)
        if record is None:
            raise Refused(
                "not-mirrored",
                f"topic {topic} is not mirrored",
                still_true="nothing was changed",
                next_step=f"kmigrate topic mirror {topic}",
            )
        shot = await snapshot(estate)
        status = next(each for each in shot.topics if (each.link, each.topic) == (record.link, topic))
        live: dict[str, Any] = next(t for t in shot.as_json()["topics"] if t["topic"] == topic)
        return Answer({**encode_record(record), "status": live}, Group(_facts(record), topic_detail(status)))


def _facts(record: TopicRecord) -> Any:
    return facts(
        [
            ("topic", record.topic),
            ("link", record.link),
            ("phase", phase_text(record.phase)),
            ("from", record.start),
            ("offsets asked", record.offsets),
            *([("reason", record.reason)] if record.reason else []),
            *([("fence to flip", f"{record.promoted_ms - record.fenced_ms} ms")] if record.promoted_ms else []),
        ]
    )
