"""A parsed playbook: its steps, each with the conditions under which the step runs.

1. A step has exactly one of `run`, `exec`, `wait` and `approve`. The other keys of a `run` step are the verb's flags,
   spelt as on the command line without the dashes. Positional arguments are in plural (`topics`, `groups`) or `name`.
2. A playbook keeps no position: each run begins at the start, and a step whose effect the state log shows does nothing.
   So a playbook goes on where the last run stopped, on any machine.
3. `exec` and `approve` have no effect in the state log, and so run every time, unless a condition says otherwise.
4. The steps of `[[on_failure]]` run after a step has failed. A failure among these steps does not stop the others.
   A missing approval is no failure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kmigrate.workflow.playbook.conditions import Condition, Scope
from kmigrate.workflow.playbook.variables import Values

__all__ = ["DANGEROUS", "ApproveStep", "ExecStep", "Guard", "Playbook", "RunStep", "Step", "WaitStep"]

DANGEROUS = frozenset(
    {
        "promote",
        "rehearse",
        "rollback",
        "group promote",
        "group rollback",
        "topic forget",
        "group forget",
        "link delete",
        "link finish",
    }
)
"""Verbs that ask for a yes; a playbook asks once, for all of its steps."""

_ARGUMENTS = frozenset({"topics", "groups", "name", "rate"})
"""Keys of a verb that stand for positional arguments."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition under which a step runs (`when`) or does not run (`unless`).

    The condition is one on the status, or a comparison of values, which is decided already.
    """

    key: Literal["when", "unless"]
    text: str
    condition: Condition | None = None
    holds: bool = False

    def skips(self, holds: bool) -> bool:
        """Return whether the step is skipped if the condition holds, or does not hold."""
        return holds is (self.key == "unless")

    @property
    def certain(self) -> bool:
        """True if the step is skipped whatever the status is."""
        return self.condition is None and self.skips(self.holds)

    def __str__(self) -> str:
        return f"{self.key} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What steps of all kinds have."""

    number: int
    title: str = ""
    place: str = ""
    """File, line and column of the step."""
    guards: tuple[Guard, ...] = ()
    scope: Scope = field(default_factory=Scope)
    timeout: float | None = None
    retries: int = 0
    retry_delay: float = 5.0
    after_failure: bool = False

    @property
    def idle(self) -> bool:
        """True if a comparison of values skips the step, whatever the status is."""
        return any(guard.certain for guard in self.guards)

    @property
    def name(self) -> str:
        return f"on_failure step {self.number}" if self.after_failure else f"step {self.number}"

    @property
    def what(self) -> str:
        raise NotImplementedError

    @property
    def text(self) -> str:
        """What the step does, and under which conditions; a comparison that lets the step run is left out."""
        guards = ", ".join(str(guard) for guard in self.guards if guard.condition is not None or guard.certain)
        return f"{self.what} ({guards})" if guards else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep(_Step):
    """A verb of the command line with its flags; `timeout` is only for verbs without a flag of that name."""

    verb: str
    options: Mapping[str, Any]

    @property
    def dangerous(self) -> bool:
        harmless = self.idle or self.options.get("cancel") or self.options.get("undo")
        return self.verb in DANGEROUS and not harmless

    @property
    def what(self) -> str:
        arguments, flags = [self.verb], []
        for key, value in self.options.items():
            shown = " ".join(value) if isinstance(value, list) else str(value)
            if key in _ARGUMENTS:
                arguments.append(shown)
            elif isinstance(value, bool):
                flags.append(f"--{key}" if value else f"--no-{key}")
            else:
                flags += [f"--{key} {each}" for each in (value if isinstance(value, list) else [value])]
        return " ".join(filter(None, [*arguments, *flags]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecStep(_Step):
    """A command whose exit code is judged."""

    command: tuple[str, ...]
    timeout: float = 600.0

    @property
    def what(self) -> str:
        return f"exec: {shlex.join(self.command)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStep(_Step):
    """A condition on the status, with a deadline."""

    condition: Condition
    timeout: float = 120.0

    @property
    def what(self) -> str:
        names = " ".join([*self.scope.topics, *self.scope.groups])
        return f"wait: {self.condition.text}" + (f" ({names})" if names else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveStep(_Step):
    """A question that somebody has to answer with yes: a person on the terminal, a file that appears, or a command."""

    question: str
    file: str = ""
    command: tuple[str, ...] = ()
    timeout: float = 86_400.0

    @property
    def what(self) -> str:
        by = f" (file {self.file})" if self.file else f" (by {shlex.join(self.command)})" if self.command else ""
        return f"approve: {self.question}{by}"


Step = RunStep | ExecStep | WaitStep | ApproveStep


@dataclass(frozen=True, slots=True)
class Playbook:
    """A parsed file: the title, the steps in order, the steps after a failure, and the variables' values."""

    file: str
    title: str
    steps: tuple[Step, ...]
    on_failure: tuple[Step, ...] = ()
    values: Values = field(default_factory=lambda: Values({}, {}))

    @property
    def dangerous(self) -> tuple[Step, ...]:
        return tuple(step for step in (*self.steps, *self.on_failure) if isinstance(step, RunStep) and step.dangerous)
