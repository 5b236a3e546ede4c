"""The table from a standing to the next step: the first row that fits decides.

A row is a function that returns the next step, or None if another row decides. No row asks a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from kmigrate.cli.guide.place import NOWHERE, Place
from kmigrate.cli.guide.standing import Standing
from kmigrate.model.lifecycle import AT_TARGET, NOT_COPIED_YET, PROMOTING, ROLLING_BACK, GroupPhase, TopicPhase
from kmigrate.model.words import advised

__all__ = ["NextStep", "Stage", "next_step"]


class Stage(StrEnum):
    """The part of a migration that comes next."""

    CONFIGURE = "configure"
    CREATE_LINK = "create-link"
    CHOOSE_LINK = "choose-link"
    REACH_CLUSTER = "reach-cluster"
    CHOOSE = "choose"
    START = "start-processes"
    RESUME = "resume"
    COPY = "copy"
    PROMOTE = "promote-goes-on"
    MOVE_PRODUCERS = "move-producers"
    MOVE_CONSUMERS = "move-consumers"
    PROMOTE_GROUPS = "promote-groups"
    PROMOTE_TOPICS = "promote-topics"
    FINISH = "finish-link"
    LEAVE = "clients-leave"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step in plain words, and the command that carries the step out."""

    stage: Stage
    what: str
    command: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def next_step(standing: Standing, place: Place = NOWHERE) -> NextStep:
    """Return the next step of a migration; its command has the flags of the place."""
    found = next(step for row in _ROWS if (step := row(standing)) is not None)
    return replace(found, command=place.at(found.command))


def _configure(at: Standing) -> NextStep | None:
    if len(at.clusters) >= 2:
        return None
    found = (
        f"{at.place} names only cluster {at.clusters[0]}" if at.clusters else f"no cluster is configured in {at.place}"
    )
    return NextStep(Stage.CONFIGURE, f"{found}: write a configuration with a source and a target", "kmigrate init")


def _create_link(at: Standing) -> NextStep | None:
    if at.links:
        return None
    what = "there is no link yet: create the link from the source to the target"
    return NextStep(Stage.CREATE_LINK, what, "kmigrate link create NAME --source SOURCE --target TARGET")


def _choose_link(at: Standing) -> NextStep | None:
    if at.link:
        return None
    return NextStep(Stage.CHOOSE_LINK, f"there are several links: {', '.join(at.links)}", "kmigrate guide --link NAME")


def _reach(at: Standing) -> NextStep | None:
    if not at.trouble or at.all_promoted:
        return None
    return NextStep(Stage.REACH_CLUSTER, f"a cluster of the link does not answer: {at.trouble}", "kmigrate doctor")


def _choose(at: Standing) -> NextStep | None:
    if at.topics or at.finished:
        return None
    what = "no topic is mirrored yet: choose topics and groups"
    return NextStep(Stage.CHOOSE, what, advised("topic mirror", at.link, "TOPIC"))


def _start(at: Standing) -> NextStep | None:
    if not at.missing or at.finished:
        return None
    what = f"not heard of: {', '.join(at.missing)}; start the processes in another terminal, or as services"
    return NextStep(Stage.START, what, "kmigrate run")


def _resume(at: Standing) -> NextStep | None:
    stopped = [each.topic for each in at.topics if each.stopped and each.phase not in AT_TARGET]
    if not stopped:
        return None
    what = f"the copy stands still at {_some(stopped)}: kmigrate topic show TOPIC says why"
    return NextStep(Stage.RESUME, what, advised("topic resume", at.link, *stopped))


def _copy(at: Standing) -> NextStep | None:
    early = [each.topic for each in at.topics if each.phase in NOT_COPIED_YET]
    if not early:
        return None
    return NextStep(Stage.COPY, f"the copy begins: {_some(early)}", "kmigrate status --watch")


def _promote_goes_on(at: Standing) -> NextStep | None:
    going = [each.topic for each in at.topics if each.phase in PROMOTING]
    going += [each.group for each in at.groups if each.phase is GroupPhase.PROMOTING]
    back = [each.topic for each in at.topics if each.phase in ROLLING_BACK]
    back += [each.group for each in at.groups if each.phase is GroupPhase.ROLLING_BACK]
    if not going and not back:
        return None
    what = f"a promote is under way: {_some(going)}" if going else f"a rollback is under way: {_some(back)}"
    return NextStep(Stage.PROMOTE, what, "kmigrate status --watch")


def _move_producers(at: Standing) -> NextStep | None:
    written = [each.topic for each in at.topics if each.direct_writers and each.phase not in AT_TARGET]
    if not written:
        return None
    what = f"producers write to the source without a router: {_some(written)}. Restart them with the router's address"
    return NextStep(Stage.MOVE_PRODUCERS, what, "kmigrate status --watch")


def _move_consumers(at: Standing) -> NextStep | None:
    direct = [each.group for each in at.groups if each.direct > 0]
    if not direct:
        return None
    what = f"members read at the source without a router: {_some(direct)}. Restart them with the router's address"
    return NextStep(Stage.MOVE_CONSUMERS, what, "kmigrate status --watch")


def _promote_groups(at: Standing) -> NextStep | None:
    left = [each.group for each in at.groups if each.phase is GroupPhase.MIRRORED]
    if not left:
        return None
    return NextStep(
        Stage.PROMOTE_GROUPS, f"groups can move to the target: {_some(left)}", advised("group promote", at.link, *left)
    )


def _promote_topics(at: Standing) -> NextStep | None:
    left = [each.topic for each in at.topics if each.phase is TopicPhase.MIRRORING]
    if not left:
        return None
    behind = sum(each.lag for each in at.topics if each.topic in left and each.lag > 0)
    what = f"topics can move to the target: {_some(left)}; {behind:,} records behind"
    return NextStep(Stage.PROMOTE_TOPICS, what, advised("promote", at.link, *left))


def _finish(at: Standing) -> NextStep | None:
    if at.finished:
        return None
    what = "all mirrored topics and groups are on the target: let the clients leave the routers"
    return NextStep(Stage.FINISH, what, f"kmigrate link finish {at.link}")


def _leave(at: Standing) -> NextStep | None:
    if not at.clients:
        return None
    what = f"clients leave the routers: {at.clients:,} connections are left"
    return NextStep(Stage.LEAVE, what, "kmigrate status --watch")


def _done(at: Standing) -> NextStep:
    what = "the migration is done: no client is at a router, and the processes may stop"
    return NextStep(Stage.DONE, what, f"kmigrate link delete {at.link}")


_ROWS: tuple[Callable[[Standing], NextStep | None], ...] = (
    _configure,
    _create_link,
    _choose_link,
    _reach,
    _choose,
    _start,
    _resume,
    _copy,
    _promote_goes_on,
    _move_producers,
    _move_consumers,
    _promote_groups,
    _promote_topics,
    _finish,
    _leave,
    _done,
)

_SHOWN = 5


def _some(names: list[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
