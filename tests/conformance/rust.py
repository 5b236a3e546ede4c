"""The crate rdkafka and the C library in the crate: two suites out of one fetch.

The crate carries its integration tests. librdkafka, from which the crate is built, carries its test runner. Both are
copied out of cargo's folder, because they are built in place.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.conformance.suite import Hidden, Outcome, Place, Results, built, execute, must, need

__all__ = ["Librdkafka", "Rdkafka", "read_cargo_tests", "read_runner"]

_CRATE, _LIBRARY = "0.39.0", "4.10.0+2.12.1"
_RUST = {"ok": Outcome.PASSED, "FAILED": Outcome.FAILED, "ignored": Outcome.SKIPPED}


def _fetch(package: str, folder: Path) -> Path:
    """Return the unpacked source of a crate that rdkafka consists of, as cargo fetched it."""
    cargo = need("cargo", f"{package}'s suite")
    folder.mkdir()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "lib.rs"\n'
        f'[dependencies]\nrdkafka = "={_CRATE}"\nrdkafka-sys = "={_LIBRARY}"\n',
        encoding="utf-8",
    )
    (folder / "lib.rs").touch()
    must([cargo, "fetch", "--quiet"], folder)
    told = json.loads(must([cargo, "metadata", "--quiet", "--offline", "--format-version", "1"], folder))
    return next(Path(each["manifest_path"]).parent for each in told["packages"] if each["name"] == package)


class Rdkafka:
    name = "rdkafka"
    package = "the crate rdkafka"
    version = _CRATE
    floor = 30
    settings: Mapping[str, str] = {"KAFKA_VERSION": "4.3.1", "threads": "1"}
    broker: Mapping[str, str] = {"num.partitions": "3"}
    hidden: Mapping[str, Hidden] = {}
    limit_s = 600

    def prepare(self) -> None:
        # Built in its final place: cargo writes paths into its output, and knows by itself what is up to date.
        must(self._command("--no-run"), self._source(), seconds=1500)

    def _source(self) -> Path:
        return built(self, self._unpack) / "source"

    def _unpack(self, folder: Path) -> None:
        shutil.copytree(_fetch("rdkafka", folder / "fetch"), folder / "source")

    def _command(self, *words: str) -> list[str]:
        return [need("cargo", "rdkafka's suite"), "test", "--locked", "-j1", "--no-fail-fast", "--test", "*", *words]

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        env = {"KAFKA_HOST": place.bootstrap, "KAFKA_VERSION": self.settings["KAFKA_VERSION"]}
        chosen = ["--exact", *(name.partition("::")[2] for name in sorted(only))] if only else []
        command = self._command("--", "--test-threads=1", *chosen)
        found = read_cargo_tests(execute(command, self._source(), place.log, env=env, seconds=self.limit_s).output)
        return {name: found[name] for name in only if name in found} if only else found


def read_cargo_tests(text: str) -> Results:
    """Return the outcome of each test as file::name. A test's own output may stand before the test's outcome."""
    found: Results = {}
    file = name = ""
    for line in text.splitlines():
        if started := re.match(r"\s+Running tests/(\w+)\.rs ", line):
            file, name = started[1], ""
        elif listed := re.match(r"test (\S+) \.\.\. ?(.*)$", line):
            name, line = f"{file}::{listed[1]}", listed[2]
        ended = re.search(r"(?:^|\W)(ok|FAILED|ignored)(?:, .*)?$", line)
        if name and ended and not line.startswith("test result"):
            found[name] = _RUST[ended[1]]
            name = ""
    return found


class Librdkafka:
    name = "librdkafka"
    package = "the crate rdkafka-sys, which carries librdkafka"
    version = _LIBRARY
    floor = 35
    quick: tuple[str, ...] = (
        "0001", "0002", "0003", "0005", "0007", "0008", "0011", "0012", "0013", "0014", "0015", "0017", "0022", "0029",
        "0030", "0031", "0034", "0036", "0039", "0040", "0041", "0042", "0044", "0051", "0054", "0056", "0057", "0060",
        "0063", "0067", "0069", "0070", "0073", "0081", "0083", "0085", "0086", "0090", "0099", "0112", "0113", "0118",
        "0127", "0130", "0140",
    )  # fmt: skip
    full: tuple[str, ...] = ("0018", "0019", "0050", "0061", "0137")
    """Tests of which nothing is left in a quick run."""
    settings: Mapping[str, str] = {
        "TEST_KAFKA_VERSION": "4.3.1",
        "flags": "-L -E -K -p1, and -Q where anything is left to be run quickly",
        "test.timeout.multiplier": "2",
        "quick": " ".join(quick),
        "full": " ".join(full),
    }
    broker: Mapping[str, str] = {}
    hidden: Mapping[str, Hidden] = {}

    def prepare(self) -> None:
        self._folder()

    def _folder(self) -> Path:
        return built(self, self._build)

    def _build(self, folder: Path) -> None:
        for tool in ("make", "gcc", "g++"):
            need(tool, "librdkafka's suite")
        source = folder / "source"
        shutil.copytree(_fetch("rdkafka-sys", folder / "fetch") / "librdkafka", source)
        must(["./configure", "--disable-gssapi", "--disable-curl"], source)
        must(["make", "-j1", "libs"], source)
        must(["make", "-j1", "-C", "tests", "test-runner"], source)

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        tests = self._folder() / "source/tests"
        where = place.folder / "test.conf"
        where.write_text(f"bootstrap.servers={place.bootstrap}\ntest.timeout.multiplier=2\n", encoding="utf-8")
        numbers = sorted({name[:4] for name in only} or {*self.quick, *self.full})
        found: Results = {}
        for number in numbers:
            said = execute(
                [str(tests / "test-runner"), "-L", "-E", "-K", "-p1", *(["-Q"] if number in self.quick else [])],
                place.folder,
                place.log,
                env={
                    "TESTS": number,
                    "TEST_KAFKA_VERSION": self.settings["TEST_KAFKA_VERSION"],
                    "RDKAFKA_TEST_CONF": str(where),
                    "LD_LIBRARY_PATH": f"{tests}/../src:{tests}/../src-cpp",
                },
                seconds=300,
            )
            found |= read_runner(said.output)
        return {name: found[name] for name in only if name in found} if only else found


def read_runner(text: str) -> Results:
    """Return the outcome of each test in the table that librdkafka's runner ends with.

    A test of which nothing is left in a quick run, or with these flags, reports that it passed in no time: the test was
    skipped.
    """
    row = r"^\|\S*\s*(\d{4}_\w+)\s*\|\s*(PASSED|FAILED|SKIPPED)\s*\|\s*([\d.]+)s"
    return {
        name: Outcome.SKIPPED if told == "PASSED" and not float(seconds) else Outcome(told.lower())
        for name, told, seconds in re.findall(row, text, re.MULTILINE)
    }
