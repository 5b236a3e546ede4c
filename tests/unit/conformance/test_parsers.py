"""What the suites say, as they said it, read as outcomes by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conformance.java_tools import SceneFailed, acknowledged, records, same
from tests.conformance.kafka_python import read_junit
from tests.conformance.kgo import read_go_tests
from tests.conformance.programs import SceneFailed as ProgramsFailed
from tests.conformance.programs import judge_reading
from tests.conformance.rust import read_cargo_tests, read_runner
from tests.conformance.sarama import as_program
from tests.conformance.suite import Outcome, execute

P, F, S = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED

GO = """\
=== RUN   TestPing
=== PAUSE TestPing
=== RUN   TestIssueProduceBrokerTooOldFailsRecords
    produce_request_test.go:301: broker is not too old
--- SKIP: TestIssueProduceBrokerTooOldFailsRecords (0.00s)
=== CONT  TestPing
--- PASS: TestPing (0.00s)
--- FAIL: TestShareGroup (5.04s)
    --- PASS: TestGroupSimple/classic (0.16s)
--- PASS: TestGroupSimple (0.00s)
FAIL
"""

CARGO = """\
    Finished `test` profile [unoptimized + debuginfo] target(s) in 0.10s
     Running tests/test_admin.rs (target/debug/deps/test_admin-48fadf19d24036a1)

running 6 tests
test test_configs ... FAILED
test test_groups ... ok
test utils::tests::test_populate_topic ... ok

failures:

---- test_configs stdout ----
this is not ok

failures:
    test_configs

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 65.35s

     Running tests/test_high_consumers.rs (target/debug/deps/test_high_consumers-1faeaf28600e689b)

running 12 tests
test test_consumer_store_offset_commit ... [2026-11-22T02:29:51Z ERROR rdkafka::client] librdkafka: Global error: x
[2026-11-22T02:29:51Z ERROR rdkafka::client] librdkafka: Global error: PartitionEOF (Broker: No more messages): Fetch
ok
test test_produce_consume_base ... ignored
test utils::tests::test_populate_topic ... ok
test test_that_never_ended ... \

