"""Describes a router that is registered in the state log."""

from __future__ import annotations

from kmigrate.errors import Refused
from kmigrate.model.moments import utc_text
from kmigrate.model.records import RouterRecord

__all__ = ["already_runs"]


def already_runs(router: RouterRecord) -> Refused:
    """Return the refusal of a second router under the name of a router that runs."""
    process = f"process {router.pid} on {router.machine}" if router.pid else f"a process on {router.host}"
    since = utc_text(router.since_ms)
    return Refused(
        "router-runs",
        f"router {router.name} already runs: {process}, since {since}, at {router.bootstrap}",
        still_true="nothing was started; the running router and its clients are undisturbed",
        next_step="for one more router, choose another name (--name, or [router] name) and other ports; for one more "
        "mirror or controller: kmigrate mirror run, kmigrate controller run; to replace the running router: stop that "
        "process, or repeat with --take-over, which disconnects the clients of the running router",
    )
