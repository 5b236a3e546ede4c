"""Fetch answers that the router has padded at the end, as Kafka's own library reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmigrate.kafka_jars.java import find_java
from tests.integration.java_clients import SOURCES, JavaProgram
from tests.unit.router.fetch.test_passing_fetch import SHOWN, answered, cut, leaders, passed

HOSTS = [*range(1, 40), *range(100, 160), *range(16_370, 16_410)]
"""Lengths of the broker's own host name: shorter than the router's host name, and for every way to pad."""


def test_java_reads_the_routers_endpoints_or_none_and_steps_over_what_fills_the_answer_up(tmp_path: Path) -> None:
    if not (find_java().home / "bin" / "javac").is_file():
        pytest.fail("this test needs a JDK")
    lines, wanted = [], []
    for version in (16, 17):
        for length in HOSTS:
            frame = answered(version, host="h" * length, sizes=(30, 0))
            out = b"".join(passed(frame, version, cut(frame, len(frame) // 2)))
            lines.append(f"{version} {out.hex()}")
            ends = "".join(f" end={','.join(map(str, end))}" for end in leaders(out, version))
            parts = " leader=1000001 records=30"
            wanted.append(f"left=0{ends}{parts}{parts} leader=1000002 records=0")
    told = " end=" + ",".join(map(str, SHOWN[0]))
    assert any(told in line for line in wanted)
    assert not all(told in line for line in wanted)
    answers = tmp_path / "answers.txt"
    answers.write_text("\n".join(lines), encoding="utf-8")
    with JavaProgram(tmp_path, "java") as java:
        java.run(SOURCES / "ReadFetchAnswers.java", str(answers))
        assert java.ended(90) == 0, java.said[-2000:]
        assert java.said.splitlines() == wanted
