"""The engines of a process: the objects that each engine gets for itself."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cli.process import engines
from kmigrate.cli.process.engine_settings import Engine, mirror_settings
from kmigrate.cli.process.health import EngineHealth, Health
from kmigrate.config.load import load
from kmigrate.errors import Refused, StateLogBroken, Unreachable
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.model.state import State
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("first", "a:1"), ClusterRef("target", "c:1"), 1)


class _Router:
    """A router that keeps the function that makes clients of sources."""

    source_client: Any
    bootstrap = "router:9092"

    def __init__(self, _settings: Any, _target: Any, source_client: Any, _log: Any, _instance: str) -> None:
        type(self).source_client = staticmethod(source_client)

    def show_in(self, registry: Any) -> None: ...

    async def start(self) -> None: ...

    async def run(self) -> None: ...

    async def close(self) -> None: ...


def test_the_mirror_is_given_every_limit_of_its_section(tmp_path: Path) -> None:
    config = tmp_path / "kmigrate.toml"
    config.write_text("[mirror]\nwrite_connections = 7\nlease_s = 8.0\n", encoding="utf-8")
    made = mirror_settings(load(config, {}))
    assert (made.write_connections, made.lease_s) == (7, 8.0)
    assert mirror_settings(load(None, {})) == MirrorSettings()


@pytest.mark.parametrize(
    ("word", "windows", "long_windows"), [("long", True, True), ("short", True, False), ("apart", False, False)]
)
def test_windows_are_as_long_as_the_mirror_section_says(
    tmp_path: Path, word: str, windows: bool, long_windows: bool
) -> None:
    config = tmp_path / "kmigrate.toml"
    config.write_text(f'[mirror]\nwindows = "{word}"\n', encoding="utf-8")
    made = mirror_settings(load(config, {}))
    assert (made.windows, made.long_windows) == (windows, long_windows)


def test_a_key_that_contradicts_a_link_is_logged_once_and_again_when_the_link_is_altered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "kmigrate.toml"
    config.write_text("[mirror]\nhole_limit = 7\n", encoding="utf-8")
    log = MemoryLog(LINK)
    call = SimpleNamespace(settings=load(config, {}))

    async def scenario() -> None:
        process: Any = engines._Process(call, SimpleNamespace(log=log), asyncio.Event(), 0)  # type: ignore[arg-type]
        process._tasks.start(process._compare_settings(), "settings of links")
        for settings in (
            LinkSettings(hole_limit=8),
            LinkSettings(hole_limit=8, lag_threshold=9),
            LinkSettings(hole_limit=7),
        ):
            await asyncio.sleep(0.01)
            log._put(LINK.key, replace(LINK, settings=settings))
        await asyncio.sleep(0.01)
        await process._tasks.close()
        assert process._fatal is None

    asyncio.run(scenario())
    told = [(each.getMessage(), each.link) for each in caplog.records]  # type: ignore[attr-defined]
    assert told == [
        (f"[mirror] hole_limit is 7, and the link has {value}: the link's setting counts", "l")
        for value in (100_000, 8)
    ]


def test_a_link_that_was_made_anew_has_a_client_of_its_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kmigrate.toml"
    config.write_text(
        "".join(f'[clusters.{name}]\n"bootstrap.servers" = "{name}:9092"\n' for name in ("first", "second", "target")),
        encoding="utf-8",
    )
    settings = load(config, {})
    call = SimpleNamespace(settings=settings, out=SimpleNamespace(json=True, line=lambda *_: None))
    connections = SimpleNamespace(target=SimpleNamespace(settings=settings.cluster("target")), log=MemoryLog())
    monkeypatch.setattr(engines, "Router", _Router)
    monkeypatch.setattr(engines, "_raise_file_limit", lambda: None)

    async def sources() -> list[str]:
        process: Any = engines._Process(call, connections, asyncio.Event(), 0)  # type: ignore[arg-type]
        async with AsyncExitStack() as stack:
            stack.push_async_callback(process._tasks.close)
            await process._start_router(stack, shared=False)
            anew = replace(LINK, uuid="v", source=ClusterRef("second", "b:1"))
            return [_Router.source_client(link).settings.name for link in (LINK, anew)]

    assert asyncio.run(sources()) == ["first", "second"]


def test_a_link_that_was_made_anew_between_two_looks_has_another_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    log, said = MemoryLog(LINK), list[str]()
    call = SimpleNamespace(out=SimpleNamespace(json=True, line=lambda event, _: said.append(event["event"])))

    async def scenario() -> None:
        process: Any = engines._Process(call, SimpleNamespace(log=log), asyncio.Event(), 0)  # type: ignore[arg-type]
        running, started = set[str](), asyncio.Queue[str]()

        async def keep(_: str) -> None:
            link = log.state.link("l")
            assert link is not None
            assert not running, "the one before it has ended"
            running.add(link.uuid)
            started.put_nowait(link.uuid)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                running.discard(link.uuid)

        monkeypatch.setattr(process, "_keep_mirror", keep)
        async with asyncio.timeout(10):
            process._tasks.start(process._follow_links(None))
            assert await started.get() == "u"
            await log.append(lambda _: replace(LINK, uuid="v"))
            assert await started.get() == "v"
        assert (running, said) == ({"v"}, ["mirror-dropped"])
        await process._tasks.close()
        assert process._fatal is None

    asyncio.run(scenario())


def test_a_process_of_any_engine_ends_with_a_state_log_that_it_may_not_act_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with a controller alone used to restart it for ever, and a supervisor saw a healthy process."""
    newer = StateLogBroken("newer-state-log", "the state log was written by a newer kmigrate")

    async def broken(*_: object, **__: object) -> None:
        raise newer

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(engines, "serve_metrics", nothing)
    monkeypatch.setattr(engines._Process, "_control", broken)
    call = SimpleNamespace(settings=load(None, {}), out=SimpleNamespace(json=True, line=lambda *_: None))
    log = SimpleNamespace(changed=broken, state=State())

    async def ended(kinds: Engine) -> None:
        process: Any = engines._Process(call, SimpleNamespace(log=log), asyncio.Event(), 0)  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            await process.run(kinds, None, 1, take_over=False)

    for kinds in (Engine.CONTROLLER, Engine.MIRROR):
        with pytest.raises(StateLogBroken, match="newer kmigrate"):
            asyncio.run(ended(kinds))


