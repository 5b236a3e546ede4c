"""The guide's tables and texts: where a migration stands, what the source holds, and the steps to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.guide.itinerary import Choices, command_of
from kmigrate.cli.guide.next_step import NextStep
from kmigrate.cli.guide.standing import Standing
from kmigrate.cli.guide.survey import GroupFound, Survey, TopicFound
from kmigrate.cli.views.tables import facts, figure, phase_text, table
from kmigrate.model.amounts import bytes_text
from kmigrate.model.lifecycle import AT_TARGET, GroupPhase, TopicPhase

__all__ = [
    "clients_line",
    "counted",
    "forecast_lines",
    "group_title",
    "standing_view",
    "steps_view",
    "survey_view",
    "topic_title",
    "trouble_of",
]


def standing_view(at: Standing, following: NextStep) -> RenderableType:
    """Return where the migration stands, and what comes next."""
    rows: list[tuple[str, str | Text]] = [("configuration", at.place), ("clusters", ", ".join(at.clusters) or "none")]
    if at.link:
        rows += [
            ("link", f"{at.link}: {at.source} → {at.target}"),
            ("processes", _processes(at)),
            ("topics", _counts([each.phase for each in at.topics], TopicPhase.PROMOTED)),
            ("groups", _counts([each.phase for each in at.groups], GroupPhase.PROMOTED)),
        ]
    rows.append(("next", following.what))
    if following.command:
        rows.append(("command", Text(following.command, style="cyan")))
    return Group(Text("Where the migration stands", style="bold"), facts(rows))


def _processes(at: Standing) -> Text:
    if not at.missing:
        return Text("mirror, router and controller run", style="green")
    return Text(f"not heard of: {', '.join(at.missing)}", style="yellow")


def _counts(phases: Sequence[str], last: str) -> Text:
    if not phases:
        return Text("none")
    named = ", ".join(f"{phases.count(each)} {each}" for each in dict.fromkeys(phases))
    return phase_text(named) if set(phases) != {last} else Text(named, style="green")


def survey_view(survey: Survey) -> RenderableType:
    """Return the topics and groups of the source."""
    topics = table(
        "topic",
        "partitions",
        "size",
        "idempotent producers",
        "groups",
        title=f"Topics of {survey.cluster}",
        right=_FIGURES,
    )
    readers: dict[str, list[str]] = {}
    for group in survey.groups:
        for name in group.topics:
            readers.setdefault(name, []).append(group.group)
    for topic in survey.topics:
        groups_of = ", ".join(readers.get(topic.topic, ())) or "none"
        size = bytes_text(topic.bytes) if topic.bytes >= 0 else "?"
        topics.add_row(topic.topic, figure(topic.partitions), size, figure(topic.producers), groups_of)
    groups = table("group", "state", "members", "lag", "reads", title=f"Groups of {survey.cluster}", right=_FIGURES)
    for group in survey.groups:
        groups.add_row(group.group, group.state, figure(group.members), figure(group.lag), ", ".join(group.topics))
    return Group(topics, groups, *(Text(f"! {note}", style="yellow") for note in survey.notes))


_FIGURES = ("partitions", "size", "idempotent producers", "members", "lag")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in plural where the count is not 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def topic_title(topic: TopicFound) -> str:
    """Return the line of a topic in the list to choose from."""
    size = f", {bytes_text(topic.bytes)}" if topic.bytes >= 0 else ""
    producers = f", {counted(topic.producers, 'idempotent producer')}" if topic.producers > 0 else ""
    return f"{topic.topic}  ({counted(topic.partitions, 'partition')}{size}{producers})"


def group_title(group: GroupFound) -> str:
    """Return the line of a group in the list to choose from."""
    lag = f", {counted(group.lag, 'record')} behind" if group.lag >= 0 else ""
    members = counted(group.members, "member")
    return f"{group.group}  ({group.state}, {members}{lag}; reads {', '.join(group.topics) or 'nothing'})"


def trouble_of(parts: Mapping[str, Any]) -> RenderableType:
    """Return what `kmigrate doctor` warns of or refuses, part by part."""
    rows: list[RenderableType] = []
    for part, findings in parts.items():
        if part == "ok":
            continue
        bad = [each for each in findings if each["level"] != "ok"]
        rows.append(Text(f"{'!' if bad else '✓'} {part}", style="yellow" if bad else "green"))
        rows += [Text(f"    {each['what']}") for each in bad]
    return Group(*rows)


def forecast_lines(plan: Mapping[str, Any]) -> RenderableType:
    """Return the forecast of `kmigrate plan` in plain words."""
    return Group(*(Text(f"• {line}") for row in plan["topics"] for line in _forecast(row)), *_warnings(plan))


def _forecast(row: Mapping[str, Any]) -> Iterable[str]:
    topic = row["topic"]
    if row["state"] in AT_TARGET:
        yield f"{topic} is on the target already."
        return
    if row["offsets"] not in ("identical", "mapped"):
        yield f"{topic} cannot be copied yet: {row['offsets']}"
        return
    size = f", {bytes_text(row['bytes'])}" if row["bytes"] >= 0 else ""
    seconds = "less than a second" if row["seconds"] < 1 else f"about {row['seconds']:,.0f} s"
    yield f"{topic}: at most {row['records']:,} records{size} are left to copy; {seconds} at 50 MB/s."
    if row["offsets"] == "identical":
        yield f"{topic}: every record keeps its offset, so committed offsets stay true."
    else:
        yield f"{topic}: offsets differ on the target; kmigrate keeps an exact map and translates committed offsets."
    yield from (f"{topic}: {note}" for note in row["notes"])


def _warnings(plan: Mapping[str, Any]) -> Iterable[Text]:
    for key in ("acls", "source_defaults", "broker_settings"):
        yield from (Text(f"! {each}", style="yellow") for each in plan[key])


def steps_view(steps: Sequence[Mapping[str, Any]], choices: Choices) -> RenderableType:
    """Return the steps in plain words, each with its command."""
    rows: list[RenderableType] = [Text("The steps", style="bold")]
    for number, step in enumerate(steps, start=1):
        rows.append(Text(f"{number:>3}. {step['title']}"))
        command = command_of(step, choices)
        if command:
            rows.append(Text(f"     $ {command}", style="cyan"))
    return Group(*rows)


def clients_line(at: Standing) -> Text:
    """Return what is known of clients that have not moved yet."""
    writers = [f"{each.topic} ({each.direct_writers})" for each in at.topics if each.direct_writers]
    readers = [f"{each.group} ({each.direct})" for each in at.groups if each.direct > 0]
    parts = [f"the router's address is {', '.join(at.routers)}"] if at.routers else ["no router is heard of"]
    parts.append(f"{counted(at.clients, 'connection')} at the routers")
    parts.append(f"producers past the routers within the last minute: {', '.join(writers) or 'none'}")
    parts.append(f"members past the routers: {', '.join(readers) or 'none'}")
    return Text("seen now: " + "; ".join(parts), style="yellow" if writers or readers else "")
