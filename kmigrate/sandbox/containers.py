"""Brokers in containers, where a Docker engine on this very machine answers.

A container shares the host's network, sees the broker's folder under the same path, and so runs the same
`server.properties` as a broker from jars. The engine must run on this machine's kernel and listen on a local socket.
With any other engine (a virtual machine, a remote host) the sandbox uses jars. The `docker` program proves nothing and
is never looked for. The reaper of testcontainers ends tied containers once this process is gone.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["ContainerProcess", "Engine", "engine_answers", "kafka_image", "start_container"]

_ENGINE_SECONDS = 3
_HOME = "/opt/kafka/bin"


class Engine(Protocol):
    """The parts of a Docker client that the sandbox uses."""

    @property
    def api(self) -> Any: ...

    @property
    def containers(self) -> Any: ...

    def ping(self) -> bool: ...

    def info(self) -> dict[str, Any]: ...


def kafka_image(version: str) -> str:
    return f"apache/kafka:{version}"


def engine_answers(engine: Engine | None = None, platform: str = sys.platform) -> bool:
    """Return True if brokers can run in containers that share this machine's network and files."""
    if platform != "linux":
        return False
    try:
        engine = engine or _connect()
        local = str(engine.api.base_url).startswith("http+docker://")
        return local and engine.ping() and "Docker Desktop" not in str(engine.info().get("OperatingSystem"))
    except Exception:  # any error of the client means that the engine does not answer
        return False


@dataclass(frozen=True)
class ContainerProcess:
    """A broker's container with the interface of a process. The container's id never changes."""

    container: str
    engine: Engine | None = field(default=None, compare=False, repr=False)

    @property
    def pid(self) -> int:
        """The broker's process id in this machine's kernel."""
        return int(self._inspect().attrs["State"]["Pid"])

    def alive(self) -> bool:
        try:
            return self._inspect().status in ("running", "paused")
        except Exception as error:
            if type(error).__name__ == "NotFound":  # docker's class is not imported here, so its name is compared
                return False
            raise

    def signal(self, number: int) -> bool:
        """Send a signal, as to a process. A paused container takes no signal, so the container is continued first."""
        if not self.alive():
            return False
        container = self._inspect()
        if number == signal.SIGSTOP:
            container.pause()
            return True
        if container.status == "paused":
            container.unpause()
        if number != signal.SIGCONT:
            container.kill(signal=number)
        return True

    def _inspect(self) -> Any:
        return (self.engine or _connect()).containers.get(self.container)


def start_container(image: str, properties: Path, cluster_id: str, *, detached: bool) -> ContainerProcess:
    """Run a broker on this configuration. Formatting a formatted folder changes nothing."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    testcontainers_config.ryuk_disabled = detached
    folder = properties.parent
    script = (
        f"{_HOME}/kafka-storage.sh format --ignore-formatted -t {cluster_id} -c '{properties}' && "
        f"exec {_HOME}/kafka-server-start.sh '{properties}' >> '{folder}/broker.log' 2>&1"
    )
    container = (
        DockerContainer(image)
        .with_volume_mapping(str(folder), str(folder), "rw")
        .with_env("KAFKA_HEAP_OPTS", "-Xms128m -Xmx384m")
        .with_kwargs(network_mode="host", user=f"{os.getuid()}:{os.getgid()}", entrypoint=["/bin/bash", "-c"])
        .with_command([script])
        .start()
    )
    return ContainerProcess(str(container.get_wrapped_container().id))


def _connect() -> Engine:
    import docker

    engine: Engine = docker.from_env(timeout=_ENGINE_SECONDS)
    return engine
