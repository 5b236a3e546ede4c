"""Live traffic as a set of client processes that can be started, rolled and stopped one by one.

The folder holds `traffic.json` (clients, identities of processes), and per client and run a launch file, a log and a
history, which survives all verbs. So each verb of `kmigrate sandbox traffic` may come from another process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kmigrate.errors import Failed, Refused, UsageError, WaitTimedOut
from kmigrate.sandbox.client_specs import (
    Access,
    ClientSpec,
    ConsumerSpec,
    Launch,
    ProducerSpec,
    spec_from_json,
)
from kmigrate.sandbox.history import Slot, merge_histories, whole_lines
from kmigrate.sandbox.payload import parse_id
from kmigrate.sandbox.processes import ProcessIdentity, identify, spawn_detached

__all__ = ["Client", "Logins", "Progress", "Traffic"]

Logins = Mapping[str, Access]
"""The login of each role (producer, transactional, consumer) to a secure cluster."""

_STATE = "traffic.json"
_VERSION = 1
_LOOK_SECONDS = 0.05
_CLOSE_SECONDS = 30.0
_ACKED = b'"type":"ok","f":"send"'
_READ = b'"type":"ok","f":"poll"'
_COMMITTED = b'"type":"ok","f":"commit"'
_RESET = b'"type":"ok","f":"reset"'


@dataclass(frozen=True)
class Client:
    """A client with the facts of its last start. Run 0 means that the client was never started."""

    spec: ClientSpec
    run: int = 0
    bootstrap: str = ""
    process: ProcessIdentity | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the client's process, if the client was ever started."""
        if self.process is not None:
            self.process.signal(number)

    def answers_to(self, selector: str) -> bool:
        """Return whether a selector names the client: `all`, a role (`producer`, `producers`), family, group, name."""
        names = {"all", self.spec.role, f"{self.spec.role}s", self.spec.family, self.name}
        if isinstance(self.spec, ConsumerSpec):
            names.add(self.spec.group)
        return selector in names

    def as_json(self) -> dict[str, Any]:
        process = [self.process.pid, self.process.started] if self.process else None
        return {"spec": asdict(self.spec), "run": self.run, "bootstrap": self.bootstrap, "process": process}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Client:
        process = ProcessIdentity(*fields["process"]) if fields["process"] else None
        return Client(spec_from_json(fields["spec"]), fields["run"], fields["bootstrap"], process)


