"""A live client as a process of its own: `python -m kmigrate.sandbox.clients LAUNCH.json`.

SIGTERM is the clean end of a roll: flush or commit, close, exit 0. SIGKILL is a crash.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

from kmigrate.sandbox.client_specs import ConsumerSpec, Launch, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.history import HistoryWriter
from kmigrate.sandbox.processes import ProcessIdentity

__all__ = ["main"]

_LOOK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0


def main(arguments: list[str]) -> int:
    launch = Launch.from_json(Path(arguments[0]).read_text(encoding="utf-8"))
    spec = launch.spec
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started the clients handles Ctrl-C
    if launch.tied_to is not None:
        _tie(ProcessIdentity(*launch.tied_to), stopping)
    facts = {name: value for name, value in vars(spec).items() if name not in ("settings", "name")}
    with HistoryWriter(
        Path(launch.history),
        f"{spec.name}.{launch.run}",
        **facts,
        settings=dict(spec.settings),
        bootstrap=launch.bootstrap,
        run=launch.run,
        pid=os.getpid(),
    ) as history:
        _run(launch, history, stopping)
    return 0


def _run(launch: Launch, history: HistoryWriter, stopping: threading.Event) -> None:
    # Imported here: a process pays only for its own client library, and twelve processes share two cores.
    spec = launch.spec
    if spec.family == "aiokafka":
        from kmigrate.sandbox import aiokafka_clients

        if isinstance(spec, ConsumerSpec):
            asyncio.run(aiokafka_clients.consume(spec, launch, history, stopping))
        else:
            asyncio.run(aiokafka_clients.produce(spec, launch, history, stopping))
        return
    library = "librdkafka_clients" if spec.family == "librdkafka" else "driven_clients"
    clients = import_module(f"kmigrate.sandbox.{library}")
    if isinstance(spec, ProducerSpec):
        clients.produce(spec, launch, history, stopping)
    elif isinstance(spec, TransactionalSpec):
        clients.transact(spec, launch, history, stopping)
    else:
        clients.consume(spec, launch, history, stopping)


def _tie(keeper: ProcessIdentity, stopping: threading.Event) -> None:
    def watch() -> None:
        while keeper.alive():
            time.sleep(_LOOK_SECONDS)
        stopping.set()
        time.sleep(_LAST_WORDS_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="keeper", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
