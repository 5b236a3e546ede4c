"""Open transactions whose end this router was not told: their clients are gone, or end them at another router.

While such a transaction counts as open, a fence at those topics is not complete. So under a fence the router asks the
source's coordinators. The router believes only a coordinator that calls the transaction ended. If the coordinators
cannot be asked, the transaction counts on until its client sends a request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from kmigrate.model.routes import Serve
from kmigrate.router.shared.state import SharedState

__all__ = ["OpenAtSource", "end_forgotten"]

OpenAtSource = Callable[[str, Collection[str]], Awaitable[Collection[str]]]
"""Returns the transactional ids of a link that its source calls open; all of them if the source cannot tell."""


async def end_forgotten(shared: SharedState, open_at_source: OpenAtSource) -> None:
    """Ask once about all open transactions at fenced topics."""
    fenced = {route.key for route in shared.table.topics.values() if route.serve is Serve.HOLD}
    seen = {
        (link, name): (entry, entry.asked)
        for link, name, entry in shared.open_at_source.at_any(fenced)
        if not entry.asking
    }
    for link in sorted({link for link, _ in seen}):
        names = {name for each, name in seen if each == link}
        for name in names.difference(await open_at_source(link, names)):
            entry, asked = seen[link, name]
            # A request sent meanwhile may have begun a transaction after the coordinator's answer.
            if shared.open_at_source.entries.get((link, name)) is entry and entry.asked == asked:
                shared.ended(link, name)
