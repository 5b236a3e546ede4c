"""A mirror process for tests that kill or stop the mirror: the engine, composed as the command line does.

python tests/integration/mirror_process.py LINK SOURCE_BOOTSTRAP TARGET_BOOTSTRAP INSTANCE LEASE_S [apart|short]

With `apart` a batch and the markers behind the batch never leave together; with `short` no window has several holes.
"""

from __future__ import annotations

import gc
import sys

import uvloop

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.process.engine import MirrorEngine
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.settings import ClusterSettings
from kmigrate.state.log import StateLog


def settings_of(name: str, bootstrap: str) -> ClusterSettings:
    pairs = (address.rsplit(":", 1) for address in bootstrap.split(","))
    return ClusterSettings(name, tuple((host, int(port)) for host, port in pairs))


async def main(
    link: str, source_bootstrap: str, target_bootstrap: str, instance: str, lease_s: str, windows: str = "long"
) -> None:
    ours, theirs = settings_of("source", source_bootstrap), settings_of("target", target_bootstrap)
    async with (
        ClusterClient(ours) as source,
        ClusterClient(theirs) as target,
        ClusterClient(theirs) as state,
        StateLog(state) as log,
    ):
        print("running", flush=True)
        settings = MirrorSettings(lease_s=float(lease_s), windows=windows != "apart", long_windows=windows == "long")
        mirrored = MirroredLink(source, target, Admin(ours), Admin(theirs), link, log, instance, settings)
        await MirrorEngine(mirrored).run()


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # Set by `cli.process.engines` too, for the same reason.
    uvloop.run(main(*sys.argv[1:7]))
