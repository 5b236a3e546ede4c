"""One mirror process for tests that kill or stop it: the engine, composed as the command line does it.

    python tests/integration/mirror_process.py LINK SOURCE_BOOTSTRAP TARGET_BOOTSTRAP INSTANCE [name=value …]
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import uvloop

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.engine import MirrorEngine
from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.settings import ClusterSettings
from kmigrate.state.log import StateLog


def cluster_settings(name: str, bootstrap: str) -> ClusterSettings:
    host, port = bootstrap.rsplit(":", 1)
    return ClusterSettings(name, ((host, int(port)),))


@asynccontextmanager
async def open_engine(link, source_bootstrap, target_bootstrap, instance, settings=MirrorSettings()):
    """An engine that is not running yet, with the state log it reads."""
    source_settings = cluster_settings("source", source_bootstrap)
    target_settings = cluster_settings("target", target_bootstrap)
    async with (
        ClusterClient(source_settings) as source,
        ClusterClient(target_settings) as target,
        ClusterClient(target_settings) as state_client,
        StateLog(state_client) as log,
    ):
        yield MirrorEngine(
            link, source, target, Admin(source_settings), Admin(target_settings), log, instance, settings
        ), log


async def main(link: str, source: str, target: str, instance: str, settings: MirrorSettings) -> None:
    async with open_engine(link, source, target, instance, settings) as (engine, _):
        print("running", flush=True)
        await engine.run()


def parse(words: list[str]) -> MirrorSettings:
    values = dict(word.split("=", 1) for word in words)
    settings = MirrorSettings()
    if "filler" in values:
        settings = replace(settings, hole_filler=HoleFiller(values["filler"]))
    if "lease_s" in values:
        settings = replace(settings, lease_s=float(values["lease_s"]))
    return settings


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:5], parse(sys.argv[5:])))
