"""The exit codes, one meaning each; `KmigrateError.exit_code` uses the same numbers."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit"]


class Exit(IntEnum):
    """The exit code of a finished call, with its meaning."""

    meaning: str

    def __new__(cls, code: int, meaning: str = "") -> Exit:
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    OK = 0, "done, or nothing was left to do"
    FAILED = 1, "something broke while acting"
    USAGE = 2, "the arguments, the configuration or the playbook are wrong"
    REFUSED = 3, "a guard refused; nothing was changed, or the error names the changes made before"
    PARITY_MISMATCH = 4, "source and target hold different records"
    TIMED_OUT = 5, "a condition did not come true in time; the intent stays written"
    INTERRUPTED = 130, "Ctrl-C"
