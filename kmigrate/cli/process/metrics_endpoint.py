"""The HTTP pages of a running process: /metrics for Prometheus, /healthz and /readyz for probes; off by default."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from kmigrate import __version__
from kmigrate.cli.base.call import Call
from kmigrate.cli.process.health import Health, health_pages
from kmigrate.cli.process.logs import report
from kmigrate.config.listen import listen_address
from kmigrate.net.http import Page, PageServer
from kmigrate.observe.registry import CONTENT_TYPE, Kind, Metric, Registry, Sample, exposition
from kmigrate.state.log import StateLog

__all__ = ["METRICS", "process_registry", "serve_metrics", "show_strays"]

_BUILD = Metric("kmigrate_build_info", Kind.GAUGE, "1, with the version that runs.", ("version",))
_CPU = Metric("process_cpu_seconds_total", Kind.COUNTER, "CPU time of this process, user and system.")
_MEMORY = Metric("process_resident_memory_bytes", Kind.GAUGE, "Memory of this process; on Linux only.")

_STRAYS = Metric(
    "kmigrate_stray_records",
    Kind.GAUGE,
    "Records of kmigrate's own topics that kmigrate did not write, as far as this process has read; they count for "
    "nothing.",
    ("topic",),
)

METRICS = (_BUILD, _CPU, _MEMORY, _STRAYS)


def process_registry() -> Registry:
    """Return a registry that shows the metrics of the process itself."""
    registry = Registry()
    registry.add(_BUILD, lambda: [((__version__,), 1)])
    registry.add(_CPU, lambda: [((), sum(os.times()[:2]))])
    registry.add(_MEMORY, _memory)
    return registry


def show_strays(registry: Registry, log: StateLog) -> None:
    """Show a process's count of stray records in the process's registry."""
    registry.add(_STRAYS, lambda: [((topic,), strays.count) for topic, strays in log.strays().items()])


def _memory() -> Iterable[Sample]:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return []
    return [((), pages * os.sysconf("SC_PAGE_SIZE"))]


async def serve_metrics(call: Call, registry: Registry, health: Health, stack: AsyncExitStack) -> None:
    """Serve registry and health where the configuration says so, until the stack closes; raises Refused."""
    address = listen_address(call.settings.metrics.listen)
    if address is None:
        return
    pages = {"/metrics": Page(CONTENT_TYPE, lambda: exposition(registry)), **health_pages(health)}
    server = PageServer(*address, pages)
    await server.start()
    stack.push_async_callback(server.close)
    url = f"http://{server.address}/metrics"
    report(call.out, "process", {"event": "metrics-listening", "url": url}, f"metrics: {url}")
