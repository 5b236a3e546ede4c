"""Live clients of families outside this process: a small program with the family's library, driven line by line.

This side decides which record is sent when, and what is written down, as for every other family. A driver only hands
records to its library and reports the answers (docs/history.md, "Driven clients"). A process has a single driver.
"""

from __future__ import annotations

import base64
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event
from types import TracebackType
from typing import IO, Self, cast

from kmigrate.errors import Failed
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, Launch, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.history import ABORTED, HistoryWriter, Position
from kmigrate.sandbox.reading import ReadLog
from kmigrate.sandbox.sending import Send, SendLog, run_producer, run_transactions
from kmigrate.sandbox.toolchains import driver_of

__all__ = ["consume", "produce", "transact"]

_START_SECONDS = 45.0
_END_SECONDS = 25.0
_EXIT_SECONDS = 5.0
_CHUNK = 1 << 16

Fields = list[str]


class _Driver:
    """A driver's process, with lines in both directions."""

    def __init__(self, spec: ClientSpec, launch: Launch, *arguments: str) -> None:
        if launch.access is not None:
            raise Failed("traffic-family", f"{spec.name}: clients of {spec.family} have no login here")
        built = driver_of(spec.family)
        # A signal that is ignored at the driver's start stays ignored in the driver. SIGTERM to the group is for this
        # process.
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            self._process = subprocess.Popen(
                [*built.command, spec.role, launch.bootstrap, spec.name, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **built.environment},
                bufsize=0,
            )
        finally:
            signal.signal(signal.SIGTERM, before)
        self._in, self._out = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        for end in (self._in, self._out):
            os.set_blocking(end.fileno(), False)
        self._looks = select.poll()
        self._looks.register(self._out, select.POLLIN)
        self._lines: deque[str] = deque()
        """Lines that the driver sent and nobody has read yet."""
        self._cut = b""
        self._silent = False
        """True once the driver's output has ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _listen(self, seconds: float) -> None:
        """Wait for output and take in whole lines; return, too, if the driver takes input while `say` waits."""
        if not any(end == self._out.fileno() for end, _ in self._looks.poll(max(0.0, seconds) * 1000)):
            return
        output = os.read(self._out.fileno(), _CHUNK)
        if not output:
            self._silent = True
            self._looks.unregister(self._out)
            return
        whole, _, self._cut = (self._cut + output).rpartition(b"\n")
        self._lines += [line for line in whole.decode("utf-8", "replace").split("\n") if line.strip()]

    def say(self, lines: Sequence[str]) -> None:
        """Send lines to the driver; after `close` nothing: the end of input answers a driver that still asks."""
        if self._in.closed:
            return
        left = memoryview("".join(f"{line}\n" for line in lines).encode())
        while left:
            try:
                left = left[os.write(self._in.fileno(), left) :]
            except BlockingIOError:
                # The driver may in turn be waiting until its output is read.
                self._looks.register(self._in, select.POLLOUT)
                self._listen(_END_SECONDS)
                self._looks.unregister(self._in)
            except BrokenPipeError:
                raise self._ended() from None

    def hear(self, seconds: float) -> Fields | None:
        """Return the next line, or None if no line comes in time."""
        deadline = time.monotonic() + seconds
        while not self._lines:
            if self._silent:
                raise self._ended()
            if (left := deadline - time.monotonic()) <= 0:
                return None
            self._listen(left)
        return self._lines.popleft().split("\t")

    def expect(self, verb: str, seconds: float, meanwhile: Callable[[Fields], None]) -> Fields:
        """Wait for a line of one kind. Other lines go to `meanwhile`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            fields = self.hear(left)
            if fields is not None and fields[0] == verb:
                return fields
            if fields is not None:
                meanwhile(fields)
        raise Failed("traffic-driver", f"the driver did not say {verb!r} within {seconds:g} s")

    def close(self, meanwhile: Callable[[Fields], None]) -> None:
        """Let the driver flush, commit as far as it may, and leave. The driver's last lines still count."""
        self._in.close()
        deadline = time.monotonic() + _END_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if self._silent and not self._lines:
                ended = self._ended()
                if self._process.returncode:
                    raise ended
                return
            self._listen(left) if not self._lines else meanwhile(self._lines.popleft().split("\t"))
        raise Failed("traffic-driver", f"the driver did not end within {_END_SECONDS:g} s")

    def _ended(self) -> Failed:
        """Return the error for a driver whose output has ended; kill the driver if the driver does not end, too."""
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return Failed("traffic-driver", f"the driver ended by itself with exit code {self._process.returncode}")


def _text(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text)