class Traffic:
    """The clients of a folder. Every verb reads and writes `traffic.json`; nothing else is remembered."""

    def __init__(self, folder: Path) -> None:
        """Open traffic that `create` laid out before, perhaps in another process."""
        self.folder = folder.absolute()
        if not (self.folder / _STATE).exists():
            raise Refused(
                "no-traffic",
                f"there is no live traffic in {folder}",
                next_step="kmigrate sandbox traffic start",
            )

    @classmethod
    def create(cls, folder: Path, specs: Iterable[ClientSpec], *, tied: bool = False) -> Traffic:
        """Lay out the folder; `tied` clients end when this process ends, whichever process started or rolled them."""
        specs = tuple(specs)
        names = [spec.name for spec in specs]
        if len(set(names)) < len(names):
            raise UsageError("traffic-names", f"two clients share a name: {sorted(names)}")
        folder = folder.absolute()
        if (folder / _STATE).exists():
            running = [client.name for client in Traffic(folder).clients() if client.running]
            if running:
                raise Refused(
                    "traffic-running",
                    f"live traffic runs already in {folder}: {', '.join(running)}",
                    next_step="kmigrate sandbox traffic stop",
                )
            for old in (*folder.glob("*.jsonl"), *folder.glob("*.log"), *folder.glob("*.launch.json")):
                old.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        keeper = identify(os.getpid()) if tied else None
        _write(folder, [Client(spec) for spec in specs], keeper)
        return cls(folder)

    # -- what there is -------------------------------------------------------------------------

    def clients(self) -> list[Client]:
        return [Client.from_json(fields) for fields in self._state()["clients"]]

    def status(self) -> list[dict[str, Any]]:
        """Return a row per client, for a person or for JSON."""
        return [
            {
                "name": client.name,
                "role": client.spec.role,
                "family": client.spec.family,
                "group": client.spec.group if isinstance(client.spec, ConsumerSpec) else None,
                "run": client.run,
                "running": client.running,
                "bootstrap": client.bootstrap,
                "pid": client.process.pid if client.process else None,
            }
            for client in self.clients()
        ]

    def fallen(self) -> list[str]:
        """Return the clients that were started and no longer run; unless ended on purpose, they ended by themselves."""
        return [client.name for client in self.clients() if client.run and not client.running]

    def histories(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def write_history(self, into: Path, *, with_files: Iterable[Path] = ()) -> int:
        """Merge all clients' histories and `with_files` (a preload) into a file, and return the number of events."""
        return merge_histories([*with_files, *self.histories()], into)

    # -- verbs ---------------------------------------------------------------------------------

    def start(
        self, bootstrap: str, which: str = "all", *, timeout: float = 60.0, access: Logins | None = None
    ) -> list[Client]:
        """Start all chosen clients that do not run, at the same time, and wait for each client's first answer."""
        started = [self._launch(client, bootstrap, access) for client in self._chosen(which) if not client.running]
        deadline = time.monotonic() + timeout
        for client in started:
            self._wait_for_answer(client, deadline)
        return started

    def roll(self, which: str, bootstrap: str, *, timeout: float = 60.0, access: Logins | None = None) -> list[Client]:
        """Restart the chosen clients one by one: the next client goes only after the last client has had an answer.

        Answers: a producer's acknowledged record; a consumer's metadata, as its group may be held until promoted.
        """
        rolled = []
        for client in self._chosen(which):
            deadline = time.monotonic() + timeout
            self._end([client], signal.SIGTERM)
            rolled.append(self._launch(client, bootstrap, access))
            self._wait_for_answer(rolled[-1], deadline)
        return rolled

    def stop(
        self, which: str = "all", *, catch_up: float = 30.0, also_read: Iterable[Path] = ()
    ) -> list[tuple[str, str, int, int]]:
        """End the chosen clients cleanly: first the writers, then the readers after the last acknowledged record.

        `also_read` are other histories (a preload) whose records the groups read, too. Return the groups that were
        still behind after `catch_up` seconds: group, topic, partition, offsets to go.
        """
        chosen = self._chosen(which)
        specs = {client.name: client.spec for client in chosen if isinstance(client.spec, ConsumerSpec)}
        readers = [client for client in chosen if client.name in specs]
        self._end([client for client in chosen if client.name not in specs], signal.SIGTERM)
        subscribed = {spec.group: spec.topics for spec in specs.values()}
        progress = Progress(subscribed if any(client.running for client in readers) else {})
        others = list(also_read)

        def caught_up() -> bool:
            progress.update([*others, *self.histories()])
            return not progress.behind()

        _wait_until(caught_up, catch_up)
        self._end(readers, signal.SIGTERM)
        return progress.behind()

    def kill(self, which: str) -> list[Client]:
        """Kill clients with SIGKILL, as a crash would. Sends without an answer stay indefinite."""
        killed = [client for client in self._chosen(which) if client.running]
        for client in killed:
            client.signal(signal.SIGKILL)
        _wait_until(lambda: not any(client.running for client in killed), _CLOSE_SECONDS)
        return killed

    def pause(self, which: str) -> None:
        for client in self._chosen(which):
            client.signal(signal.SIGSTOP)

    def resume(self, which: str) -> None:
        for client in self._chosen(which):
            client.signal(signal.SIGCONT)

    # -- inside --------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
        if state["version"] != _VERSION:
            raise Refused("traffic-version", f"{self.folder / _STATE} was written by another version of kmigrate")
        return state

    def _chosen(self, which: str) -> list[Client]:
        clients = self.clients()
        chosen = [client for client in clients if client.answers_to(which)]
        if not chosen:
            raise UsageError(
                "traffic-unknown",
                f"no client answers to {which!r}; there are {', '.join(client.name for client in clients)}",
                next_step="name one, a group, or one of: all, producers, consumers, transactional",
            )
        return chosen

    def _launch(self, client: Client, bootstrap: str, access: Logins | None) -> Client:
        keeper = self._state()["keeper"]
        run = client.run + 1
        stem = f"{client.name}.{run}"
        launch = Launch(
            spec=client.spec,
            bootstrap=bootstrap,
            run=run,
            start_seq=self._next_seq(client.name),
            history=str(self.folder / f"{stem}.jsonl"),
            tied_to=tuple(keeper) if keeper else None,
            access=access[client.spec.role] if access else None,
        )
        path = self.folder / f"{stem}.launch.json"
        path.write_text(launch.to_json(), encoding="utf-8")
        process = self._spawn(path, self.folder / f"{stem}.log")
        started = replace(client, run=run, bootstrap=bootstrap, process=process)
        clients = [started if other.name == client.name else other for other in self.clients()]
        _write(self.folder, clients, ProcessIdentity(*keeper) if keeper else None)
        return started

    def _spawn(self, launch: Path, log: Path) -> ProcessIdentity:
        """Start the process of a client, in a process group of its own."""
        command = [sys.executable, "-m", "kmigrate.sandbox.clients", str(launch)]
        return spawn_detached(command, log=log, environment=dict(os.environ))

    def _next_seq(self, name: str) -> int:
        """Return the number after the highest number that any run of the client named in a history (H2)."""
        return 1 + max(map(_highest_seq, self.folder.glob(f"{name}.*.jsonl")), default=-1)

    def _wait_for_answer(self, client: Client, deadline: float) -> None:
        spec = client.spec
        # A consumer may be held on purpose, and acks=0 is never answered. For these clients contact is enough.
        contact = isinstance(spec, ConsumerSpec) or (isinstance(spec, ProducerSpec) and spec.acks == "0")
        mark = b'"type":"ok","f":"open"' if contact else b'"type":"ok","f":"send"'
        path = self.folder / f"{client.name}.{client.run}.jsonl"

        def answered() -> bool:
            if path.exists() and mark in path.read_bytes():
                return True
            if not client.running:
                raise Failed(
                    "traffic-died",
                    f"client {client.name} ended before its first answer: {_last_line(path.with_suffix('.log'))}",
                    still_true="the other clients go on",
                    next_step=f"see {path.with_suffix('.log')}",
                )
            return False

        if not _wait_until(answered, deadline - time.monotonic()):
            raise WaitTimedOut(
                "traffic-unanswered",
                f"client {client.name} has had no answer from {client.bootstrap}",
                still_true="it goes on trying",
            )

    def _end(self, clients: Iterable[Client], number: signal.Signals) -> None:
        ending = [client for client in clients if client.running]
        for client in ending:
            client.signal(number)
        if _wait_until(lambda: not any(client.running for client in ending), _CLOSE_SECONDS + 5):
            return
        stuck = [client.name for client in ending if client.running]
        for name in stuck:
            self.kill(name)
        raise Failed("traffic-stuck", f"clients did not close in {_CLOSE_SECONDS:.0f} s and were killed: {stuck}")


class Progress:
    """The last acknowledged and the last read offset of every partition, kept up to date from the clients' histories.

    Readers may stop once no group is behind; otherwise sound records would count as unseen.
    """

    def __init__(self, subscribed: Mapping[str, Iterable[str]]) -> None:
        self._subscribed = {group: frozenset(topics) for group, topics in subscribed.items()}
        self._read_to: dict[Path, int] = {}
        self._acked: dict[Slot, int] = {}
        self._read: dict[tuple[str, Slot], int] = {}

    def update(self, histories: Iterable[Path]) -> None:
        """Take in the lines that were written since the last call."""
        for path in histories:
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read_to[path] = self._read_to.get(path, 0) + len(line)
                    if _ACKED in line or _READ in line or _COMMITTED in line or _RESET in line:
                        self._take(line)

    def _take(self, line: bytes) -> None:
        event = json.loads(line)
        if event["f"] == "send":
            slot = (event["topic"], event["partition"])
            self._acked[slot] = max(event["offset"] + event.get("records", 1) - 1, self._acked.get(slot, -1))
        elif event["f"] == "poll":
            slot = (event["topic"], event["partition"])
            self._reached(event["group"], slot, event["offset"] + len(event["values"]) - 1)
        else:  # below a committed position, also if somebody set the position, a group need not read
            for topic, partition, position in event["positions"]:
                self._reached(event["group"], (topic, partition), position - 1)

    def _reached(self, group: str, slot: Slot, offset: int) -> None:
        self._read[group, slot] = max(offset, self._read.get((group, slot), -1))

    def behind(self) -> list[tuple[str, str, int, int]]:
        """Return group, topic, partition and the number of offsets that the group has still to read."""
        return [
            (group, slot[0], slot[1], acked - self._read.get((group, slot), -1))
            for slot, acked in sorted(self._acked.items())
            for group, topics in sorted(self._subscribed.items())
            if slot[0] in topics and self._read.get((group, slot), -1) < acked
        ]


def _write(folder: Path, clients: Iterable[Client], keeper: ProcessIdentity | None) -> None:
    state = {
        "version": _VERSION,
        "keeper": [keeper.pid, keeper.started] if keeper else None,
        "clients": [client.as_json() for client in clients],
    }
    partial = folder / f"{_STATE}.{os.getpid()}"
    partial.write_text(json.dumps(state, indent=1), encoding="utf-8")
    partial.replace(folder / _STATE)


def _highest_seq(path: Path) -> int:
    highest = -1
    for line in whole_lines(path):
        if b'"type":"invoke","f":"send"' in line:
            value_id = parse_id(json.loads(line)["value"])
            if value_id is not None:
                highest = max(highest, value_id.seq)
    return highest


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "no word from it"


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
