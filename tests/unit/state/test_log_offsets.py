"""A process that starts while a leader of the logs is away asks again, and does not fail."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kmigrate.cluster.client import LATEST, ClusterClient, LogOffset
from kmigrate.cluster.health import BrokerHealth
from kmigrate.cluster.metadata import Metadata
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import Code
from kmigrate.state.log import StateLog
from kmigrate.state.topics import PRESENCE_TOPIC

KEY = (PRESENCE_TOPIC, 0)


class AwayAtFirst:
    """A cluster with scripted answers; each answer is asked for after a refresh of the metadata."""

    def __init__(self, *answers: LogOffset | Unreachable) -> None:
        self.answers = list(answers)
        self.refreshed = 0
        self.asked: list[int] = []
        self.metadata = Metadata("c")
        self.health = BrokerHealth()

    def leader(self, *_: object) -> int:
        return 0

    async def list_offsets(self, wanted: dict[Any, int], **_: object) -> dict[Any, LogOffset]:
        self.asked.append(wanted[KEY])
        answer = self.answers.pop(0)
        if isinstance(answer, Unreachable):
            raise answer
        return {KEY: answer}

    async def refresh(self, topics: object = None) -> None:
        self.refreshed += 1


def recent(cluster: AwayAtFirst) -> int:
    return asyncio.run(StateLog(cast("ClusterClient", cluster))._recent_presence())


@pytest.mark.parametrize(
    "away", [Unreachable("broker-unreachable", "refused"), LogOffset(Code.NOT_LEADER_OR_FOLLOWER, -1, -1)]
)
def test_where_the_last_minute_begins_is_asked_again_while_the_leader_is_away(away: LogOffset | Unreachable) -> None:
    cluster = AwayAtFirst(away, LogOffset(0, 41, 3))
    assert recent(cluster) == 41
    assert cluster.refreshed == 1
    assert LATEST not in cluster.asked


def test_a_log_in_which_nothing_was_said_for_a_minute_is_read_from_its_end() -> None:
    cluster = AwayAtFirst(LogOffset(0, -1, -1), LogOffset(0, 50, 3))
    assert recent(cluster) == 50
    assert cluster.asked[1] == LATEST
