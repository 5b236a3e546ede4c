"""A call of the command line: common flags, configuration, and the handling of every error.

`command` leaves `fn(call, …)` unchanged, so a playbook's step calls the function with the same names and defaults.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
import platform
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from kmigrate.cli.base import wizard
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer, Output
from kmigrate.cli.base.signals import heeded
from kmigrate.cli.base.targets import find_target
from kmigrate.cluster.client import ClusterClient
from kmigrate.config.load import load
from kmigrate.config.settings import Settings
from kmigrate.errors import Interrupted, KmigrateError, Refused, StateLogBroken, Unreachable, UsageError
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections, reach
from kmigrate.workflow.base.plan import Plan

__all__ = ["Call", "command", "run_to_end"]

Result = Answer | None
Verb = TypeVar("Verb", bound=Callable[..., Result | Coroutine[Any, Any, Result]])

_COMMON = {
    "config": (
        Path | None,
        typer.Option("--config", help="Configuration file (else KMIGRATE_CONFIG, else ./kmigrate.toml)."),
        None,
    ),
    "json": (bool, typer.Option("--json", help="Print one JSON document on stdout (docs/json.md)."), False),
    "debug": (bool, typer.Option("--debug", help="Show the traceback of an error."), False),
}
_TARGET = (str | None, typer.Option("--target", help="Target cluster (else [defaults] target, else the only one)."))


@dataclass
class Call:
    """The common flags of a command, and the objects made from these flags when first needed."""

    config: Path | None = None
    target: str | None = None
    json: bool = False
    debug: bool = False
    overrides: dict[str, str] = field(default_factory=dict)
    """Configuration values that flags of this call replace: section.key and value."""
    out: Output = field(init=False)

    def __post_init__(self) -> None:
        self.out = Output(json=self.json, debug=self.debug)

    @cached_property
    def settings(self) -> Settings:
        return load(self.config, os.environ, self.overrides)

    def override(self, flags: Mapping[str, object]) -> None:
        """Put flags of this call above the keys of the configuration; None is no flag."""
        self.overrides |= {key: str(given) for key, given in flags.items() if given is not None}

    def link(self, given: str | None) -> str | None:
        """Return the link that a verb acts on: the flag, else `[defaults] link`, else None (the only link)."""
        return given or self.settings.defaults.link or None

    @property
    def who(self) -> str:
        """The calling user and host, as the state log records a person's decision."""
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # a container may run under a user id that has no name
            name = f"uid {os.getuid()}"
        return f"{name}@{platform.node()}"

    @property
    def interactive(self) -> bool:
        """True if a person at a terminal can answer questions."""
        return not self.json and sys.stdin.isatty() and sys.stdout.isatty()

    def required(self, value: str | None, flag: str, what: str, choices: Iterator[str] | None = None) -> str:
        """Return a required value: ask for a missing value on a terminal, raise a usage error elsewhere."""
        return value or wizard.ask(self.interactive, flag, what, list(choices or ()))

    def required_list(self, values: list[str] | None, flag: str, what: str) -> list[str]:
        """Return required names, as `required` does, and refuse names that no cluster can be asked for."""
        given = values or wizard.ask_list(self.interactive, flag, what)
        for name in given:
            if not name or any("\ud800" <= each <= "\udfff" for each in name):  # bytes of the shell not in UTF-8
                raise UsageError(
                    "bad-name",
                    f"{flag} {name!r} is no name",
                    still_true="nothing was contacted or changed",
                    next_step="expected: names in UTF-8, none of them empty",
                )
        return given

    async def confirm(self, yes: bool, question: str, warnings: Iterable[str] = ()) -> None:
        """Have the user confirm a dangerous step, after the warnings; `yes` asks nothing; without a terminal refuse."""
        if yes:
            return
        for warning in warnings:
            self.out.note(f"warning: {warning}")
        await wizard.confirm(self.interactive, question)

    async def carry_out(
        self,
        look: Callable[[], Awaitable[verbs.Proposal]],
        plan: bool,
        yes: bool = True,
        question: Callable[[Plan], str] | str = "",
    ) -> Plan:
        """Look, ask, look again (a person may take long), and carry out; with `plan` return the first look's plan."""
        proposal = await look()
        if plan:
            return proposal.plan
        if not yes and proposal.plan.changes:
            asked = question if isinstance(question, str) else question(proposal.plan)
            await self.confirm(yes, asked, proposal.plan.warnings)
            proposal = await look()
        return await proposal.carry_out()

    @asynccontextmanager
    async def connections(self, target: str | None = None, *, create: bool = False) -> AsyncIterator[Connections]:
        """Open the target and its state log; an unreachable target raises `cluster-unreachable` within seconds."""
        settings = self.settings
        if target is None:
            with self.out.waiting("looking for the target"):
                target = await find_target(settings, self.target)
        with self.out.waiting(f"asking target {target}"):
            async with ClusterClient(settings.cluster(target)) as probe:
                await reach(probe)
            opened = await Connections.open(settings.cluster, target, create=create)
        async with opened as connections:
            connections.asking = self.out.waiting
            yield connections


