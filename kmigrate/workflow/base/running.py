"""Tells which processes of kmigrate are heard of, and the commands that start a missing process."""

from __future__ import annotations

from kmigrate.model.presences import ControllerPresence, MirrorPresence, RouterPresence
from kmigrate.model.records import CopyEngine, RouterRecord
from kmigrate.state.log import StateLog

__all__ = [
    "START_CONTROLLER",
    "START_ROUTER",
    "controller_runs",
    "mirror_runs",
    "no_mirror",
    "registered_routers",
    "start_mirror",
    "until_mirroring",
]

START_CONTROLLER = "kmigrate run, or kmigrate controller run alone"
START_ROUTER = "kmigrate run, or kmigrate router run alone"


def registered_routers(log: StateLog) -> list[tuple[RouterRecord, RouterPresence | None]]:
    """Return the registered routers, each with its report; None for a router that was not heard of lately."""
    alive = {presence.instance: presence for presence in log.alive(RouterPresence)}
    return [(router, alive.get(router.instance)) for router in log.state.routers()]


def mirror_runs(log: StateLog, link: str) -> bool:
    """Return whether a mirror process of the link was heard of in the last seconds."""
    return any(each.link == link and each.engine is CopyEngine.DAEMON for each in log.alive(MirrorPresence))


def controller_runs(log: StateLog) -> bool:
    """Return whether a controller process was heard of in the last seconds."""
    return bool(log.alive(ControllerPresence))


def no_mirror(link: str) -> str:
    return f"no mirror process of link {link} is heard of"


def start_mirror(link: str) -> str:
    return f"kmigrate run, or kmigrate mirror run --link {link} alone"


def until_mirroring(log: StateLog, link: str) -> str:
    """Return what a person does until a topic is mirroring: wait for the mirror, or start a mirror."""
    if mirror_runs(log, link):
        return "wait until the topic is mirroring: kmigrate status --watch"
    return f"{no_mirror(link)}; start a mirror: {start_mirror(link)}"
