"""Hides the packages that only tests have; to be imported before the code of kmigrate.

With hypothesis installed, kio loads hypothesis.
"""

from __future__ import annotations

import sys

sys.modules["hypothesis"] = None  # type: ignore[assignment]
