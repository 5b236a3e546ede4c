"""Every error that a person can meet, as a small tree.

    KmigrateError
    ├── UsageError          exit 2   bad arguments, configuration or playbook
    ├── Refused             exit 3   a guard said no; `still_true` names the changes made before
    ├── ParityMismatch      exit 4   source and target differ
    ├── WaitTimedOut        exit 5   a condition did not come true in time; the intent stays
    ├── Interrupted         exit 130 a person ended the wait for work that goes on elsewhere
    └── Failed              exit 1   something broke during an action
        ├── Unreachable              no broker of a cluster answers
        ├── AuthenticationFailed     TLS or SASL: broker and client do not accept each other's identity
        ├── BrokerRefused            a broker answered with an error that we cannot act on
        ├── ProtocolViolation        a peer sent bytes that break the protocol
        ├── StateLogBroken           the state log contradicts itself or is newer than we are
        └── Diverged                 a mirrored partition differs from what we wrote

Each error has a kebab-case reference, what happened, what is still true and safe, and the next step. `kmigrate.cli`
renders these four fields, and `--json` prints the same fields. For guards, `--json` prints every finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

__all__ = [
    "AuthenticationFailed",
    "BrokerRefused",
    "Diverged",
    "Failed",
    "Interrupted",
    "KmigrateError",
    "ParityMismatch",
    "ProtocolViolation",
    "Refused",
    "StateLogBroken",
    "Unreachable",
    "UsageError",
    "WaitTimedOut",
]


class KmigrateError(Exception):
    """A failure with its reference, the facts that still hold, and the next step."""

    exit_code: ClassVar[int] = 1

    def __init__(self, ref: str, what: str, *, still_true: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.ref = ref
        self.what = what
        self.still_true = still_true
        self.next_step = next_step

    @property
    def summary(self) -> str:
        """The reference and what happened, as records and reports of processes name the error."""
        return f"{self.ref}: {self.what}"

    def __str__(self) -> str:
        parts = [self.summary]
        if self.still_true:
            parts.append(f"Still true: {self.still_true}")
        if self.next_step:
            parts.append(f"Next: {self.next_step}")
        return "\n".join(parts)

    def as_json(self) -> dict[str, object]:
        return {
            "error": self.ref,
            "what": self.what,
            "still_true": self.still_true,
            "next": self.next_step,
            "exit_code": self.exit_code,
        }


class UsageError(KmigrateError):
    """A wrong command line, configuration or playbook."""

    exit_code = 2


class Refused(KmigrateError):
    """A guard's refusal before any change, or between two changes; `still_true` names the changes made before."""

    exit_code = 3
    findings: Sequence[Mapping[str, str]] = ()
    """The findings of all guards, if several refused; `what` tells a person the first few of each kind."""

    def as_json(self) -> dict[str, object]:
        told = super().as_json()
        return {**told, "findings": list(self.findings)} if self.findings else told


class ParityMismatch(KmigrateError):
    """Source and target hold different records."""

    exit_code = 4


class WaitTimedOut(KmigrateError):
    """A condition that did not come true within its deadline; the intent stays written."""

    exit_code = 5


class Interrupted(KmigrateError):
    """Ctrl-C while a command waited for other processes; their work goes on, and the message says so."""

    exit_code = 130


class Failed(KmigrateError):
    """Something broke during an action."""


class Unreachable(Failed):
    """No broker of the cluster answers."""


class AuthenticationFailed(Failed):
    """TLS or SASL: broker and client reject each other's identity; not Unreachable, because no retry helps."""


class BrokerRefused(Failed):
    """A broker's error that leaves nothing to try."""

    def __init__(self, ref: str, what: str, *, code: int = 0, still_true: str = "", next_step: str = "") -> None:
        super().__init__(ref, what, still_true=still_true, next_step=next_step)
        self.code = code


class ProtocolViolation(Failed):
    """A peer sent bytes that break the protocol."""


class StateLogBroken(Failed):
    """The state log contradicts itself, was cut, or was written by a newer version."""


class Diverged(Failed):
    """A mirrored partition holds something that the append rule did not put there."""
