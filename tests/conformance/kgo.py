"""franz-go's kgo: a client in Go whose tests write, read and repartition through groups and transactions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.conformance.suite import Hidden, Outcome, Place, Results, built, execute, must, need

__all__ = ["Kgo", "read_go_tests"]

_LIMIT_S = 900
_TESTS = (
    "Test848RegexBrokerResolves", "TestAddRemovePartitions", "TestClient_Produce",
    "TestClient_ProduceLargeMessages", "TestConsumeMaxDecompressBatchBytes", "TestConsumeRegex",
    "TestConsumeRegexShareSkipsInternal", "TestConsumeTopicRetrieval", "TestConsumeTopicRetrieval_Many",
    "TestDirectPartitionPurge", "TestGroupETL", "TestGroupSimple", "TestHookPollStart", "TestIssue1034",
    "TestIssue325", "TestIssue337", "TestIssue434", "TestIssue523", "TestIssue648", "TestIssue769",
    "TestIssue810", "TestIssue831", "TestIssue865", "TestIssueFetchLargerThanBrokerMaxReadBytes",
    "TestIssueProduceBrokerTooOldFailsRecords", "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
    "TestPauseIssue489", "TestPauseIssueOct2023", "TestPing", "TestPooling", "TestShareGroup",
    "TestShareGroupAckOnClose", "TestShareGroupETL", "TestShareGroupOffsetsAdmin", "TestTxnEtl",
    "TestUnknownGroupOffsetFetchPinned",
)  # fmt: skip
"""The tests that talk to a broker. The other tests of the suite test the client by itself."""
_VERDICTS = {"PASS": Outcome.PASSED, "FAIL": Outcome.FAILED, "SKIP": Outcome.SKIPPED}


class Kgo:
    name = "kgo"
    package = "github.com/twmb/franz-go"
    version = "v1.22.2"
    floor = 30
    settings: Mapping[str, str] = {
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": "20000",
        "KGO_TEST_MAX_TOPIC_PARTS": "3",
        "KGO_LOG_LEVEL": "none",
        "tests": "those that talk to a broker",
    }
    broker: Mapping[str, str] = {}
    hidden: Mapping[str, Hidden] = {}

    def prepare(self) -> None:
        self._binary()

    def _binary(self) -> Path:
        return built(self, self._build) / "kgo.test"

    def _build(self, folder: Path) -> None:
        go = need("go", "kgo's suite")
        told = must([go, "mod", "download", "-json", f"{self.package}@{self.version}"], folder)
        source = Path(json.loads(told)["Dir"])
        must([go, "test", "-c", "-p", "1", "-o", str(folder / "kgo.test"), "./pkg/kgo"], source)

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        chosen = ["-test.run", "^(" + "|".join(sorted(only or _TESTS)) + ")$"]
        said = execute(
            [str(self._binary()), "-test.v", "-test.timeout", f"{_LIMIT_S - 30}s", "-test.parallel", "2", *chosen],
            place.folder,
            place.log,
            env={"KGO_SEEDS": place.bootstrap, **{k: v for k, v in self.settings.items() if k.startswith("KGO")}},
            seconds=_LIMIT_S,
        )
        return read_go_tests(said.output)


def read_go_tests(text: str) -> Results:
    """Return the outcome of each test. Subtests count with the test to which they belong."""
    return {name: _VERDICTS[told] for told, name in re.findall(r"^--- (PASS|FAIL|SKIP): (\S+) \(", text, re.MULTILINE)}
