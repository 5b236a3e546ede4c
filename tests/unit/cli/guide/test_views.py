"""The guide's tables."""

from __future__ import annotations

import pytest

from kmigrate.cli.base.output import Output
from kmigrate.cli.guide.survey import GroupFound, Survey, TopicFound
from kmigrate.cli.guide.views import survey_view


def test_each_topic_names_the_groups_that_read_the_topic(capsys: pytest.CaptureFixture[str]) -> None:
    groups = (GroupFound("analytics", "Stable", 1, 0, ("orders",)), GroupFound("billing", "Empty", 0, 3, ("orders",)))
    Output().show(survey_view(Survey("old", (TopicFound("orders", 1), TopicFound("audit", 2)), groups)))
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if "orders" in line and "analytics, billing" in line]
    assert [line for line in shown if "audit" in line and "none" in line]