def command(app: typer.Typer, name: str, *, target: bool = True) -> Callable[[Verb], Verb]:
    """Register `fn(call, …)` under a name, with --config, --json and --debug; with --target where `target` is true."""

    def register(verb: Verb) -> Verb:
        common: dict[str, tuple[Any, Any, Any]] = {**({"target": (*_TARGET, None)} if target else {}), **_COMMON}
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
        added = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
            for key, (kind, option, default) in common.items()
        ]
        params = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added

        def run(**given: Any) -> None:
            call = Call(**{key: given.pop(key) for key in common})
            raise typer.Exit(int(run_to_end(call, lambda: verb(call, **given))))

        run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in params}
        run.__doc__, run.__name__ = verb.__doc__, name.replace(" ", "_")
        app.command(name)(run)
        return verb

    return register


_INTERRUPTED = Interrupted(
    "interrupted",
    "stopped by Ctrl-C or by a signal",
    still_true="what was written to the state log or to a file before stays; nothing more is done by this call",
    next_step="kmigrate status; the same call again leaves what is done as it is",
)


def _complete(error: KmigrateError) -> None:
    """Add what is still true and the next step, where an error from a lower layer says only what happened."""
    if isinstance(error, UsageError):
        error.still_true = error.still_true or "nothing was changed"
    error.still_true = error.still_true or "what this call had written before stays, and is found when it is repeated"
    for kind, next_step in _NEXT_STEPS:
        if isinstance(error, kind):
            error.next_step = error.next_step or next_step
            return


_NEXT_STEPS: tuple[tuple[type[KmigrateError], str], ...] = (
    (Unreachable, "kmigrate doctor shows which cluster does not answer; then repeat the call"),
    (StateLogBroken, "stop all processes of kmigrate, and see docs/state-log.md before anything is started again"),
    (UsageError, "the command's --help says what is expected"),
    (Refused, "kmigrate status shows where everything stands"),  # a repeated call meets the same guard
    (KmigrateError, "kmigrate status shows where everything stands; then repeat the call"),
)


def run_to_end(call: Call, act: Callable[[], Result | Coroutine[Any, Any, Result]]) -> Exit:
    """Run the verb, print the answer or the error, and return the exit code."""
    with heeded():
        return _ended(call, act)


def _ended(call: Call, act: Callable[[], Result | Coroutine[Any, Any, Result]]) -> Exit:
    try:
        result = act()
        answer = asyncio.run(result) if inspect.iscoroutine(result) else result
        if not isinstance(answer, Answer):
            return Exit.OK
        call.out.answer(answer)
        return answer.exit
    except typer.Exit as done:
        return Exit(done.exit_code)
    except typer.Abort:  # the user left at a question: nothing was done before the question
        return Exit.INTERRUPTED
    except (KeyboardInterrupt, asyncio.CancelledError):
        call.out.error(_INTERRUPTED)
        return Exit.INTERRUPTED
    except KmigrateError as error:
        _complete(error)
        call.out.error(error)
        return Exit(error.exit_code)
    except BaseException as error:
        call.out.unexpected(error)
        return Exit.FAILED
