"""kafka-python: a client in pure Python, with its own integration tests in the source distribution."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.conformance.suite import Hidden, Outcome, Place, Results, built, execute, must

__all__ = ["KafkaPython", "read_junit"]

_TOOLS = (
    "pytest==8.4.2", "pytest-mock==3.15.1", "pytest-timeout==2.4.0", "py==1.11.0",
    "lz4==4.4.4", "python-snappy==0.7.3", "zstandard==0.25.0",
)  # fmt: skip
_LIMIT_S = 600
_SERVICE = '''"""Stands for a module of the tests that does not ship: the broker is started by somebody else."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
'''


class KafkaPython:
    name = "kafka-python"
    package = "kafka-python (PyPI)"
    version = "3.0.12"
    floor = 40
    settings: Mapping[str, str] = {"KAFKA_VERSION": "4.3.1", "tests": "test/integration without TLS and SASL"}
    broker: Mapping[str, str] = {}
    hidden: Mapping[str, Hidden] = {}

    def prepare(self) -> None:
        self._folder()

    def _folder(self) -> Path:
        return built(self, self._build)

    def _build(self, folder: Path) -> None:
        must([sys.executable, "-m", "venv", "venv"], folder)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check"]
        source = f"kafka-python=={self.version}"
        must([*pip, "download", "--no-deps", "--no-binary", "kafka-python", "--dest", ".", source], folder)
        archive = next(folder.glob("*.tar.gz"))
        must([*pip, "install", "--quiet", archive.name, *_TOOLS], folder)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        archive.unlink()
        next(folder.glob("kafka_python-*")).rename(folder / "source")
        tests = folder / "source/test"
        (tests / "__init__.py").touch()  # does not ship, and without it Python has a `test` of its own
        (tests / "service.py").write_text(_SERVICE, encoding="utf-8")

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        folder = self._folder()
        report = place.folder / f"junit-{len(list(place.folder.glob('junit-*')))}.xml"
        chosen = sorted(only) or ["test/integration"]
        execute(
            [
                str(folder / "venv/bin/python"), "-m", "pytest", *chosen, "--timeout", "120", "-p", "no:cacheprovider",
                "--ignore", "test/integration/test_ssl_integration.py",
                "--ignore", "test/integration/test_sasl_integration.py",
                "-o", "junit_family=xunit1", "--junitxml", str(report), "-q",
            ],
            folder / "source",
            place.log,
            env={
                "KAFKA_URI": f"plaintext://{place.bootstrap}",
                "KAFKA_VERSION": self.settings["KAFKA_VERSION"],
                "KAFKA_ROOT": str(place.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            seconds=_LIMIT_S,
        )  # fmt: skip
        return read_junit(report.read_text(encoding="utf-8")) if report.exists() else {}


def read_junit(text: str) -> Results:
    """Return the outcome of each test in pytest's report, by the name that pytest takes on its command line."""
    found: Results = {}
    for case in ET.fromstring(text).iter("testcase"):
        file = case.get("file", "")
        classes = case.get("classname", "").split(".")[file.count("/") + 1 :]
        name = "::".join([file, *classes, case.get("name", "")])
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            found[name] = Outcome.FAILED
        elif found.get(name) is not Outcome.FAILED:  # an error at the end of a test is a second entry
            found[name] = Outcome.SKIPPED if "skipped" in kinds else Outcome.PASSED
    return found
