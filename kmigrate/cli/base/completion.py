"""Names for a shell's completion, asked from the clusters within a short time.

A cluster that does not answer in time gives no names and no error. Shells evaluate what a program offers (zsh by
`eval`), and names come from outside, so only names are offered that no shell reads as anything else.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import typer

from kmigrate.cli.base.call import Call
from kmigrate.model.patterns import NamePattern, chosen_groups, chosen_topics
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.playbook.shipped import shipped_playbooks

__all__ = [
    "clusters",
    "links",
    "mirrored_groups",
    "mirrored_topics",
    "playbooks",
    "source_groups",
    "source_topics",
]

_PATIENCE_S = 2.0
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Names that mean themselves in every shell: every topic's name, and most groups' names."""
_ANY = [NamePattern(".*")]

Look = Callable[[Connections, str | None], Coroutine[Any, Any, Iterable[str]]]


def links(ctx: typer.Context, incomplete: str) -> list[str]:
    return _within_patience(ctx, incomplete, _links)


def mirrored_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _within_patience(ctx, incomplete, _mirrored_topics)


def mirrored_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    return _within_patience(ctx, incomplete, _mirrored_groups)


def source_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of topics that the link's source has and the link does not mirror yet."""
    return _within_patience(ctx, incomplete, _source_topics)


def source_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of groups that the link's source has and the link does not mirror yet."""
    return _within_patience(ctx, incomplete, _source_groups)


def clusters(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of configured clusters; contacts no cluster."""
    try:
        return _offered(_call(ctx).settings.clusters, incomplete)
    except Exception:  # a shell's line is no place for an error
        return []


def playbooks(incomplete: str) -> list[str]:
    return _offered(shipped_playbooks(), incomplete)


async def _links(connections: Connections, _: str | None) -> Iterable[str]:
    return [link.name for link in connections.log.state.links()]


async def _mirrored_topics(connections: Connections, link: str | None) -> Iterable[str]:
    return [record.topic for record in connections.log.state.topics(link)]


async def _mirrored_groups(connections: Connections, link: str | None) -> Iterable[str]:
    return [record.group for record in connections.log.state.groups(link)]


async def _source_topics(connections: Connections, link: str | None) -> Iterable[str]:
    source, _ = await connections.source(verbs.resolve_link(connections.log.state, link))
    found = chosen_topics(_ANY, (await source.refresh()).topics)
    return set(found).difference(await _mirrored_topics(connections, None))


async def _source_groups(connections: Connections, link: str | None) -> Iterable[str]:
    _, admin = await connections.source(verbs.resolve_link(connections.log.state, link))
    found = chosen_groups(_ANY, await admin.groups())
    return set(found).difference(await _mirrored_groups(connections, None))


def _within_patience(ctx: typer.Context, incomplete: str, look: Look) -> list[str]:
    """Return what `look` finds in time; a thread looks, because a silent cluster holds up an event loop's end, too."""
    found: list[str] = []

    async def ask() -> None:
        call = _call(ctx)
        async with call.connections() as connections:
            found.extend(await look(connections, call.link(ctx.params.get("link"))))

    def looker() -> None:
        try:
            asyncio.run(ask())
        except Exception:  # a shell's line is no place for an error
            found.clear()

    thread = threading.Thread(target=looker, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return _offered(found, incomplete)


def _call(ctx: typer.Context) -> Call:
    config = ctx.params.get("config")
    return Call(None if config is None else Path(config), ctx.params.get("target"), json=True)


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name))
