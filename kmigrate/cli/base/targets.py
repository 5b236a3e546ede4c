"""The target cluster of a verb without `--target`: kmigrate never guesses between two clusters."""

from __future__ import annotations

import asyncio

from kmigrate.cluster.client import ClusterClient
from kmigrate.config.settings import Settings
from kmigrate.errors import KmigrateError, Unreachable, UsageError
from kmigrate.net.tasks import together
from kmigrate.state.topics import STATE_TOPIC

__all__ = ["find_target"]

_PROBE_SECONDS = 10.0


async def find_target(settings: Settings, flag: str | None) -> str:
    """Return --target, else [defaults] target, else the only cluster, else the only cluster with a state log."""
    named = flag or settings.defaults.target
    if named:
        return settings.cluster(named).name
    if not settings.clusters:
        raise UsageError(
            "no-config",
            f"no cluster is configured in {settings.place}",
            still_true="nothing was contacted or changed",
            next_step="write a kmigrate.toml (docs/configuration.md), give --config FILE, "
            "or try it out: kmigrate sandbox up, then export KMIGRATE_CONFIG=build/sandbox/kmigrate.toml",
        )
    if len(settings.clusters) == 1:
        return next(iter(settings.clusters))
    found, silent = await _state_logs(settings)
    if len(found) == 1:
        return found[0]
    if not found and silent:
        raise silent[0]
    which = f"clusters {', '.join(sorted(found))} each hold a state log" if found else "none holds a state log yet"
    raise UsageError(
        "no-target",
        f"which cluster is the target? {which}",
        next_step='give --target NAME, or set it in the configuration: [defaults] target = "NAME"',
    )


async def _state_logs(settings: Settings) -> tuple[list[str], list[KmigrateError]]:
    """Return the clusters with a state log, and the errors of clusters that did not answer."""
    found: list[str] = []
    silent: list[KmigrateError] = []

    async def probe(name: str) -> None:
        try:
            async with asyncio.timeout(_PROBE_SECONDS), ClusterClient(settings.cluster(name)) as client:
                if await client.topic(STATE_TOPIC) is not None:
                    found.append(name)
        except KmigrateError as error:
            silent.append(error)
        except TimeoutError:
            silent.append(Unreachable("cluster-unreachable", f"cluster {name} does not answer"))

    await together(*map(probe, settings.clusters))
    return found, silent
