"""Tests of metadata answers with and without news, and of the choice between two answers."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.cluster import metadata
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata, PartitionInfo, TopicInfo, _newest
from kmigrate.errors import Refused
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import element_type, encode_body, entity
from kmigrate.protocol.metadata import decode_metadata

_HEAD = b"\0\0\0\x10\0\0\0\x01\0"
"""The bytes before a flexible answer's body: size, correlation id and no tags."""


def answer_of(
    *brokers: int, cluster: str = "c", error: ErrorCode = ErrorCode.none, leaders: Sequence[int] = (), id_: int = 1
) -> bytearray:
    """Return a metadata answer with these brokers, each at the port of its number.

    The error is the error of topic t. The leaders are leaders of its partitions, each in the epoch of its number.
    """
    return _answer(*leaders, brokers=brokers, cluster=cluster, error=error, id_=id_)


def _answer(
    *leaders: int,
    error: ErrorCode = ErrorCode.none,
    controller: int = 1,
    brokers: Sequence[int] = (1,),
    cluster: str = "c",
    id_: int = 1,
) -> bytearray:
    kind = entity(3, 10, "response")
    topic, broker = element_type(kind, "topics"), element_type(kind, "brokers")
    partition = element_type(topic, "partitions")
    parts = tuple(
        partition(
            error_code=ErrorCode.none,
            partition_index=n,
            leader_id=leader,
            leader_epoch=leader,
            replica_nodes=(leader,),
            isr_nodes=(leader,),
            offline_replicas=(),
        )
        for n, leader in enumerate(leaders)
    )
    topic_id = UUID(int=id_) if id_ else None
    told = kind(
        throttle_time=dt.timedelta(),
        brokers=tuple(broker(node_id=node, host="127.0.0.1", port=node, rack=None) for node in brokers),
        cluster_id=cluster,
        controller_id=controller,
        topics=(topic(error_code=error, name="t", topic_id=topic_id, is_internal=False, partitions=parts),),
    )
    return bytearray(_HEAD + encode_body(told))


class _Broker:
    address = "127.0.0.1:1"

    def __init__(self, *answers: bytearray) -> None:
        self.answers = list(answers)

    def send(self, api_key: int, *_: Any, **__: Any) -> asyncio.Future[bytearray]:
        """The client asks for the broker's versions before the first metadata."""
        return asyncio.ensure_future(self.call_raw() if api_key == 3 else self.spoken())

    async def call_raw(self, *_: Any, **__: Any) -> bytearray:
        await asyncio.sleep(0)
        return self.answers.pop(0)

    async def spoken(self) -> bytearray:
        return versions()


def versions(**newest: int) -> bytearray:
    """Return the versions of a broker of Kafka 2.8, with the given replacements."""
    spoken = {"metadata": 10, "fetch": 12, "produce": 9, **newest}
    keys = {"produce": 0, "fetch": 1, "metadata": 3}
    kind = entity(18, 0, "response")
    key_type = element_type(kind, "api_keys")
    keys_told = tuple(
        key_type(api_key=keys[name], min_version=0, max_version=version) for name, version in spoken.items()
    )
    return bytearray(_HEAD[:8] + encode_body(kind(error_code=ErrorCode.none, api_keys=keys_told)))


def _client(*answers: bytearray) -> ClusterClient:
    client = ClusterClient(ClusterSettings("c", (("127.0.0.1", 1),)))
    broker = _Broker(*answers)

    async def bootstrap() -> BrokerConnection:
        return cast("BrokerConnection", broker)

    client.bootstrap = bootstrap  # type: ignore[method-assign]
    return client


