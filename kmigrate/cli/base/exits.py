"""The exit codes, one meaning each; `KmigrateError.exit_code` uses the same numbers."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit"]


class Exit(IntEnum):
    """The exit code of a finished call."""

    OK = 0
    """Done, or nothing was left to do."""
    FAILED = 1
    """Something broke while acting."""
    USAGE = 2
    """The arguments, the configuration or the playbook are wrong."""
    REFUSED = 3
    """A guard refused; nothing was changed."""
    PARITY_MISMATCH = 4
    """Source and target hold different records."""
    TIMED_OUT = 5
    """A condition did not come true in time; the intent stays written."""
    INTERRUPTED = 130
    """Ctrl-C."""