class _Writer:
    """A producer whose records are acknowledged one by one."""

    def __init__(
        self, driver: _Driver, spec: ProducerSpec | TransactionalSpec, launch: Launch, history: HistoryWriter
    ) -> None:
        self._driver = driver
        self._unanswered: dict[str, Send] = {}
        partitions = int(driver.expect("open", _START_SECONDS, self.heard)[1])
        self.log = SendLog(launch, spec.topic, partitions, history)

    @property
    def waiting(self) -> int:
        return len(self._unanswered)

    def poll(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            fields = self._driver.hear(left)
            if fields is not None:
                self.heard(fields)

    def send(self, sends: Sequence[Send]) -> None:
        self._unanswered.update((send.value, send) for send in sends)
        self._driver.say([_send_line(send) for send in sends])

    def heard(self, fields: Fields) -> None:
        if fields[0] == "acked":
            self.log.record("ok", self._unanswered.pop(fields[1]), offset=int(fields[2]))
        elif fields[0] == "failed":
            self.log.record("info", self._unanswered.pop(fields[1]), error=fields[2], detail={"text": fields[3]})


class _TransactionalWriter(_Writer):
    """A producer whose records get their outcome from the end of the transaction."""

    def __init__(self, driver: _Driver, spec: TransactionalSpec, launch: Launch, history: HistoryWriter) -> None:
        self.offsets: dict[str, int] = {}
        super().__init__(driver, spec, launch, history)

    def begin(self) -> None:
        self._driver.say(["begin"])

    def heard(self, fields: Fields) -> None:
        if fields[0] in {"acked", "failed"}:
            self._unanswered.pop(fields[1], None)  # the end of the transaction decides the outcome
        if fields[0] == "acked":
            self.offsets[fields[1]] = int(fields[2])

    def end(self, *, abort: bool) -> tuple[str, str]:
        self._driver.say(["abort" if abort else "commit"])
        begun = self._driver.expect("done", _END_SECONDS, self.heard)[2]
        ended = self._driver.expect("done", _START_SECONDS, self.heard)[2]
        if begun != "ok":
            return "info", begun
        if ended == "ok":
            return ("fail", ABORTED) if abort else ("ok", "")
        before, aborted, name = ended.rpartition("aborted ")
        return ("fail", name) if aborted and not before else ("info", ended)


def _send_line(send: Send) -> str:
    key, value, headers = send.content
    listed = ",".join(f"{name}:{_text(value)}" for name, value in headers)
    fields = ("send", send.value, str(send.partition), str(send.timestamp), _text(key), _text(value), listed)
    return "\t".join(fields)


def produce(spec: ProducerSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run an idempotent producer that waits for no single answer."""
    with _Driver(spec, launch, spec.topic) as driver:
        writer = _Writer(driver, spec, launch, history)
        run_producer(spec.rate, writer.log, writer, stopping)
        driver.close(writer.heard)


def transact(spec: TransactionalSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a transactional writer."""
    with _Driver(spec, launch, spec.topic) as driver:
        writer = _TransactionalWriter(driver, spec, launch, history)
        run_transactions(spec, writer.log, writer, stopping)
        driver.close(writer.heard)


class _Member:
    """A driven group member: the records that were read, and the commits."""

    def __init__(self, driver: _Driver, spec: ConsumerSpec, history: HistoryWriter) -> None:
        self._driver = driver
        self._history = history
        self.log = ReadLog(spec.group, history)
        self._asked = False
        """True while a commit is under way."""

    def heard(self, fields: Fields) -> None:
        verb = fields[0]
        if verb == "record":
            headers = [(name, _bytes(value)) for name, value in _pairs(fields[6])]
            self.log.read(fields[1], int(fields[2]), int(fields[3]), _bytes(fields[5]), _bytes(fields[4]), headers)
        elif verb == "polled":
            self.log.write()
        elif verb == "committed":
            self._asked = False
            self.log.committed(_positions(fields[1]), fields[2])
        elif verb == "assigned":
            self.log.assigned(_positions(fields[1]))
        elif verb == "revoking":
            self._driver.say([f"release\t{_listed(self.log.uncommitted())}"])
        elif verb in {"revoked", "lost"}:
            self.log.revoked(_positions(fields[1]), lost=verb == "lost")
        elif verb in {"error", "notice"}:
            self._history.record("info", verb, error=fields[1], detail={"text": fields[2]})

    def commit(self) -> None:
        if not self._asked and (positions := self.log.uncommitted()):
            self._asked = True
            self._driver.say([f"commit\t{_listed(positions)}"])


def consume(spec: ConsumerSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a group member from metadata to a clean leave."""
    own = [f"{name}={value}" for name, value in spec.settings.items()]
    with _Driver(spec, launch, spec.group, ",".join(spec.topics), *own) as driver:
        member = _Member(driver, spec, history)
        driver.expect("open", _START_SECONDS, member.heard)
        history.record("ok", "open")
        history.flush()
        while not stopping.is_set():
            fields = driver.hear(0.1)
            if fields is not None:
                member.heard(fields)
            if member.log.commit_due():
                member.commit()
        member.commit()
        driver.close(member.heard)


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (pair.partition(":") for pair in text.split(",") if pair)]


def _listed(positions: Sequence[Position]) -> str:
    return ",".join(f"{topic}:{partition}:{after}" for topic, partition, after in positions)


def _positions(text: str) -> list[Position]:
    parts = (position.split(":") for position in text.split(",") if position)
    return [(topic, int(partition), int(after)) for topic, partition, after in parts]
