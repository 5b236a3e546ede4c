"""DescribeConfigs answers for a mirrored topic: the client sees the source's configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import blank, decode_body, element_type, encode_body, entity, frame_answer, is_flexible
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from tests.unit.router.router_fakes import Stage, route

TOPIC, BROKER = 2, 4
OF_THE_TOPIC, OF_THE_BROKER = 1, 4
VERSIONS = range(1, 5)
MIRRORED = replace(route("t", Serve.FORWARD), own_configs={"cleanup.policy": "compact"})
RELAXED = {"cleanup.policy": "delete", "segment.ms": "7"}


def _described(stage: Stage, version: int, name: str, kind_of: int = TOPIC) -> dict[str, tuple[str, list[str]]]:
    """Return per key the value that the client sees and the values of the synonyms.

    The target answers with RELAXED.
    """
    kind = entity(32, version, "request")
    asked = blank(element_type(kind, "resources"), resource_type=kind_of, resource_name=name, configuration_keys=None)
    raw = encode_request_head(32, version, 7, b"c", is_flexible(32, version))
    raw += encode_body(blank(kind, resources=(asked,), include_synonyms=True))
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))
    answer_kind = entity(32, version, "response")
    result_type = element_type(answer_kind, "results")
    config_type = element_type(result_type, "configs")
    synonym_type = element_type(config_type, "synonyms")
    configs = []
    for key, value in RELAXED.items():
        sources = ((key, value, OF_THE_TOPIC), (f"log.{key}", "default", OF_THE_BROKER))
        synonyms = tuple(blank(synonym_type, name=n, value=v, source=s) for n, v, s in sources)
        configs.append(blank(config_type, name=key, value=value, config_source=OF_THE_TOPIC, synonyms=synonyms))
    result = blank(result_type, resource_type=kind_of, resource_name=name, configs=tuple(configs))
    stage.edge.sent[-1].answered_with(bytearray(frame_answer(blank(answer_kind, results=(result,)), 7)))
    reply = stage.edge.replies[-1]
    told: Any = decode_body(answer_kind, reply, response_body_offset(reply, answer_kind.__flexible__))
    [only] = told.results
    return {str(c.name): (str(c.value), [str(each.value) for each in c.synonyms]) for c in only.configs}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_relaxed_for_the_mirror_is_told_as_it_is_on_the_source(version: int) -> None:
    assert _described(Stage(MIRRORED), version, "t") == {
        "cleanup.policy": ("compact", ["compact", "default"]),
        "segment.ms": ("7", ["7", "default"]),
    }


@pytest.mark.parametrize(("name", "kind_of"), [("another", TOPIC), ("t", BROKER)])
def test_everything_else_is_told_as_the_target_has_it(name: str, kind_of: int) -> None:
    told = _described(Stage(MIRRORED), 4, name, kind_of)
    assert {key: value for key, (value, _) in told.items()} == RELAXED
