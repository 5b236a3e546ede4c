"""kafka-python 2.0.2: the examples of its README as programs. The version asks for metadata in versions 0 and 1."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.programs import ProgramSuite
from tests.conformance.suite import Place, must

__all__ = ["KafkaPython2"]

_SIX = "six==1.17.0"
"""Newer than the six within kafka-python 2.0.2, which Python 3.12 cannot load."""
_BEGIN = """import sys
import time

import six

sys.modules.update({"kafka.vendor.six": six, "kafka.vendor.six.moves": six.moves})
from kafka import KafkaConsumer, KafkaProducer

bootstrap, topic, *more = sys.argv[1:]
"""
_WRITER = """count, rate = map(int, more)
producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", retries=100, max_in_flight_requests_per_connection=1)
begun = time.monotonic()
for number in range(count):
    future = producer.send(topic, b"some_message_bytes %d" % number)
    future.add_errback(lambda error: print("ERROR", type(error).__name__, error, flush=True))
    time.sleep(max(0.0, begun + number / rate - time.monotonic()))
producer.flush()
"""
_READER = """consumer = KafkaConsumer(
    topic, group_id=more[0], bootstrap_servers=bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=3000
)
for record in consumer:
    print(record, flush=True)
"""


class KafkaPython2(ProgramSuite):
    name = "kafka-python-2"
    package = "kafka-python (PyPI)"
    version = "2.0.2"
    settings: Mapping[str, str] = {
        "programs": "the README's producer with acks=all and retries, and the README's consumer in a group",
    }
    record = r"^ConsumerRecord\(topic='[^']*', partition=(?P<partition>\d+), offset=(?P<offset>\d+),"
    error = r"^ERROR|^Traceback"

    def build(self, folder: Path) -> None:
        must([sys.executable, "-m", "venv", "venv"], folder)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        must([*pip, f"kafka-python=={self.version}", _SIX], folder)

    def writer(self, place: Place, topic: str, count: int, rate: int) -> Sequence[str]:
        return [*self._program(place, "writer", _WRITER), place.bootstrap, topic, str(count), str(rate)]

    def reader(self, place: Place, topic: str, group: str) -> Sequence[str]:
        return [*self._program(place, "reader", _READER), place.bootstrap, topic, group]

    def _program(self, place: Place, name: str, text: str) -> Sequence[str]:
        """Write a program, and return the command that runs the program."""
        path = place.folder / f"{name}.py"
        path.write_text(_BEGIN + text, encoding="utf-8")
        return [str(self.folder() / "venv/bin/python"), str(path)]
