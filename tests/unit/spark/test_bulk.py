"""The error of a Spark job after its tries failed, and executors that need nothing installed."""

from __future__ import annotations

import pickle

import pytest

from kmigrate.mirror.bulk.task import BulkJob
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.security import Login, Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.spark.bulk import _cause, _Try, executor_settings

FAILED = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/kmigrate/mirror/bulk.py", line 118, in _activated
    raise Refused(
kmigrate.errors.Refused: link-not-activated: no mirror process has taken up link blue yet
Still true: nothing was copied

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (FAILED, "link-not-activated: no mirror process has taken up link blue yet"),
        ("Oh\n at x\nModuleNotFoundError: No module named 'kio'\n", "ModuleNotFoundError: No module named 'kio'"),
        ("Job 0 cancelled part of cancelled job group 5f\nmore", "Job 0 cancelled part of cancelled job group 5f"),
    ],
)
def test_a_failed_job_is_told_by_our_own_error_inside_it(text: str, cause: str) -> None:
    assert _cause(text) == cause


@pytest.mark.parametrize(
    ("master", "near"),
    [("local[2]", True), ("spark://127.0.0.1:7077", True), ("spark://big.example:7077", False), ("yarn", False)],
)
def test_executors_on_this_machine_are_shown_this_package_and_others_are_not(master: str, near: bool) -> None:
    assert ("spark.executorEnv.PYTHONPATH" in executor_settings(master)) is near


def test_what_a_task_is_told_travels_whole() -> None:
    security = Security(Tls("ca.pem"), Login("SCRAM-SHA-512", "user", "secret"))
    cluster = ClusterSettings("source", (("127.0.0.1", 9092),), security=security)
    made = _Try(BulkJob("blue", cluster, cluster, MirrorSettings(), True, 100, partitions={"t": 2}), "5f")
    assert pickle.loads(pickle.dumps(made)) == made
