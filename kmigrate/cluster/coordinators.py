"""Questions about many groups, sent as few requests: each coordinator is asked about many of its groups at once.

Kafka before 3.0 finds one coordinator, and reads the committed offsets of one group, with each request (KIP-699,
KIP-709). An answer per group is data: a group that a coordinator refuses, or whose coordinator is silent, has its
failure as its outcome, and the other groups have their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from kmigrate.cluster.client import ClusterClient, api_versions
from kmigrate.errors import BrokerRefused, Failed, Unreachable
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of, row

__all__ = ["Answers", "AskCoordinator", "all_answered", "answered", "ask_coordinators", "one_by_one"]

_V = TypeVar("_V")
Answers = Mapping[str, tuple[int, _V | None]]
"""Error code and answer of each group."""
AskCoordinator = Callable[[int, Sequence[str]], Awaitable[Answers[_V]]]
"""A question to a coordinator, by node id, about some of its groups."""

_MOST = 100
"""Most groups in a request: decoding a larger answer would hold up a process that also copies and routes."""
_AT_ONCE = 16
"""Requests under way at a time where a broker takes only one group per request."""
_PAUSE_S = 0.1
_BATCHED_FIND = 4
"""The first version of FindCoordinator that takes many groups (KIP-699)."""


async def ask_coordinators(
    client: ClusterClient, groups: Iterable[str], ask: AskCoordinator[_V], *, what: str
) -> dict[str, _V | Failed]:
    """Ask the coordinators of groups until each group has an answer, or an error that does not pass.

    Coordinators that move or load are asked again, for a request's usual time. `what` names the request in errors.
    """
    found: dict[str, _V | Failed] = {}
    tries = Backoff(_PAUSE_S, within_s=client.settings.request_timeout_s)
    left: Collection[str] = dict.fromkeys(groups)
    while left:
        answers = await _answers(client, left, ask)
        over = tries.over
        left = []
        for group, (code, answer) in answers.items():
            if isinstance(answer, Failed) or (not code and answer is not None):
                found[group] = answer
            elif row(code).retriable and not over:
                left.append(group)
            else:
                found[group] = _refused(client, f"{what} of group {group}", code)
        if left:
            await tries.pause()
    return found


async def _answers(
    client: ClusterClient, groups: Collection[str], ask: AskCoordinator[_V]
) -> dict[str, tuple[int, _V | Failed | None]]:
    """Ask each group's coordinator once; a silent coordinator is the failure of its groups."""
    try:
        nodes = await _coordinators(client, groups)
    except Failed as failed:
        return dict.fromkeys(groups, (0, failed))
    answers: dict[str, tuple[int, _V | Failed | None]] = {}
    by_node: dict[int, list[str]] = {}
    for group in groups:
        code, node = nodes.get(group, _NOTHING)
        if node is None:
            answers[group] = code, None
        else:
            by_node.setdefault(node, []).append(group)

    async def ask_one(node: int, led: Sequence[str]) -> None:
        silent: Unreachable | None = None
        for part in _chunks(led):
            try:
                answers.update(dict.fromkeys(part, (0, silent)) if silent else await _asked(node, part, ask))
            except Unreachable as error:
                silent = error
                answers.update(dict.fromkeys(part, (0, silent)))

    await together(*(ask_one(node, led) for node, led in by_node.items()))
    return answers


_NOTHING = (Code.UNKNOWN_SERVER_ERROR, None)
"""The outcome of a group that an answer does not name."""


async def _asked(
    node: int, part: Sequence[str], ask: AskCoordinator[_V]
) -> Mapping[str, tuple[int, _V | Failed | None]]:
    try:
        return {**dict.fromkeys(part, _NOTHING), **await ask(node, part)}
    except BrokerRefused as refused:
        return dict.fromkeys(part, (0, refused))


async def _coordinators(client: ClusterClient, groups: Collection[str]) -> Answers[int]:
    """Return error code and coordinator of each group."""
    newest = (await api_versions(client)).get(ApiKey.FIND_COORDINATOR, 0)
    found: dict[str, tuple[int, int | None]] = {}
    if newest < _BATCHED_FIND:
        request = entity(ApiKey.FIND_COORDINATOR, 3, "request")

        async def find(group: str) -> tuple[int, int | None]:
            answer = await client.call(request(key=group, key_type=0))
            code = code_of(answer.error_code)
            return code, None if code else int(answer.node_id)

        return await one_by_one(groups, find)
    request = entity(ApiKey.FIND_COORDINATOR, _BATCHED_FIND, "request")
    for part in _chunks(list(groups)):
        answer = await client.call(request(key_type=0, coordinator_keys=tuple(part)))
        for each in answer.coordinators:
            code = code_of(each.error_code)
            found[str(each.key)] = code, None if code else int(each.node_id)
    return found


def _chunks(groups: Sequence[str]) -> Iterable[Sequence[str]]:
    """Yield parts of the groups, each small enough for a request."""
    return (groups[at : at + _MOST] for at in range(0, len(groups), _MOST))


async def one_by_one(
    groups: Collection[str], ask: Callable[[str], Awaitable[tuple[int, _V | None]]]
) -> dict[str, tuple[int, _V | None]]:
    """Ask about each group alone, for brokers that take no more; some requests are under way at a time."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(group: str) -> tuple[int, _V | None]:
        async with turn:
            return await ask(group)

    return dict(zip(groups, await together(*map(in_turn, groups)), strict=True))


def all_answered(outcomes: Mapping[str, _V | Failed]) -> dict[str, _V]:
    """Return the answers; raise the first failure."""
    answers: dict[str, _V] = {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, Failed):
            raise outcome
        answers[name] = outcome
    return answers


def answered(outcomes: Mapping[str, _V | Failed]) -> dict[str, _V]:
    """Return the answers without the failures."""
    return {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, Failed)}


def _refused(client: ClusterClient, what: str, code: int) -> BrokerRefused:
    return BrokerRefused(
        "broker-refused",
        f"cluster {client.settings.name} answered {what} with {row(code).name} ({code})",
        code=code,
        still_true="nothing was changed by this request",
    )
