"""The choice of topics and groups by flags."""

from __future__ import annotations

import pytest

from kmigrate.cli.base.call import Call
from kmigrate.cli.guide.answers import Answers
from kmigrate.cli.guide.selection import Selection
from kmigrate.cli.guide.standing import GroupStanding, Standing
from kmigrate.cli.guide.survey import GroupFound, Survey, TopicFound
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupPhase

_READERS = tuple(GroupFound(name, "Stable", 1, 0, ("orders",)) for name in ("analytics", "audit", "billing"))
_SURVEY = Survey("old", (TopicFound("orders", 1),), _READERS)
_AT = Standing("kmigrate.toml", link="blue", groups=(GroupStanding("billing", GroupPhase.PROMOTED),))


def selection(topic: str) -> Selection:
    return Selection(Call(), Answers([topic], ["audit"], "blue", "old", "new", None, False, "", "", None), asks=False)


def test_readers_that_are_neither_chosen_nor_mirrored_would_stay_behind(capsys: pytest.CaptureFixture[str]) -> None:
    selection("orders").choose_names(_AT, _SURVEY)
    assert "would stay behind: analytics\n" in capsys.readouterr().err


def test_a_topic_that_the_source_lacks_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        selection("oders").choose_names(_AT, _SURVEY)
    assert caught.value.ref == "unknown-topic"
