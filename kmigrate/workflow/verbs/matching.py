"""Verbs on names by regular expression: the verb mirrors present matches, the mirror picks up later matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kmigrate.cluster.groups import held_groups
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode
from kmigrate.model.nearest import nearest
from kmigrate.model.patterns import NamePattern, check_expression, chosen_groups, chosen_topics
from kmigrate.model.record_json import Record
from kmigrate.model.records import LinkRecord
from kmigrate.model.state import State
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan, telling, warn
from kmigrate.workflow.verbs.creatable import ConfigsOf, no_configs
from kmigrate.workflow.verbs.groups import mirror_groups
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link
from kmigrate.workflow.verbs.mirror import mirror_topics
from kmigrate.workflow.verbs.proposal import Noun, Proposal

__all__ = [
    "MatchingProposal",
    "edit_patterns",
    "forget_patterns",
    "mirror_matching_groups",
    "mirror_matching_topics",
    "patterns_of",
]


@dataclass(frozen=True, slots=True)
class MatchingProposal(Proposal):
    """The proposal of a verb on expressions, and the names on the source that match now."""

    names: tuple[str, ...] = ()


async def mirror_matching_topics(
    connections: Connections,
    link_name: str | None,
    expressions: Sequence[str],
    exclude: Sequence[str],
    start: str,
    offsets: str,
    *,
    configs_of: ConfigsOf = no_configs,
    recreate: bool = False,
) -> MatchingProposal:
    """Propose to mirror every match, and keep the expressions; all or nothing: exclude what cannot be mirrored."""
    link = resolve_link(connections.log.state, link_name)
    patterns = [replace(pattern, offsets=offsets) for pattern in _patterns(expressions, exclude)]
    source, _ = await connections.source(link)
    _refuse_for_later(link, "topic", patterns)
    names = chosen_topics(patterns, (await source.refresh()).topics)
    mirror = await mirror_topics(
        connections, link.name, names, start, offsets, configs_of=configs_of, recreate=recreate
    )
    return _with_patterns(connections, mirror, link, "topic", patterns, names)


async def mirror_matching_groups(
    connections: Connections,
    link_name: str | None,
    expressions: Sequence[str],
    exclude: Sequence[str],
    *,
    mode: str = GroupMode.HOLD,
    auto: bool | None = None,
) -> MatchingProposal:
    """Propose to mirror every matching group, and to keep the expressions.

    Groups that match later get the mode hold, and with `auto` the controller promotes them by itself. None leaves a
    known expression's `auto` as it is.
    """
    link = resolve_link(connections.log.state, link_name)
    known = {pattern.include: pattern.auto for pattern in link.group_patterns}
    patterns = [
        replace(pattern, auto=known.get(pattern.include, False) if auto is None else auto)
        for pattern in _patterns(expressions, exclude)
    ]
    source, source_admin = await connections.source(link)
    _refuse_for_later(link, "group", patterns)
    unheld = {name for name, held in (await held_groups(source)).items() if not held}
    new = {name for name in unheld if connections.log.state.group_owner(name) is None}
    names = chosen_groups(patterns, new.union(await source_admin.groups()))
    mirror = await mirror_groups(connections, link.name, names, mode=mode, auto=auto)
    return _with_patterns(connections, mirror, link, "group", patterns, names)


async def forget_patterns(
    connections: Connections, link_name: str | None, noun: Noun, expressions: Sequence[str]
) -> Proposal:
    """Propose to remove expressions from the link; mirrored topics and groups stay mirrored."""
    link = resolve_link(connections.log.state, link_name)
    known = patterns_of(link, noun)
    unknown = [text for text in expressions if text not in {pattern.include for pattern in known}]
    if unknown:
        raise Refused(
            "unknown-expression",
            f"link {link.name} has no {noun} expression {unknown[0]!r}"
            f"{nearest(unknown[0], (pattern.include for pattern in known))}; it has: "
            + (", ".join(repr(pattern.include) for pattern in known) or "none"),
            still_true="nothing was changed",
            next_step=f"kmigrate {noun} patterns --link {link.name}",
        )

    async def act() -> Iterable[Finding]:
        await _replace(
            connections, link.name, noun, lambda _, old: tuple(p for p in old if p.include not in expressions)
        )
        return ()

    return Proposal(Plan.of(f"{noun} patterns", [f"forget {noun}s that match {text}" for text in expressions]), act)


def _patterns(expressions: Sequence[str], exclude: Sequence[str]) -> list[NamePattern]:
    left_out = tuple(check_expression(text, "--exclude") for text in exclude)
    return [NamePattern(check_expression(text, "--regex"), left_out) for text in dict.fromkeys(expressions)]


def _with_patterns(
    connections: Connections,
    mirror: Proposal,
    link: LinkRecord,
    noun: Noun,
    patterns: Sequence[NamePattern],
    names: Sequence[str],
) -> MatchingProposal:
    """Return a proposal to mirror the present matches, and then to keep the expressions with the link."""
    known, looked = patterns_of(link, noun), mirror.plan
    changes = [f"keep for later {noun}s: {pattern}" for pattern in patterns if pattern not in known]
    none = [] if names else [warn("no-match", f"no {noun} of the source matches now; later ones are picked up")]

    async def act() -> Iterable[Finding]:
        found = await mirror.act()
        with telling(looked.changes):
            await _keep(connections, link.name, noun, patterns)
        return found

    plan = Plan.of(looked.verb, [*looked.changes, *changes], [*looked.findings, *none])
    return MatchingProposal(plan, act, tuple(names))


async def _keep(connections: Connections, link: str, noun: Noun, patterns: Sequence[NamePattern]) -> None:
    """Keep the expressions with the link; a repeated expression replaces the older and the older's left-out names."""
    texts = {pattern.include for pattern in patterns}

    def edit(link: LinkRecord, old: tuple[NamePattern, ...]) -> tuple[NamePattern, ...]:
        _refuse_for_later(link, noun, patterns)
        return (*(p for p in old if p.include not in texts), *patterns)

    await _replace(connections, link, noun, edit)


def _refuse_for_later(link: LinkRecord, noun: Noun, patterns: Sequence[NamePattern]) -> None:
    """Refuse a finished link where an expression is new; known expressions ask nothing more of the link."""
    if not all(pattern in patterns_of(link, noun) for pattern in patterns):
        refuse_finished(link)


async def _replace(
    connections: Connections,
    name: str,
    noun: Noun,
    edit: Callable[[LinkRecord, tuple[NamePattern, ...]], tuple[NamePattern, ...]],
) -> None:
    def decide(state: State) -> Record | None:
        link = resolve_link(state, name)
        changed = edit_patterns(link, noun, partial(edit, link))
        return None if changed == link else changed

    await connections.log.append(decide)


def patterns_of(link: LinkRecord, noun: Noun) -> tuple[NamePattern, ...]:
    return link.topic_patterns if noun == "topic" else link.group_patterns


def edit_patterns(
    link: LinkRecord, noun: Noun, edit: Callable[[tuple[NamePattern, ...]], tuple[NamePattern, ...]]
) -> LinkRecord:
    if noun == "topic":
        return replace(link, topic_patterns=edit(link.topic_patterns))
    return replace(link, group_patterns=edit(link.group_patterns))
