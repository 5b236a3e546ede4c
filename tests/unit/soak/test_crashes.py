"""The durable writes at which the soak of crashes lets a process die: none is left out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from kmigrate.cluster.admin import Admin
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TopicRecord
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import ApiKey
from tests.integration.dying import ADMIN, COPY, UNCOUNTED, DurableWrites, name_of, watched

READS = {
    "broker_config", "broker_configs", "describe_groups", "groups", "topic_config_outcomes", "topic_configs",
    "try_topics",
}  # fmt: skip
"""The methods of Admin that change nothing."""


class Ended(Exception):
    """The end of a process, for tests."""


def end() -> None:
    raise Ended


@pytest.mark.parametrize(
    ("dies_at", "ends", "later"),
    [
        ("before:2", [False, True, False], [False, False, False]),
        ("after:2", [False, False, False], [False, True, False]),
        ("before:topic promoted", [False, True, False], [False, False, False]),
        ("after:topic promoted", [False, False, False], [False, True, False]),
        ("before:4", [False, False, False], [False, False, False]),
        ("", [False, False, False], [False, False, False]),
    ],
)
def test_a_process_dies_at_one_write_given_by_number_or_name(
    dies_at: str, ends: Sequence[bool], later: Sequence[bool], tmp_path: Path
) -> None:
    writes = DurableWrites(dies_at, str(tmp_path / "written"), end)
    found = []
    for name in ("barrier", "topic promoted", "topic promoted"):
        try:
            found.append((False, writes.reach(name)))
        except Ended:
            found.append((True, False))
    assert found == list(zip(ends, later, strict=True))
    assert (tmp_path / "written").read_text() == "barrier\ntopic promoted\ntopic promoted\n"


def test_the_first_batch_of_a_copy_is_a_write_and_so_is_the_first_after_each_new_producer_id() -> None:
    writes = DurableWrites(f"before:{COPY}", "", end)
    with pytest.raises(Ended):
        writes.reach_copy()
    assert [writes.reach_copy() for _ in range(3)] == [False, False, False]
    writes = DurableWrites("after:3", "", end)
    assert writes.reach_copy() is False
    assert writes.reach(ApiKey.INIT_PRODUCER_ID.name) is False
    assert writes.reach_copy() is True


def test_every_method_of_the_admin_client_is_known_as_a_read_or_as_a_write() -> None:
    methods = {name for name, _ in inspect.getmembers(Admin, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert methods == ADMIN | READS


@pytest.mark.parametrize("api", [each for each in ApiKey if each not in UNCOUNTED], ids=lambda api: api.name)
def test_every_api_that_is_not_known_to_write_nothing_is_a_write(api: ApiKey, tmp_path: Path) -> None:
    async def scenario() -> None:
        answered: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        ended: list[bool] = []
        with ExitStack() as patches:
            watched(DurableWrites(f"after:{api.name}", str(tmp_path / "written"), lambda: ended.append(True)), patches)
            connection = BrokerConnection("host:1", "client")
            for sent in (ApiKey.METADATA, api):
                connection._request(sent, 0, [], answered, False)
            answered.set_result(bytearray())
            await asyncio.sleep(0)
        assert ended == [True]

    asyncio.run(scenario())
    assert (tmp_path / "written").read_text() == f"{api.name}\n"


def test_a_record_of_the_state_log_is_named_by_kind_and_phase() -> None:
    record = TopicRecord("blue", "orders", TopicPhase.PROMOTED, 1)
    assert name_of(record.key, record) == "topic promoted"
    assert name_of(record.key, None) == "topic removed"
