"""Optional packages, which an extra of the installation brings: `pip install 'kmigrate[verify]'`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from kmigrate.errors import Refused

__all__ = ["EXTRAS", "EXTRA_MISSING", "SANDBOX", "VERIFY", "Extra"]


EXTRA_MISSING = "extra-missing"


@dataclass(frozen=True, slots=True)
class Extra:
    """A named set of optional packages."""

    name: str
    packages: tuple[str, ...]
    """The packages' names, which are also the names to import."""
    purpose: str

    @property
    def install(self) -> str:
        """The command that installs the packages."""
        return f"pip install 'kmigrate[{self.name}]'"

    def missing(self) -> tuple[str, ...]:
        """Return the packages that are not installed."""
        return tuple(package for package in self.packages if find_spec(package) is None)

    def need(self, what: str) -> None:
        """Raise a refusal if packages that `what` needs are not installed."""
        missing = self.missing()
        if missing:
            raise Refused(
                EXTRA_MISSING,
                f"{what} needs {', '.join(missing)}: not installed",
                still_true="nothing was contacted or changed",
                next_step=f"{self.install}; with pipx or uv tool as docs/install.md says",
            )


VERIFY = Extra("verify", ("pyspark",), "verify, promote --verify and bulk copies by Spark")
SANDBOX = Extra("sandbox", ("aiokafka", "pyspark", "testcontainers"), "the sandbox and its demo")

EXTRAS = (VERIFY, SANDBOX)
