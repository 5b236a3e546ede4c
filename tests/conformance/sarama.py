"""sarama: a client in Go, by two of its own programs: its producer for measurements, its example of a group."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.programs import ProgramSuite
from tests.conformance.suite import Place, must, need

__all__ = ["Sarama", "as_program"]

_EXAMPLE = "consumer_group_example_test.go"
_WRITER = "tools/kafka-producer-performance"
_ERRORS = "config.Consumer.Return.Errors = true"
_CHANGES = (
    ("//go:build !functional\n", ""),
    ("package sarama\n", "package main\n"),
    ("import (\n", 'import (\n\t"os"\n\n\t. "github.com/IBM/sarama"\n'),
    ("func ExampleConsumerGroup()", "func main()"),
    ("NewTestConfig()", "NewConfig()"),
    (_ERRORS, f"{_ERRORS}\n\tconfig.Consumer.Offsets.Initial = OffsetOldest"),
    ('"localhost:9092"', "os.Args[1]"),
    ('"my-topic"', "os.Args[2]"),
    ('"my-group"', "os.Args[3]"),
)
"""Changes that make a program of the example: names in place of constants, and a group that begins at the oldest."""


class Sarama(ProgramSuite):
    name = "sarama"
    package = "github.com/IBM/sarama"
    version = "v1.61.1"
    settings: Mapping[str, str] = {
        "programs": "kafka-producer-performance with acks=all, and the example of a consumer group",
    }
    record = r'^Message topic:".*" partition:(?P<partition>\d+) offset:(?P<offset>\d+)$'
    error = r"^ERROR|panic|Failed to"

    def build(self, folder: Path) -> None:
        go = need("go", "sarama's programs")
        told = must([go, "mod", "download", "-json", f"{self.package}@{self.version}"], folder)
        source = folder / "source"
        shutil.copytree(json.loads(told)["Dir"], source, copy_function=shutil.copyfile)
        example = source / "tools" / "example"
        example.mkdir(mode=0o755)
        (example / "main.go").write_text(as_program((source / _EXAMPLE).read_text("utf-8")), encoding="utf-8")
        for package, program in ((_WRITER, "writer"), ("tools/example", "reader")):
            must([go, "build", "-p", "1", "-o", str(folder / program), f"./{package}"], source)

    def writer(self, place: Place, topic: str, count: int, rate: int) -> Sequence[str]:
        return [
            str(self.folder() / "writer"), "-brokers", place.bootstrap, "-topic", topic, "-version", "2.8.0",
            "-message-load", str(count), "-message-size", "100", "-throughput", str(rate), "-required-acks", "-1",
        ]  # fmt: skip

    def reader(self, place: Place, topic: str, group: str) -> Sequence[str]:
        return [str(self.folder() / "reader"), place.bootstrap, topic, group]


def as_program(example: str) -> str:
    """Return the example of a consumer group as a program with three arguments: address, topic and group."""
    for before, after in _CHANGES:
        if before not in example:
            raise ValueError(f"the example has no {before!r}")
        example = example.replace(before, after, 1)
    return example
