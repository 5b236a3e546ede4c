"""Answers ApiVersions requests: brokers' answers, cut down to what the router offers (`wire.apis`)."""

from __future__ import annotations

from collections.abc import Sequence

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    blank,
    decode_body,
    element_type,
    entity,
    frame_answer,
    recast,
    replace,
)
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import correlation_id
from kmigrate.router.wire.apis import OFFERED

__all__ = ["answer_api_versions", "common_api_versions", "filter_api_versions", "unsupported_api_versions"]

_HIDDEN_FEATURES = frozenset({"transaction.version", "streams.version"})
"""Finalized features that would make clients use hidden APIs (B11)."""


def filter_api_versions(frame: bytearray, version: int) -> bytes:
    """Return a broker's ApiVersions answer (whole frame in and out), cut down to what the router offers.

    An unknown version is answered in version 0 with error 35 (KIP-511, D7). The response header never has tags (D8).
    """
    if frame[8:10] == Code.UNSUPPORTED_VERSION.to_bytes(2, "big"):
        version = 0
    answer = decode_body(entity(ApiKey.API_VERSIONS, version, "response"), frame, 8)
    return frame_answer(_offered(answer), correlation_id(frame))


def _offered(answer: Message) -> Message:
    keys = []
    for key in answer.api_keys:
        api = OFFERED.get(int(key.api_key))
        if api is not None:
            low, high = max(api.versions[0], int(key.min_version)), min(api.versions[1], int(key.max_version))
            if low <= high:
                keys.append(replace(key, min_version=low, max_version=high))
    features = {
        name: tuple(feature for feature in getattr(answer, name) if str(feature.name) not in _HIDDEN_FEATURES)
        for name in ("supported_features", "finalized_features")
        if hasattr(answer, name)
    }
    return replace(answer, api_keys=tuple(keys), **features)


def answer_api_versions(target: Message, version: int, correlation: int) -> bytes:
    """Return the answer to an ApiVersions request, made from the ApiVersions answers of the target's brokers."""
    return frame_answer(_offered(recast(target, entity(ApiKey.API_VERSIONS, version, "response"))), correlation)


def common_api_versions(answers: Sequence[Message]) -> Message:
    """Return the first of several brokers' ApiVersions answers, cut down to what all of the brokers speak."""
    spans = [{int(key.api_key): key for key in answer.api_keys} for answer in answers]
    keys = []
    for key in answers[0].api_keys:
        spoken = [each[int(key.api_key)] for each in spans if int(key.api_key) in each]
        low, high = max(int(each.min_version) for each in spoken), min(int(each.max_version) for each in spoken)
        if len(spoken) == len(answers) and low <= high:
            kind = type(key.min_version)
            keys.append(replace(key, min_version=kind(low), max_version=kind(high)))
    return replace(answers[0], api_keys=tuple(keys))


def unsupported_api_versions(correlation: int) -> bytes:
    """Return the answer to an ApiVersions request newer than the router knows: try again with this range (KIP-511)."""
    kind = entity(ApiKey.API_VERSIONS, 0, "response")
    low, high = OFFERED[ApiKey.API_VERSIONS].versions
    key = element_type(kind, "api_keys")(api_key=ApiKey.API_VERSIONS, min_version=low, max_version=high)
    return frame_answer(blank(kind, error_code=Code.UNSUPPORTED_VERSION, api_keys=(key,)), correlation)
