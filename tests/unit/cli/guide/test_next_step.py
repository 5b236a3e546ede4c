"""The table from a standing to the next step: each row decides once, and an earlier row wins over a later row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmigrate.cli.guide.next_step import NextStep, Stage, next_step
from kmigrate.cli.guide.standing import GroupStanding, Standing, TopicStanding
from kmigrate.model.lifecycle import GroupPhase, TopicPhase

_TWO = Standing("kmigrate.toml", ("new", "old"))
_LINKED = replace(_TWO, links=("blue",), link="blue", source="old", target="new")


def topic(phase: TopicPhase = TopicPhase.MIRRORING, **more: Any) -> TopicStanding:
    return TopicStanding("orders", phase, **{"lag": 0, **more})


def group(phase: GroupPhase = GroupPhase.MIRRORED, direct: int = 0) -> GroupStanding:
    return GroupStanding("billing", phase, direct)


def linked(*each: TopicStanding | GroupStanding, **more: Any) -> Standing:
    topics = tuple(one for one in each if isinstance(one, TopicStanding))
    groups = tuple(one for one in each if isinstance(one, GroupStanding))
    return replace(_LINKED, topics=topics, groups=groups, **more)


_DONE = (topic(TopicPhase.PROMOTED), group(GroupPhase.PROMOTED))


@pytest.mark.parametrize(
    ("standing", "stage", "command"),
    [
        (Standing("the environment"), Stage.CONFIGURE, "kmigrate init"),
        (Standing("kmigrate.toml", ("old",)), Stage.CONFIGURE, "kmigrate init"),
        (_TWO, Stage.CREATE_LINK, "kmigrate link create NAME --source SOURCE --target TARGET"),
        (replace(_TWO, links=("blue", "red")), Stage.CHOOSE_LINK, "kmigrate guide --link NAME"),
        (linked(trouble="old does not answer"), Stage.REACH_CLUSTER, "kmigrate doctor"),
        (linked(), Stage.CHOOSE, "kmigrate topic mirror --link blue TOPIC"),
        (linked(topic(), missing=("router",)), Stage.START, "kmigrate run"),
        (linked(topic(stopped=True)), Stage.RESUME, "kmigrate topic resume --link blue orders"),
        (linked(topic(TopicPhase.ALIGNING)), Stage.COPY, "kmigrate status --watch"),
        (linked(topic(TopicPhase.FENCING)), Stage.PROMOTE, "kmigrate status --watch"),
        (linked(topic(), group(GroupPhase.PROMOTING)), Stage.PROMOTE, "kmigrate status --watch"),
        (linked(topic(direct_writers=2)), Stage.MOVE_PRODUCERS, "kmigrate status --watch"),
        (linked(topic(), group(direct=1)), Stage.MOVE_CONSUMERS, "kmigrate status --watch"),
        (linked(topic(), group()), Stage.PROMOTE_GROUPS, "kmigrate group promote --link blue billing"),
        (linked(topic(), group(direct=-1)), Stage.PROMOTE_GROUPS, "kmigrate group promote --link blue billing"),
        (linked(topic(lag=7), group(GroupPhase.PROMOTED)), Stage.PROMOTE_TOPICS, "kmigrate promote --link blue orders"),
        (linked(*_DONE), Stage.FINISH, "kmigrate link finish blue"),
        (linked(*_DONE, trouble="old does not answer"), Stage.FINISH, "kmigrate link finish blue"),
        (linked(*_DONE, finished=True, clients=3), Stage.LEAVE, "kmigrate status --watch"),
        (linked(*_DONE, finished=True, missing=("router",)), Stage.DONE, "kmigrate link delete blue"),
    ],
)
def test_each_standing_has_one_next_step(standing: Standing, stage: Stage, command: str) -> None:
    found = next_step(standing)
    assert (found.stage, found.command) == (stage, command)
    assert found.what


def test_every_stage_is_the_next_step_of_some_standing() -> None:
    marks = getattr(test_each_standing_has_one_next_step, "pytestmark", [])
    assert {row[1] for mark in marks for row in mark.args[1]} == set(Stage)


def test_the_lag_of_promoted_topics_and_an_unknown_lag_do_not_count() -> None:
    other = TopicStanding("audit", TopicPhase.PROMOTED, 50)
    unknown = TopicStanding("payments", TopicPhase.MIRRORING, -1)
    found = next_step(linked(topic(lag=7), other, unknown))
    assert found.what == "topics can move to the target: orders, payments; 7 records behind"


def test_many_names_are_counted() -> None:
    many = [TopicStanding(f"t{number}", TopicPhase.ALIGNING, 0) for number in range(8)]
    assert next_step(linked(*many)) == NextStep(
        Stage.COPY, "the copy begins: t0, t1, t2, t3, t4 and 3 more", "kmigrate status --watch"
    )