test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 18.73s
"""

RUNNER = """\
TEST 20261122022515 (bare, scenario default) SUMMARY
#==================================================================#
|\x1b[32m <MAIN>                                   |     PASSED |  11.841s \x1b[0m|
|\x1b[32m 0015_offsets_seek                        |     PASSED |  11.757s \x1b[0m|
|\x1b[31m 0081_admin                               |     FAILED |  11.436s \x1b[0m| Test failed
|\x1b[33m 0022_consume_batch_local                 |    SKIPPED |   0.000s \x1b[0m|
#==================================================================#
"""

JUNIT = """\
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
<testcase classname="test.integration.test_admin_integration" name="test_delete_groups" time="0.6"
 file="test/integration/test_admin_integration.py" line="199"/>
<testcase classname="test.integration.test_consumer_integration" name="test_group" time="40.1"
 file="test/integration/test_consumer_integration.py" line="346"><failure message="E"/></testcase>
<testcase classname="test.integration.test_producer_integration" name="test_end_to_end[lz4]" time="0.0"
 file="test/integration/test_producer_integration.py" line="12"><skipped type="pytest.skip"/></testcase>
<testcase classname="test.integration.test_x.TestSuite" name="test_closes" time="0.1"
 file="test/integration/test_x.py" line="1"><error message="at its end"/></testcase>
<testcase classname="test.integration.test_x.TestSuite" name="test_closes" time="0.1"
 file="test/integration/test_x.py" line="1"/>
</testsuite></testsuites>
"""

WRITTEN = """\
{"timestamp":1795315098795,"name":"startup_complete"}
[kafka-producer-network-thread] INFO org.apache.kafka.clients.Metadata - Cluster ID: x
{"timestamp":1795315099613,"name":"producer_send_success","key":"0","value":"0","offset":1,"topic":"t","partition":3}
{"timestamp":1795315099588,"name":"producer_send_success","key":"1","value":"1","offset":0,"topic":"t","partition":3}
{"timestamp":1795315099614,"name":"producer_send_success","key":"2","value":"2","offset":0,"topic":"t","partition":0}
"""
REFUSED = '{"name":"producer_send_error","key":"2","value":"2","topic":"t","exception":"E","message":"no"}\n'


def test_go_says_the_outcome_of_each_test_behind_its_subtests() -> None:
    assert read_go_tests(GO) == {
        "TestIssueProduceBrokerTooOldFailsRecords": S,
        "TestPing": P,
        "TestShareGroup": F,
        "TestGroupSimple": P,
    }


def test_cargo_says_outcomes_by_file_also_behind_what_a_test_wrote() -> None:
    assert read_cargo_tests(CARGO) == {
        "test_admin::test_configs": F,
        "test_admin::test_groups": P,
        "test_admin::utils::tests::test_populate_topic": P,
        "test_high_consumers::test_consumer_store_offset_commit": P,
        "test_high_consumers::test_produce_consume_base": S,
        "test_high_consumers::utils::tests::test_populate_topic": P,
    }


def test_the_runner_of_librdkafka_says_outcomes_in_a_coloured_table() -> None:
    assert read_runner(RUNNER) == {"0015_offsets_seek": P, "0081_admin": F, "0022_consume_batch_local": S}


def test_a_test_that_did_nothing_is_not_one_that_passed() -> None:
    assert read_runner("|\x1b[32m 0018_cgrp_term      |     PASSED |   0.000s \x1b[0m|") == {"0018_cgrp_term": S}


def test_pytests_report_names_tests_as_its_command_line_does() -> None:
    assert read_junit(JUNIT) == {
        "test/integration/test_admin_integration.py::test_delete_groups": P,
        "test/integration/test_consumer_integration.py::test_group": F,
        "test/integration/test_producer_integration.py::test_end_to_end[lz4]": S,
        "test/integration/test_x.py::TestSuite::test_closes": F,
    }


def test_a_producer_of_kafkas_own_tells_where_each_value_is() -> None:
    assert acknowledged(WRITTEN, 3) == {3: [(0, "1"), (1, "0")], 0: [(0, "2")]}


@pytest.mark.parametrize("text", [WRITTEN + REFUSED, WRITTEN + WRITTEN, WRITTEN.replace('"value":"2"', '"value":"1"')])
def test_a_refused_missing_or_doubled_acknowledgement_fails_the_scene(text: str) -> None:
    with pytest.raises(SceneFailed):
        acknowledged(text, 3)


def test_a_record_that_is_read_at_another_offset_fails_the_scene() -> None:
    written = acknowledged(WRITTEN, 3)
    same(written, records(WRITTEN, "producer_send_success"))
    with pytest.raises(SceneFailed, match="not what was written"):
        same(written, {**written, 0: [(1, "2")]})


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    said = execute(["sh", "-c", "sleep 600 & echo $!; wait"], tmp_path, tmp_path / "log", seconds=3)
    assert said.code is None
    ps = ["ps", "-o", "stat=", "-p", said.output.strip()]
    state = subprocess.run(ps, capture_output=True, text=True, check=False)
    assert state.stdout[:1] in ("", "Z")


def test_only_what_this_command_wrote_is_read_from_a_log_that_goes_on(tmp_path: Path) -> None:
    for word in ("first", "second"):
        said = execute(["echo", word], tmp_path, tmp_path / "log", seconds=60)
        assert (said.code, said.output) == (0, f"{word}\n")
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


def test_what_programs_read_is_judged_by_partition() -> None:
    judge_reading([(0, 0), (1, 0), (0, 1), (1, 1)], 4)
    for read, count, told in (
        ([(0, 0), (0, 2)], 3, "2 records were read of 3 written: 1 lost, 0 doubled, 0 disordered"),
        ([(0, 0), (0, 1), (0, 1)], 2, "0 lost, 1 doubled, 1 disordered"),
        ([(0, 1), (0, 0)], 2, "0 lost, 0 doubled, 1 disordered"),
        ([(0, 0)], 2, "1 records were read of 2 written"),
    ):
        with pytest.raises(ProgramsFailed, match=told):
            judge_reading(read, count)


def test_an_example_that_has_changed_is_refused() -> None:
    with pytest.raises(ValueError, match="go:build"):
        as_program("package sarama")
