"""The cache of jars, with a stand-in for Java that behaves like Ivy."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kmigrate.errors import Failed
from kmigrate.kafka_jars.jars import JarProgress, ensure_jars, ensure_spark_kafka_jars

# Writes two jars where `-retrieve` says, prints as Ivy does, and counts the runs in $0.runs.
_IVY = r"""#!/bin/bash
echo run >> "$0.runs"
while [ $# -gt 0 ]; do [ "$1" = -retrieve ] && pattern="$2"; shift; done
folder="${pattern%%/\[*}"
sleep 0.2
mkdir -p "$folder"
printf '\tfound org.apache.kafka#kafka_2.13;9.9.9 in public\n'
printf '\tfound org.lz4#lz4-java;1.8.0 in public\n'
touch "$folder/kafka_2.13-9.9.9.jar" "$folder/commons-pool2-2.12.0.jar" "$folder/lz4-java-1.8.0.jar"
printf '\t[SUCCESSFUL ] org.apache.kafka#kafka_2.13;9.9.9!kafka_2.13.jar (9ms)\n'
printf '\t[SUCCESSFUL ] org.lz4#lz4-java;1.8.0!lz4-java.jar (9ms)\n'
exit ${IVY_EXIT:-0}
"""

_IVY_WITHOUT_NETWORK = r"""#!/bin/bash
echo '		:: org.apache.kafka#kafka_2.13;9.9.9: not found'
echo ':: org.apache.kafka#kafka_2.13;9.9.9: not found'
exit 1
"""


def _java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(script)
    java.chmod(0o755)
    (folder / "release").write_text('JAVA_VERSION="17.0.1"\n')
    return java


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path / "cache"


def test_two_at_once_download_once_and_leave_only_the_finished_folder(cache: Path, tmp_path: Path) -> None:
    java = _java(tmp_path / "java", _IVY)
    together = threading.Barrier(4)

    def ask(_: int) -> Path:
        together.wait()
        return ensure_jars("kafka", "9.9.9")

    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(ask, range(4)))
    assert folders == {cache / "kafka-9.9.9"}
    assert Path(f"{java}.runs").read_text() == "run\n"
    assert sorted(path.name for path in cache.iterdir()) == ["kafka-9.9.9", "kafka-9.9.9.lock"]


def test_progress_ends_with_everything_done(cache: Path, tmp_path: Path) -> None:
    _java(tmp_path / "java", _IVY)
    seen: list[JarProgress] = []
    ensure_jars("kafka", "9.9.9", seen.append)
    assert seen[0] == JarProgress("kafka-9.9.9", 0, 1)
    assert seen[-1] == JarProgress("kafka-9.9.9", 2, 2)
    assert all(step.done <= step.total for step in seen)


def test_what_cannot_be_fetched_is_named_and_leaves_no_half_filled_cache(cache: Path, tmp_path: Path) -> None:
    _java(tmp_path / "java", _IVY_WITHOUT_NETWORK)
    with pytest.raises(Failed) as failure:
        ensure_jars("kafka", "9.9.9")
    assert failure.value.ref == "jars-unavailable"
    assert "org.apache.kafka#kafka_2.13;9.9.9: not found" in failure.value.what
    assert not (cache / "kafka-9.9.9").exists()


def test_a_download_that_failed_halfway_is_not_taken_for_complete(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _java(tmp_path / "java", _IVY)
    monkeypatch.setenv("IVY_EXIT", "1")
    with pytest.raises(Failed, match="jars-unavailable"):
        ensure_jars("kafka", "9.9.9")
    monkeypatch.setenv("IVY_EXIT", "0")
    assert (ensure_jars("kafka", "9.9.9") / "lz4-java-1.8.0.jar").exists()


def test_spark_is_not_given_a_second_copy_of_what_it_ships(cache: Path, tmp_path: Path) -> None:
    _java(tmp_path / "java", _IVY)
    names = [jar.name for jar in ensure_spark_kafka_jars()]
    assert "commons-pool2-2.12.0.jar" in names
    assert "lz4-java-1.8.0.jar" not in names


_IVY_THAT_HANGS = r"""#!/bin/bash
trap '' INT
while [ $# -gt 0 ]; do [ "$1" = -retrieve ] && pattern="$2"; shift; done
folder="${pattern%%/\[*}"
printf '\tfound org.apache.kafka#kafka_2.13;9.9.9 in public\n'
for n in $(seq 200); do mkdir -p "$folder"; touch "$folder/half-$n.jar"; sleep 0.05; done
"""


def test_ctrl_c_while_jars_are_fetched_ends_in_one_sentence_and_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    """Ivy used to go on and write into the folder that was being removed, which caused an internal error."""
    _java(tmp_path / "java", _IVY_THAT_HANGS)
    script = (
        "import signal, sys\n"
        "from kmigrate.cli.base.call import Call, run_to_end\n"
        "from kmigrate.kafka_jars.jars import ensure_jars\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "fetch = lambda: ensure_jars('kafka', '9.9.9', lambda told: print(told, flush=True))\n"
        "sys.exit(run_to_end(Call(), fetch))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as fetching:
        assert fetching.stdout is not None and fetching.stderr is not None
        fetching.stdout.readline()
        while not list(cache.glob("*/made/half-3.jar")):
            time.sleep(0.02)
        fetching.send_signal(signal.SIGINT)
        code, told = fetching.wait(10), fetching.stderr.read()
    assert (code, told.splitlines()[0]) == (130, "error interrupted: stopped by Ctrl-C or by a signal")
    assert not list(cache.rglob("*.jar"))
