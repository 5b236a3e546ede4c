"""What one connection is remembered by: batches that must come again, and no end of them."""

from __future__ import annotations

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import Code
from kmigrate.router import identities
from tests.unit.router.router_fakes import Stage, batch, route


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_MOST_STOPPED", 10)


def test_a_client_that_never_sends_again_what_was_not_taken_loses_its_connection() -> None:
    stage = Stage(route("t", Serve.HIDDEN))
    for producer in range(11):
        stage.produce(("t", 0, batch(producer=producer)))
    assert {answer[2] for _, told in stage.told() for answer in told} == {Code.NOT_LEADER_OR_FOLLOWER}
    assert stage.edge.closed == []
    for producer in range(11, 100):
        stage.produce(("t", 0, batch(producer=producer)))
        assert stage.edge.closed.pop() == "a client does not send again what was not taken of it"
    assert len(stage.told()) == 11


def test_a_client_that_sends_it_again_keeps_its_connection_however_often_that_happens() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for sequence in range(50):
        stage.produce(("t", 0, batch(sequence=sequence)))
        stage.edge.sent[-1].answer(Code.NOT_LEADER_OR_FOLLOWER)
        stage.produce(("t", 0, batch(sequence=sequence)))
        stage.edge.sent[-1].answer()
    assert stage.edge.closed == []
    assert [told[0][2] for _, told in stage.told()] == [Code.NOT_LEADER_OR_FOLLOWER, 0] * 50
