"""Topics that must be promoted together, because transactions write to these topics together."""

from __future__ import annotations

from kmigrate.model.coupling import coupled_topics
from kmigrate.model.records import TransactionRecord


def written(name: str, *topics: str) -> TransactionRecord:
    return TransactionRecord("l", name, 1, 0, 2, 0, topics)


def test_a_topic_that_is_written_alone_is_its_own_unit() -> None:
    assert coupled_topics([written("x", "a"), written("y", "b", "c")], ["a"]) == {}


def test_a_unit_is_everything_that_transactional_ids_connect() -> None:
    records = [written("x", "a", "b"), written("z", "c", "d"), written("y", "b", "c"), written("o", "e", "f")]
    assert coupled_topics(records, ["a"]) == {"b": "x", "c": "y", "d": "z"}
    assert coupled_topics(records, ["d", "a"]) == {"b": "x", "c": "z"}


def test_topics_that_are_asked_for_together_need_no_other() -> None:
    assert coupled_topics([written("x", "a", "b")], ["b", "a"]) == {}
