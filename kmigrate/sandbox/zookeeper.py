"""The ZooKeeper of brokers that are older than KRaft: a process beside the brokers, run from the brokers' own jars.

A killed broker stays registered for some seconds, until its ZooKeeper session ends. A broker that restarts and meets
its own old registration ends at once, so `wait_forgotten` waits until the registration is gone.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kmigrate.errors import WaitTimedOut
from kmigrate.sandbox.processes import BrokerProcess, Server

__all__ = ["SESSION_MS", "ZooKeeper", "needs_zookeeper"]

SESSION_MS = 4_000
"""The silence after which ZooKeeper gives up a broker's session. ZooKeeper allows 2 to 20 ticks."""
_TICK_MS = 500
_FIRST_KRAFT = (3, 3)
"""The first release whose KRaft is meant for production. 2.8 has only a preview of KRaft."""
_LOOK_SECONDS = 0.1


def needs_zookeeper(version: str) -> bool:
    """Return whether brokers of this Kafka version need a ZooKeeper."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return tuple(numbers) < _FIRST_KRAFT


@dataclass
class ZooKeeper(Server):
    """A ZooKeeper server, alone in its ensemble, on a loopback port."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "zookeeper.log"

    @property
    def configuration(self) -> Path:
        return self.folder / "zoo.cfg"

    def write(self) -> None:
        """Create the server's folder and write the configuration."""
        self.folder.mkdir(parents=True)
        settings = {
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": _TICK_MS,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "dump",
        }
        self.configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")

    def start(self, java: list[str], spawn: Callable[[list[str], Path, Path], BrokerProcess]) -> None:
        """Launch the server, with `java` as the start of the Java command. Brokers wait for ZooKeeper by themselves."""
        command = [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.configuration)]
        self.process = spawn(command, self.log, self.folder)

    def wait_forgotten(self, node: int) -> None:
        """Return once no broker with this id is registered."""
        deadline = time.monotonic() + 10 * SESSION_MS / 1000
        while f"/brokers/ids/{node}\n" in self._sessions():
            if time.monotonic() > deadline:
                raise WaitTimedOut("broker-still-registered", f"ZooKeeper goes on to hold broker {node} for alive")
            time.sleep(_LOOK_SECONDS)

    def _sessions(self) -> str:
        """Return ZooKeeper's list of sessions, or an empty text while ZooKeeper does not serve yet."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"dump")
                with connection.makefile(encoding="utf-8", errors="replace") as answer:
                    return answer.read()
        except OSError:
            return ""
