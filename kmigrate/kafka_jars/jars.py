"""Kafka's own jars, fetched once from Maven Central by PySpark's Ivy, without Maven or a Kafka distribution; cached."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kmigrate.errors import Failed
from kmigrate.extras import VERIFY
from kmigrate.kafka_jars.cache import cache_folder, cached
from kmigrate.kafka_jars.java import find_java

__all__ = [
    "SPARK_CONNECTOR",
    "JarProgress",
    "OnProgress",
    "ensure_jars",
    "ensure_spark_kafka_jars",
    "message_schemas",
]

_SCALA = "2.13"
SPARK_CONNECTOR = ("org.apache.spark", f"spark-sql-kafka-0-10_{_SCALA}", "4.0.0")
"""Newest connector with every jar published (organisation, module, version); works with every PySpark 4.0.x."""
_KAFKA_MODULES = {"kafka": (f"kafka_{_SCALA}",), "mirror-maker": ("connect-mirror", "connect-runtime")}
# Kafka's jars bring the logging interface without a writer. With this writer brokers write readable logs.
_LOG_WRITER = ("org.slf4j", "slf4j-simple", "1.7.36")


@dataclass(frozen=True)
class JarProgress:
    """The progress of a download. `total` is only an estimate until every module was found."""

    label: str
    done: int
    total: int


OnProgress = Callable[[JarProgress], None]


@dataclass(frozen=True)
class _Dependency:
    organisation: str
    module: str
    revision: str
    without: tuple[str, ...] = ()  # organisations whose jars are already at hand

    def xml(self) -> str:
        excludes = "".join(f'<exclude org="{org}"/>' for org in self.without)
        return (
            f'<dependency org="{self.organisation}" name="{self.module}" rev="{self.revision}" '
            f'conf="default->default">{excludes}</dependency>'
        )


def ensure_jars(module: str, version: str, on_progress: OnProgress | None = None) -> Path:
    """Return the folder with every jar of a Kafka module (`kafka` is the broker). Missing jars are downloaded."""
    artifacts = _KAFKA_MODULES.get(module, (module,))
    return _ensure(
        f"{module}-{version}",
        [*(_Dependency("org.apache.kafka", artifact, version) for artifact in artifacts), _Dependency(*_LOG_WRITER)],
        on_progress,
    )


def ensure_spark_kafka_jars(on_progress: OnProgress | None = None) -> list[Path]:
    """Return the jars for `spark.jars`, with which Spark reads Kafka and resolves nothing at run time."""
    connector = _Dependency(*SPARK_CONNECTOR, without=("org.apache.hadoop",))  # 50 MB that PySpark ships
    folder = _ensure(f"spark-kafka-{connector.revision}", [connector], on_progress)
    shipped = {_artifact(jar) for jar in _spark_jars().glob("*.jar")}
    return sorted(jar for jar in folder.glob("*.jar") if _artifact(jar) not in shipped)


@cache
def message_schemas(version: str) -> dict[int, dict[str, Any]]:
    """Return the request and response schema of each API, by API key, from the kafka-clients jar of a version."""
    jar = next(ensure_jars("kafka", version).glob("kafka-clients-*.jar"))
    out: dict[int, dict[str, Any]] = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(("Request.json", "Response.json")):
                text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                schema = json.loads(text)
                out.setdefault(schema["apiKey"], {})[schema["type"]] = schema
    return out


def _artifact(jar: Path) -> str:
    return re.sub(r"-\d[^-]*.*\.jar$", "", jar.name)


def _spark_jars() -> Path:
    VERIFY.need("the download of Kafka's jars")
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"


def _ensure(name: str, dependencies: list[_Dependency], on_progress: OnProgress | None) -> Path:
    return cached(name, lambda folder: _download(name, dependencies, folder, on_progress))


def _download(name: str, dependencies: list[_Dependency], folder: Path, on_progress: OnProgress | None) -> None:
    java = find_java()
    # Kept when a download fails, so that the next try goes on. The cache's lock keeps other processes out.
    ivy_cache = cache_folder() / f"{name}.ivy"
    ivy_cache.mkdir(exist_ok=True)
    wanted = ivy_cache / "wanted.xml"
    wanted.write_text(
        '<ivy-module version="2.0"><info organisation="kmigrate" module="sandbox"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(d.xml() for d in dependencies)}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    command = [
        str(java.executable), "-cp", f"{_spark_jars()}/*", "org.apache.ivy.Main",
        "-cache", str(ivy_cache), "-ivy", str(wanted), "-confs", "default",
        "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    output = _run_ivy(command, name, on_progress)
    if output is not None or not any(folder.glob("*.jar")):
        raise Failed(
            "jars-unavailable",
            f"the jars of {name} could not be fetched: {output or 'Ivy found none'}",
            still_true="nothing is cached for it and no broker was started",
            next_step="check the way to Maven Central, or point KMIGRATE_KAFKA_HOME at a distribution",
        )
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _run_ivy(command: list[str], label: str, on_progress: OnProgress | None) -> str | None:
    """Run Ivy and follow the lines of its output. Return the reason of a failure, or None."""
    found = done = 0
    tail: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    ) as ivy:
        try:
            for line in ivy.stdout or ():
                tail = [*tail[-199:], line.strip()]
                found += line.startswith("\tfound ")
                done += "[SUCCESSFUL ]" in line
                if on_progress is not None and line.startswith(("\tfound ", "\t[SUCCESSFUL ]")):
                    on_progress(JarProgress(label, done, max(found, done)))
        except BaseException:  # Ctrl-C: Ivy would go on writing into a folder that is being removed
            ivy.kill()
            raise
    if ivy.returncode == 0:
        if on_progress is not None:
            on_progress(JarProgress(label, done, done))
        return None
    reasons = [line.strip(": ") for line in tail if re.match(r"^:: \S+#\S+;\S+: ", line)]
    return "; ".join(dict.fromkeys(reasons)) or next((line for line in reversed(tail) if line), "no output")