@pytest.mark.parametrize(
    ("spoken", "missing"),
    [
        ({"metadata": 9, "fetch": 11, "produce": 8}, "metadata 10, fetch 12, produce 9"),
        ({"fetch": 11}, "fetch 12"),
    ],
    ids=["kafka 2.6", "another server"],
)
def test_a_cluster_that_is_too_old_is_refused_by_name(
    spoken: dict[str, int], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a broker closes the connection at each unknown request; the client used to try again for ever."""

    async def told(_: Any) -> bytearray:
        return versions(**spoken)

    async def scene() -> None:
        with pytest.raises(Refused) as caught:
            await _client().refresh(["t"])
        assert caught.value.ref == "cluster-too-old"
        assert f"does not speak {missing}, as Kafka does from 2.8 on" in caught.value.what

    monkeypatch.setattr(_Broker, "spoken", told)
    asyncio.run(scene())


@pytest.mark.parametrize(
    ("error", "taken"),
    [
        (ErrorCode.unknown_topic_or_partition, set()),
        (ErrorCode.topic_authorization_failed, {"t"}),
        (ErrorCode.invalid_topic_exception, {"t"}),
        (ErrorCode.none, {"t"}),
    ],
)
def test_of_names_of_a_clients_choosing_nothing_is_kept(error: ErrorCode, taken: set[str]) -> None:
    """Otherwise a client that asks for ever new names would fill the memory."""

    async def scene() -> None:
        client = _client(_answer(error=error))
        assert await client.names_taken(["t"]) == taken
        assert client.metadata.topics == {}

    asyncio.run(scene())


def test_the_same_answer_to_the_same_question_changes_nothing() -> None:
    async def scene() -> None:
        client = _client(_answer(1), _answer(1), _answer(2))
        first = await client.refresh(["t"])
        assert await client.refresh(["t"]) is first
        await client.refresh(["t"])
        assert client.leader("t", 0) == 2

    asyncio.run(scene())


def test_questions_that_take_turns_are_each_answered_as_before() -> None:
    """A copier's refreshes and a partition's recovery take turns; neither has the other's answers decoded anew."""

    async def scene() -> None:
        client = _client(*(_answer(1) for _ in range(6)))
        known = await client.refresh(["t"])
        for _ in range(2):
            assert await client.refresh(["t", "u"]) is known
            assert await client.refresh(["t"]) is known
        assert len(decoded) == 2

    with decoded_answers() as decoded:
        asyncio.run(scene())


def test_answers_that_differ_in_the_controller_alone_are_read_once_each() -> None:
    """KRaft brokers name any living broker as controller, another broker in each answer."""

    async def scene() -> None:
        client = _client(*(_answer(1, controller=number % 3) for number in range(9)), _answer(2))
        known = await client.refresh(["t"])
        for _ in range(8):
            assert await client.refresh(["t"]) is known
        assert len(decoded) == 3
        await client.refresh(["t"])
        assert client.leader("t", 0) == 2

    with decoded_answers() as decoded:
        asyncio.run(scene())


def test_a_topic_is_looked_for_at_every_broker() -> None:
    """A broker that has just started may know no topic yet."""

    async def scene() -> None:
        unknown = _answer(error=ErrorCode.unknown_topic_or_partition)
        client = _client(unknown, unknown)
        other = _Broker(unknown, _answer(1))

        async def connection(node: int, purpose: str = "control") -> BrokerConnection:
            return cast("BrokerConnection", other)

        client.connection = connection  # type: ignore[method-assign]
        assert await client.find_topic("t") is None
        assert await client.find_topic("t") is not None

    asyncio.run(scene())


@contextmanager
def decoded_answers() -> Iterator[list[bytearray]]:
    """Yield a list of the answers that are decoded within the context."""
    frames: list[bytearray] = []

    def decode(frame: bytearray) -> Any:
        frames.append(frame)
        return decode_metadata(frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "decode_metadata", decode)
        yield frames


def test_the_same_answer_after_another_question_told_otherwise_is_read() -> None:
    async def scene() -> None:
        client = _client(_answer(1), _answer(error=ErrorCode.unknown_topic_or_partition), _answer(1))
        first = await client.refresh(["t"])
        assert "t" not in (await client.refresh(["t", "u"])).topics
        assert await client.refresh(["t"]) == first

    asyncio.run(scene())


def test_those_who_wait_for_their_turn_share_what_was_asked_for_after_they_came() -> None:
    """A caller never gets an answer from before the call, because the caller's reason may be newer than that answer."""

    async def scene() -> None:
        client = _client(_answer(1), _answer(2), _answer(3))
        client.metadata_cache.known = Metadata(
            "c"
        )  # known already, so that the client does not ask for the brokers' versions
        waiting = [asyncio.create_task(client.refresh(["t"])) for _ in range(5)]
        seen = [told.topics["t"].partitions[0].leader for told in await asyncio.gather(*waiting)]
        assert seen == [1, 2, 2, 2, 2]
        await client.refresh(["t"])
        assert client.leader("t", 0) == 3

    asyncio.run(scene())


def test_any_broker_is_one_that_we_are_connected_to_not_one_that_has_just_died() -> None:
    """A dead first broker used to be asked for the coordinator, which was not found until that broker came back."""
    client = _client()
    assert client.any_broker() == -1
    client.metadata_cache.known = Metadata("c", {node: ("127.0.0.1", 9090 + node) for node in (1, 2, 3)})
    assert client.any_broker() in {1, 2, 3}
    for node, lost in ((1, True), (2, False)):
        connection = SimpleNamespace(address=f"127.0.0.1:{9090 + node}", lost=lost)
        client._connections[node, "control"] = cast("BrokerConnection", connection)
    assert client.any_broker() == 2


ID, OTHER = UUID(int=1), UUID(int=2)


def topic(leader: int, epoch: int, topic_id: UUID = ID) -> TopicInfo:
    return TopicInfo("t", topic_id, {0: PartitionInfo(leader, epoch, (1, 2, 3))})


def test_a_broker_that_tells_of_an_older_leader_epoch_is_not_believed() -> None:
    assert _newest(topic(2, 8), topic(1, 7)) == topic(2, 8)


def test_the_same_or_a_later_leader_epoch_and_a_first_answer_are_believed() -> None:
    assert _newest(None, topic(1, 7)) == topic(1, 7)
    assert _newest(topic(1, 7), topic(2, 8)) == topic(2, 8)
    assert _newest(topic(2, 7), topic(-1, 7)) == topic(-1, 7)


def test_an_answer_without_epochs_and_a_topic_made_anew_are_believed() -> None:
    assert _newest(topic(2, 8), topic(1, -1)) == topic(1, -1)
    assert _newest(topic(2, 8), topic(1, 0, OTHER)) == topic(1, 0, OTHER)


def test_partitions_that_were_added_are_seen_beside_one_that_is_known_better() -> None:
    told = TopicInfo("t", ID, {0: PartitionInfo(1, 7, (1,)), 1: PartitionInfo(3, 0, (3,))})
    assert _newest(topic(2, 8), told).partitions == {0: topic(2, 8).partitions[0], 1: told.partitions[1]}


def test_an_error_in_place_of_partitions_is_told_at_every_look() -> None:
    denied = TopicInfo("t", None, {}, 29)
    assert _newest(None, denied) == denied
    assert _newest(denied, denied) == denied