def test_a_process_is_not_ready_before_its_router_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router waits for a former router of its name, while the probes are answered already."""
    told: list[dict[str, Any]] = []

    async def serve(_call: Any, _registry: Any, health: Health, _stack: Any) -> None:
        told.append(health.as_json())

    async def start(*_: Any, **__: Any) -> None:
        raise Refused("router-exists", "a router of this name runs")

    monkeypatch.setattr(engines, "serve_metrics", serve)
    monkeypatch.setattr(engines._Process, "_start_router", start)

    async def run() -> None:
        process: Any = engines._Process(SimpleNamespace(), SimpleNamespace(log=MemoryLog()), asyncio.Event(), 0)  # type: ignore[arg-type]
        with pytest.raises(Refused):
            await process.run(Engine.ROUTER, None, 1, take_over=False)

    asyncio.run(run())
    assert [(each["ready"], each["engines"][0]["reason"]) for each in told] == [(False, "starting")]


def test_an_engine_that_is_started_again_has_not_got_over_its_failure_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_FIRST_PAUSE", 0.0)
    call = SimpleNamespace(out=SimpleNamespace(json=False))

    async def run() -> None:
        process: Any = engines._Process(call, SimpleNamespace(log=MemoryLog()), asyncio.Event(), 0)  # type: ignore[arg-type]
        health, starts, again = EngineHealth("mirror", "l"), list[bool](), asyncio.Event()

        async def engine() -> None:
            starts.append(health.readiness("").ready)
            if len(starts) == 1:
                raise Unreachable("cluster-unreachable", "source: nobody answers")
            again.set()
            await asyncio.Event().wait()

        async with asyncio.timeout(30):
            task = asyncio.create_task(process._keep(health, engine))
            await again.wait()
        task.cancel()
        assert starts == [True, False]

    asyncio.run(run())


class _ReplacedRouter(_Router):
    """A router that loses its name to another process at once."""

    closed = 0

    async def run(self) -> None:
        raise Refused("router-replaced", "another router has registered")

    async def close(self) -> None:
        type(self).closed += 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_process_goes_on_without_its_replaced_router_unless_the_router_is_all_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.target]\n"bootstrap.servers" = "target:9092"\n', encoding="utf-8")
    settings = load(config, {})
    said: list[str] = []
    out = SimpleNamespace(json=True, line=lambda fields, _: said.append(fields["event"]))
    connections = SimpleNamespace(target=SimpleNamespace(settings=settings.cluster("target")), log=MemoryLog())
    monkeypatch.setattr(engines, "Router", _ReplacedRouter)
    monkeypatch.setattr(engines, "_raise_file_limit", lambda: None)
    monkeypatch.setattr(_ReplacedRouter, "closed", 0)

    async def fatal() -> BaseException | None:
        call = SimpleNamespace(settings=settings, out=out)
        process: Any = engines._Process(call, connections, asyncio.Event(), 0)  # type: ignore[arg-type]
        async with AsyncExitStack() as stack:
            stack.push_async_callback(process._tasks.close)
            await process._start_router(stack, shared=False, alone=alone)
            await asyncio.sleep(0.01)
        found: BaseException | None = process._fatal
        return found

    error = asyncio.run(fatal())
    assert _ReplacedRouter.closed == 1
    if alone:
        assert isinstance(error, Refused)
        assert said == ["router-listening"]
    else:
        assert error is None
        assert sorted(said) == ["router-listening", "router-replaced"]
